"""From runs to what is stored and judged."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fakes.recipe_texts import WORKLOAD_TEXT, write, write_root
from fakes.small_gates import (
    EMBEDDED,
    ENDPOINT,
    RATE,
    REFUSED,
    RESTARTED_ENDPOINT,
    SYNTHETIC,
    TTFT,
    VLLM,
    run_record,
    small_gate,
    stored_run,
    with_http_429,
)

from pytest_qperf.adapters.recipe_file import RecipeLibrary
from pytest_qperf.core.artifacts import BuildArtifact
from pytest_qperf.core.assemble import (
    descriptive_reason,
    engine_record,
    judge_runs,
    label_of,
    notes_on,
    overall_outcome,
    problems_of,
    request_columns,
    workload_record,
)
from pytest_qperf.core.metrics import METRICS
from pytest_qperf.core.recipe import EngineRecipe
from pytest_qperf.core.result import RequestColumns
from pytest_qperf.core.verdict import Outcome


def test_a_valid_run_has_every_metric_and_what_its_engine_said() -> None:
    run = stored_run(3, "candidate", run_record(rate_tokens_per_s=4.0, ttft_s=0.5))
    assert (run.round, run.arm, run.start_s, run.facts) == (3, "candidate", 2.5, {"version": "1.0"})
    assert set(run.metrics) == set(METRICS)
    assert run.metrics[RATE] == pytest.approx(4.0)
    assert run.metrics[TTFT] == pytest.approx(0.5)
    assert run.metrics["e2e_latency_mean_s"] == pytest.approx(1.5)
    assert (run.event_loop_lag_p99_s, run.event_loop_lag_max_s) == (0.001, 0.002)
    assert run.send_lag_max_s == 0.003
    assert run.problems == ()


def test_a_run_with_a_problem_has_no_metrics_but_keeps_its_requests() -> None:
    run = stored_run(1, "baseline", with_http_429(run_record()))
    assert run.metrics == {}
    assert run.problems == (REFUSED,)
    assert len(run.requests.ttft_s) == 4


def test_request_columns_count_from_the_first_send_and_mark_the_warm_up() -> None:
    columns = request_columns(with_http_429(run_record(rate_tokens_per_s=4.0, ttft_s=0.5)))
    assert columns == RequestColumns(
        is_warmup=(True, True, False, False),
        isl_tokens=(8, 8, 8, None),
        osl_tokens=(5, 5, 5, None),
        sent_s=(0.0, 0.0, 100.0, 100.0),
        ttft_s=(0.5, 0.5, 0.5, None),
        e2e_latency_s=(1.5, 1.5, 1.5, None),
        generation_rate_tokens_per_s=(4.0, 4.0, 4.0, None),
        error=(None, None, None, "HTTP status: expected 200, got 429"),
    )


def test_a_run_without_requests_has_empty_columns() -> None:
    assert request_columns(replace(run_record(), requests=())) == RequestColumns()


def test_times_are_rounded_to_a_microsecond() -> None:
    columns = request_columns(run_record(rate_tokens_per_s=3.0, ttft_s=1 / 3))
    assert columns.ttft_s[0] == 0.333333


def test_rounds_are_paired_whatever_the_order_of_runs() -> None:
    runs = [
        stored_run(2, "candidate", run_record(rate_tokens_per_s=16.0)),
        stored_run(1, "candidate", run_record(rate_tokens_per_s=4.0)),
        stored_run(1, "baseline", run_record(rate_tokens_per_s=2.0)),
        stored_run(2, "baseline", run_record(rate_tokens_per_s=8.0)),
    ]
    rate, ttft = judge_runs(small_gate(), runs)
    assert (rate.metric, ttft.metric) == (RATE, TTFT)
    assert rate.ratio.value == pytest.approx(2)
    assert rate.ratio.lower == pytest.approx(2)  # both rounds agree
    assert rate.outcome is Outcome.PASS


def test_an_unpaired_round_cannot_be_judged() -> None:
    runs = [stored_run(1, "candidate", run_record())]
    with pytest.raises(ValueError, match="expected 0 rounds as the baseline has, got 1"):
        judge_runs(small_gate(), runs)


def test_every_problem_is_listed_with_its_round_and_arm() -> None:
    runs = [
        stored_run(1, "baseline", run_record()),
        stored_run(2, "candidate", with_http_429(run_record())),
    ]
    assert problems_of(runs) == (f"round 2, candidate: {REFUSED}",)


@pytest.mark.parametrize(
    ("candidate", "baseline", "label"),
    [
        (VLLM, VLLM, "gpu"),
        (VLLM, EMBEDDED, "embedded"),
        (EMBEDDED, EMBEDDED, "embedded"),
        (VLLM, ENDPOINT, "endpoint"),
        (ENDPOINT, EMBEDDED, "endpoint"),
    ],
)
def test_the_label_is_that_of_the_arm_that_can_be_compared_least(
    candidate: EngineRecipe, baseline: EngineRecipe, label: str
) -> None:
    assert label_of(small_gate(candidate=candidate, baseline=baseline)) == label


def test_nothing_judged_is_invalid() -> None:
    assert overall_outcome(small_gate(), (), ()) is Outcome.INVALID


def test_problems_outweigh_a_descriptive_endpoint() -> None:
    gate = small_gate(candidate=ENDPOINT)
    assert overall_outcome(gate, (), ()) is Outcome.INCONCLUSIVE
    assert overall_outcome(gate, (), ("some problem",)) is Outcome.INVALID


def test_a_restart_command_makes_an_endpoint_decide() -> None:
    assert descriptive_reason(small_gate(candidate=ENDPOINT)) is not None
    assert descriptive_reason(small_gate(candidate=RESTARTED_ENDPOINT)) is None


def test_notes_name_synthetic_weights_first_and_the_endpoint_after() -> None:
    gate = small_gate(candidate=ENDPOINT, baseline=EMBEDDED.model_copy(update={"model": SYNTHETIC}))
    synthetic, endpoint = notes_on(gate)
    assert synthetic.startswith("baseline: synthetic weights (qwen2-tiny, fp8-dynamic, seed 7)")
    assert endpoint == descriptive_reason(gate)


def test_real_weights_need_no_note() -> None:
    assert notes_on(small_gate()) == ()


@pytest.mark.parametrize(
    ("model", "shown"),
    [("/home/me/models/qwen", "qwen"), ("org/model", "org/model"), ("", "")],
)
def test_a_folder_is_stored_by_its_name_and_a_hub_id_in_full(model: str, shown: str) -> None:
    artifact = BuildArtifact(model=model, provenance={"plugin_hash": "abc"})
    record = engine_record(small_gate().candidate, artifact)
    assert (record.model, record.provenance) == (shown, {"plugin_hash": "abc"})
    assert (record.name, record.digest) == ("B", "digest-b")
    assert record.recipe["kind"] == "embedded"


def test_an_engine_that_was_not_built_has_neither_model_nor_provenance() -> None:
    record = engine_record(small_gate().candidate, None)
    assert (record.model, record.provenance) == (None, {})


def test_the_workload_is_stored_in_full() -> None:
    gate = small_gate()
    record = workload_record(gate)
    assert (record.name, record.digest) == ("small", "digest-of-the-workload")
    assert record.recipe["num_requests"] == 4


def test_a_workloads_digest_covers_its_tokens_wherever_they_lie(tmp_path: Path) -> None:
    def digest(folder: Path, last_token: int) -> str:
        root = write_root(folder)
        write(
            root / "workloads" / "small.yaml",
            WORKLOAD_TEXT.partition("prompts:")[0]
            + "prompts: {source: token_file, path: tokens.jsonl}\nseed: 0\n",
        )
        write(root / "workloads" / "tokens.jsonl", f"[1, {last_token}]\n")
        return workload_record(RecipeLibrary((root,)).load_gate("good")).digest

    here = digest(tmp_path / "here", 2)
    assert digest(tmp_path / "there", 2) == here
    assert digest(tmp_path / "other", 3) != here


def test_a_run_keeps_the_wall_clock_of_its_record() -> None:
    run = stored_run(1, "baseline", run_record())
    assert run.started_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert run.duration_s == 10.0


def test_secrets_in_a_recipes_environment_are_not_stored() -> None:
    engine = small_gate(
        candidate=VLLM.model_copy(update={"environment": {"HF_TOKEN": "hf_abc", "OMP_X": "1"}})
    ).candidate
    stored = engine_record(engine, None).recipe["environment"]
    assert stored == {"HF_TOKEN": "<redacted>", "OMP_X": "1"}
