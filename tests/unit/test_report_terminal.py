"""A result as text; after a wanted change: `pytest --update-golden`, then read the diff."""

from collections.abc import Callable

import pytest
from fakes.small_gates import (
    EMBEDDED,
    ENDPOINT,
    RATE,
    SYNTHETIC,
    VLLM,
    run_record,
    small_gate,
    stored_run,
    with_http_429,
)
from fakes.stored_results import gate_result, runs_with_rates

from pytest_qperf.core.records import GpuSummary, Spread
from pytest_qperf.core.result import GateResult
from pytest_qperf.core.verdict import Outcome
from pytest_qperf.report.terminal import one_line, render_result

MAX_COLUMNS = 104  # with one limit a metric, an undecided one being the widest


def passed() -> GateResult:
    gate = small_gate(candidate=VLLM, baseline=VLLM)
    rates = runs_with_rates(gate, {"baseline": [4.0, 4.0], "candidate": [4.96, 5.04]})
    return gate_result(rates, gate=gate)


def failed() -> GateResult:
    model = {"model": SYNTHETIC}
    gate = small_gate(
        candidate=EMBEDDED.model_copy(update=model), baseline=EMBEDDED.model_copy(update=model)
    )
    rates = runs_with_rates(gate, {"baseline": [4.0, 4.0], "candidate": [2.0, 2.0]})
    return gate_result(rates, gate=gate)


def one_round() -> GateResult:
    gate = small_gate()
    rates = runs_with_rates(gate, {"baseline": [4.0], "candidate": [5.0]})
    return gate_result(rates, gate=gate, num_rounds=1)


def undecided() -> GateResult:
    rates = runs_with_rates(small_gate(), {"baseline": [4.0, 4.0], "candidate": [4.0, 6.0]})
    return gate_result(rates)


def endpoint() -> GateResult:
    gate = small_gate(candidate=ENDPOINT)
    rates = runs_with_rates(gate, {"baseline": [4.0, 4.0], "candidate": [5.0, 5.0]})
    return gate_result(rates, gate=gate)


def invalid() -> GateResult:
    good = stored_run(1, "baseline", run_record())
    bad = stored_run(1, "candidate", with_http_429(run_record()))
    return gate_result([good, bad], failure="engine B: exit code 1\nlast line of its log")


@pytest.mark.parametrize(
    ("make", "outcome"),
    [
        (passed, Outcome.PASS),
        (failed, Outcome.FAIL),
        (one_round, Outcome.INCONCLUSIVE),
        (undecided, Outcome.INCONCLUSIVE),
        (endpoint, Outcome.INCONCLUSIVE),
        (invalid, Outcome.INVALID),
    ],
)
def test_a_result_reads_as_in_its_golden_file(
    make: Callable[[], GateResult], outcome: Outcome, check_golden: Callable[[str, str], None]
) -> None:
    result = make()
    assert result.outcome is outcome
    check_golden(render_result(result), f"result-{make.__name__.replace('_', '-')}.txt")


def table_lines(text: str) -> list[str]:
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  metric"))
    return lines[first : lines.index("", first)]


@pytest.mark.parametrize("make", [passed, failed, one_round, undecided, endpoint])
def test_the_table_stays_narrow_with_one_limit_a_metric(make: Callable[[], GateResult]) -> None:
    lines = table_lines(render_result(make()))
    assert len(lines) == 1 + 9
    assert max(map(len, lines)) <= MAX_COLUMNS


def test_an_invalid_result_without_any_run_renders_its_reason() -> None:
    text = render_result(gate_result([], failure="no compiler"))
    assert "0 of 2 rounds" in text
    assert "INVALID: no compiler" in text


def test_a_round_with_an_invalid_run_is_not_counted_as_done() -> None:
    assert "0 of 2 rounds" in render_result(invalid())


def test_a_metric_that_an_older_result_lacks_is_left_out_of_the_table() -> None:
    result = passed()
    runs = tuple(
        run.model_copy(
            update={"metrics": {k: v for k, v in run.metrics.items() if k != "itl_p99_s"}}
        )
        for run in result.runs
    )
    text = render_result(result.model_copy(update={"runs": runs}))
    assert "ITL, 99th percentile" not in text
    assert "ITL, median" in text


def test_one_line_gives_the_ratios_of_what_was_judged() -> None:
    assert one_line(one_round()) == (
        "small-gate: INCONCLUSIVE: generation rate, mean x1.250, TTFT, mean x1.000"
    )


def test_one_line_gives_the_first_problem_and_how_many_more_there_are() -> None:
    assert one_line(invalid()) == (
        "small-gate: INVALID: round 1, candidate: 1 of 4 requests: HTTP status "
        "(first: request 3: expected 200, got 429) (and 1 more)"
    )
    single = gate_result([], failure="engine B: exit code 1\nlast line of its log")
    assert one_line(single) == "small-gate: INVALID: engine B: exit code 1"


def test_text_outside_ascii_is_shown_as_it_is() -> None:
    assert "Übersetzer fehlt: c++ 程序" in render_result(
        gate_result([], failure="Übersetzer fehlt: c++ 程序")
    )


def test_a_judged_metric_is_not_repeated_as_a_watched_one() -> None:
    rows = [
        line for line in table_lines(render_result(passed())) if "generation rate, mean" in line
    ]
    assert len(rows) == 1
    assert rows[0].endswith("PASS")
    assert passed().verdict(RATE).limits[0].required == 1.1


def test_a_gpu_result_names_gpu_driver_clocks_and_the_servers_versions() -> None:
    stored = passed()
    clock = Spread(min=1200.0, mean=1900.0, max=1980.0)
    gpu = GpuSummary(
        num_samples=2,
        sm_clock_mhz=clock,
        memory_clock_mhz=None,
        power_w=None,
        temperature_celsius=None,
        throttle_samples=None,
    )
    runs = tuple(
        run.model_copy(update={"gpu": gpu, "facts": {"version": "0.25.1"}}) for run in stored.runs
    )
    environment = {"gpu_name": "NVIDIA H200", "driver_version": "580.1"}
    text = render_result(stored.model_copy(update={"runs": runs, "environment": environment}))
    assert (
        "  on NVIDIA H200, driver 580.1, SM clock 1900 to 1900 MHz, mean of each run; "
        "server versions: baseline 0.25.1, candidate 0.25.1\n"
    ) in text


def test_a_result_that_never_met_its_hardware_names_none() -> None:
    text = render_result(invalid().model_copy(update={"environment": None}))
    assert "\n  on " not in text
