"""The whole flow of a gate, on scripted engines: what happens, in which order, to which end."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.fake_tools import FakeWorld, GateBench
from fakes.small_gates import (
    EMBEDDED,
    ENDPOINT,
    RATE,
    REFUSED,
    RESTARTED_ENDPOINT,
    SYNTHETIC,
    TTFT,
    VLLM,
    WORKLOAD,
    small_gate,
    with_http_429,
)

from pytest_qperf.adapters.result_store import MAX_RESULT_BYTES, read_result
from pytest_qperf.core.errors import (
    BuildError,
    EngineError,
    EnvironmentUnfitError,
    LoadError,
    QperfError,
)
from pytest_qperf.core.recipe import EngineRecipe, Hardware
from pytest_qperf.core.result import RequestColumns
from pytest_qperf.core.verdict import Outcome

RUN_A = ["start A", "warm A", "load A", "stop A"]
RUN_B = ["start B", "warm B", "load B", "stop B"]
BUILDS = ["lock", "build B", "build A"]


@pytest.fixture
def bench(tmp_path: Path) -> GateBench:
    return GateBench(tmp_path)


def test_a_gate_locks_builds_once_runs_a_b_b_a_one_engine_at_a_time_and_unlocks(
    bench: GateBench,
) -> None:
    bench.run(num_rounds=2)
    assert bench.world.log == [*BUILDS, *RUN_A, *RUN_B, *RUN_B, *RUN_A, "unlock"]


def test_a_candidate_as_fast_as_required_passes_with_its_ratios(bench: GateBench) -> None:
    result = bench.run()
    assert result.outcome is Outcome.PASS
    assert result.problems == ()
    assert result.verdict(RATE).ratio.value == pytest.approx(5 / 4)
    assert result.verdict(TTFT).ratio.value == pytest.approx(1)
    assert result.run_values("candidate", RATE) == pytest.approx((5, 5))
    assert result.run_values("baseline", RATE) == pytest.approx((4, 4))


def test_one_broken_limit_fails_the_gate_and_leaves_the_other_limit_passed(
    bench: GateBench,
) -> None:
    bench.world.ttfts_s["B"] = [1.0]
    result = bench.run()
    assert result.outcome is Outcome.FAIL
    assert result.verdict(TTFT).outcome is Outcome.FAIL
    assert result.verdict(TTFT).ratio.value == pytest.approx(2)
    assert result.verdict(RATE).outcome is Outcome.PASS


def test_rounds_that_disagree_about_a_limit_are_inconclusive(bench: GateBench) -> None:
    bench.world.rates["B"] = [4.0, 6.0]
    assert bench.run().outcome is Outcome.INCONCLUSIVE


def test_one_round_is_never_enough_to_pass(bench: GateBench) -> None:
    result = bench.run(num_rounds=1)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert bench.world.log == [*BUILDS, *RUN_A, *RUN_B, "unlock"]


def test_both_arms_get_the_same_prompts_new_ones_each_round_and_others_to_warm_up(
    bench: GateBench,
) -> None:
    bench.run(num_rounds=2)
    sent = bench.world.prompts
    assert sent["load A"] == sent["load B"]
    first, second = sent["load A"]
    assert len({*first, *second}) == 2 * WORKLOAD.num_requests
    warm = {prompt for prompts in sent["warm A"] for prompt in prompts}
    assert not warm & {*first, *second}


def test_a_refused_request_makes_the_gate_invalid_and_ends_the_rounds(bench: GateBench) -> None:
    bench.world.spoils["load B", 1] = with_http_429
    result = bench.run(num_rounds=2)
    assert result.outcome is Outcome.INVALID
    assert result.problems == (f"round 1, candidate: {REFUSED}",)
    assert result.verdicts == ()
    assert bench.world.log == [*BUILDS, *RUN_A, *RUN_B, "unlock"]
    assert [run.metrics == {} for run in result.runs] == [False, True]
    assert "round 1 of 2, candidate: INVALID" in bench.progress.notes[-2]


def test_a_warm_up_that_is_not_answered_exactly_is_an_invalid_gate_without_a_load(
    bench: GateBench,
) -> None:
    bench.world.spoils["warm A", 1] = lambda record: replace(record, requests=record.requests[:1])
    result = bench.run()
    assert result.outcome is Outcome.INVALID
    assert result.problems == (
        "small-gate: round 1 of 2, baseline: warm-up: "
        "run: expected 2 requests (num_requests), got 1; "
        "wave 0: expected 2 requests in flight at the peak, got 1",
    )
    assert bench.world.log == [*BUILDS, "start A", "warm A", "stop A", "unlock"]


@pytest.mark.parametrize(
    ("line", "error", "log"),
    [
        ("lock", EnvironmentUnfitError("no such GPU"), ["lock"]),
        ("build A", BuildError("no compiler"), [*BUILDS, "unlock"]),
        ("start A", EngineError("exit code 1"), [*BUILDS, "start A", "unlock"]),
        (
            "load A",
            LoadError("no connection"),
            [*BUILDS, "start A", "warm A", "load A", "stop A", "unlock"],
        ),
    ],
)
def test_what_cannot_be_measured_is_a_stored_invalid_result_with_its_reason(
    bench: GateBench, line: str, error: QperfError, log: list[str]
) -> None:
    bench.world.raises[line, 1] = error
    result = bench.run()
    assert result.outcome is Outcome.INVALID
    assert result.problems == (str(error),)
    assert result.runs == ()
    assert read_result(bench.run_folder() / "result.json") == result
    assert bench.world.log == log


def test_an_engine_that_was_never_built_has_no_model_in_the_result(bench: GateBench) -> None:
    bench.world.raises["build A", 1] = BuildError("no compiler")
    result = bench.run()
    assert result.baseline.model is None
    assert result.candidate.model == "checkpoint-of-both"
    assert result.candidate.provenance["plugin_hash"] == "sources of B"


def test_an_engine_that_dies_late_keeps_the_runs_before_it(bench: GateBench) -> None:
    bench.world.raises["start A", 2] = EngineError("exit code 9")
    result = bench.run()
    assert result.outcome is Outcome.INVALID
    assert result.problems == ("exit code 9",)
    assert [(run.round, run.arm) for run in result.runs] == [
        (1, "baseline"),
        (1, "candidate"),
        (2, "candidate"),
    ]


def test_an_error_after_an_invalid_run_is_listed_beside_that_runs_problems(
    bench: GateBench,
) -> None:
    bench.world.spoils["load A", 1] = with_http_429
    bench.world.raises["unlock", 1] = EnvironmentUnfitError("the GPU is lost")
    assert bench.run().problems == (f"round 1, baseline: {REFUSED}", "the GPU is lost")


def test_a_bug_is_no_result_but_still_stops_the_engine_and_unlocks(bench: GateBench) -> None:
    bench.world.raises["load A", 1] = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        bench.run()
    assert bench.world.log[-2:] == ["stop A", "unlock"]


@pytest.mark.parametrize("arm", ["candidate", "baseline"])
def test_an_endpoint_without_a_restart_command_is_inconclusive_and_says_why(
    tmp_path: Path, arm: str
) -> None:
    gate = small_gate(candidate=ENDPOINT) if arm == "candidate" else small_gate(baseline=ENDPOINT)
    result = GateBench(tmp_path, gate=gate).run()
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.label == "endpoint"
    assert [verdict.outcome for verdict in result.verdicts] == [Outcome.PASS, Outcome.PASS]
    assert result.notes == (
        f"{arm}: http://host:8000 was not restarted between rounds, so its rounds are not "
        "independent and the figures are descriptive only; give the endpoint recipe a "
        "restart_command to get a verdict",
    )


def test_an_endpoint_that_is_restarted_gets_a_verdict(tmp_path: Path) -> None:
    gate = small_gate(candidate=RESTARTED_ENDPOINT)
    result = GateBench(tmp_path, gate=gate).run()
    assert (result.outcome, result.notes) == (Outcome.PASS, ())


@pytest.mark.parametrize(
    ("candidate", "held"), [(VLLM, Hardware(gpu="NVIDIA H200")), (ENDPOINT, None)]
)
def test_a_gate_holds_its_gpu_unless_an_arm_is_an_endpoint(
    tmp_path: Path, candidate: EngineRecipe, held: Hardware | None
) -> None:
    gate = small_gate(candidate=candidate, baseline=VLLM, hardware=Hardware(gpu="NVIDIA H200"))
    bench = GateBench(tmp_path, gate=gate)
    bench.run()
    assert bench.world.held == [held]


def test_synthetic_weights_are_noted_for_each_arm_that_has_them(tmp_path: Path) -> None:
    gate = small_gate(candidate=EMBEDDED.model_copy(update={"model": SYNTHETIC}))
    assert GateBench(tmp_path, gate=gate).run().notes == (
        "candidate: synthetic weights (qwen2-tiny, fp8-dynamic, seed 7); "
        "speed only, the text means nothing",
    )


def test_the_run_folder_holds_result_table_runs_raw_times_and_logs(bench: GateBench) -> None:
    result = bench.run(num_rounds=1)
    folder = bench.run_folder()
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == [
        "build-baseline.json",
        "build-candidate.json",
        "gate.json",
        "logs/round-01-baseline.log",
        "logs/round-01-candidate.log",
        "raw/round-01-baseline.json.gz",
        "raw/round-01-candidate.json.gz",
        "report.txt",
        "result.json",
        "runs/round-01-baseline.json",
        "runs/round-01-candidate.json",
    ]
    assert read_result(folder / "result.json") == result
    assert (folder / "report.txt").read_text().startswith("small-gate: INCONCLUSIVE")
    assert bench.progress.notes[-1].startswith("small-gate: INCONCLUSIVE: ")
    assert bench.progress.notes[-1].endswith(f"; {folder / 'result.json'}")


def test_progress_says_which_round_and_arm_it_is_about(bench: GateBench) -> None:
    bench.run(num_rounds=1)
    assert bench.progress.updates == [
        "small-gate: building candidate B",
        "small-gate: building baseline A",
    ]
    assert bench.progress.notes[1:3] == [
        f"small-gate: round 1 of 1, baseline: {RATE} 4, {TTFT} 0.5",
        f"small-gate: round 1 of 1, candidate: {RATE} 5, {TTFT} 0.5",
    ]


def test_twenty_thousand_requests_stay_under_one_megabyte_and_their_times_stay_beside(
    tmp_path: Path,
) -> None:
    workload = WORKLOAD.model_copy(update={"num_requests": 20_000, "osl_tokens": 2})
    bench = GateBench(tmp_path, gate=small_gate(workload=workload))
    bench.run(num_rounds=1)
    folder = bench.run_folder()
    assert (folder / "result.json").stat().st_size <= MAX_RESULT_BYTES
    stored = read_result(folder / "result.json")
    assert [run.requests for run in stored.runs] == [RequestColumns(), RequestColumns()]
    assert [run.metrics[TTFT] for run in stored.runs] == [0.5, 0.5]
    raw = json.loads(gzip.decompress((folder / "raw/round-01-baseline.json.gz").read_bytes()))
    assert len(raw) == 20_000
    assert raw[-1]["chunk_after_sent_ns"] == [500_000_000, 750_000_000]


def test_a_gate_whose_every_engine_fails_never_passes(bench: GateBench) -> None:
    bench.world = FakeWorld(raises={("start A", 1): EngineError("dead")})
    result = bench.run()
    assert (result.outcome, result.verdicts) == (Outcome.INVALID, ())
