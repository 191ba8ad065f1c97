"""Builds the stored form of a run and the verdicts over all runs; no I/O."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from pytest_qperf.core.artifacts import BuildArtifact, NamedEngine, ResolvedGate, RunningEngine
from pytest_qperf.core.metrics import NS_PER_S, compute_metrics, request_metrics, summarise_run
from pytest_qperf.core.recipe import SyntheticModel
from pytest_qperf.core.records import Arm, GpuSummary, RequestRecord, RunRecord
from pytest_qperf.core.result import (
    EngineRecord,
    Label,
    RequestColumns,
    RunResult,
    WorkloadRecord,
)
from pytest_qperf.core.schedule import ARMS, ScheduledRun
from pytest_qperf.core.secrets import REDACTED, is_secret_name
from pytest_qperf.core.validity import run_problems
from pytest_qperf.core.verdict import MetricVerdict, Outcome, judge_metric, worst_outcome

TIME_DECIMALS = 6


def run_result(
    gate: ResolvedGate,
    record: RunRecord,
    *,
    scheduled: ScheduledRun,
    engine: RunningEngine,
    gpu: GpuSummary | None,
) -> RunResult:
    """Return the stored form of one run; ``metrics`` is empty if the run has problems."""
    problems = run_problems(record, gate.workload)
    metrics = {} if problems else compute_metrics(summarise_run(record))
    return RunResult(
        round=scheduled.round,
        arm=scheduled.arm,
        started_at=record.started_at,
        duration_s=record.duration_s,
        start_s=engine.start_s,
        facts=engine.facts,
        metrics=metrics,
        requests=request_columns(record),
        event_loop_lag_p99_s=record.client_health.event_loop_lag_p99_s,
        event_loop_lag_max_s=record.client_health.event_loop_lag_max_s,
        send_lag_max_s=record.client_health.send_lag_max_s,
        gpu=gpu,
        problems=problems,
    )


def request_columns(record: RunRecord) -> RequestColumns:
    """Return every request of a run in short, times relative to the first send."""
    origin_ns = min((request.sent_perf_ns for request in record.requests), default=0)
    rows = [_request_row(request, origin_ns) for request in record.requests]
    return RequestColumns(
        is_warmup=tuple(request.is_warmup for request in record.requests),
        isl_tokens=tuple(request.isl_tokens for request in record.requests),
        osl_tokens=tuple(request.osl_tokens for request in record.requests),
        error=tuple(request.error for request in record.requests),
        sent_s=tuple(sent_s for sent_s, _, _, _ in rows),
        ttft_s=tuple(ttft_s for _, ttft_s, _, _ in rows),
        e2e_latency_s=tuple(e2e_s for _, _, e2e_s, _ in rows),
        generation_rate_tokens_per_s=tuple(rate for _, _, _, rate in rows),
    )


def _request_row(
    request: RequestRecord, origin_ns: int
) -> tuple[float, float | None, float | None, float | None]:
    sent_s = round((request.sent_perf_ns - origin_ns) / NS_PER_S, TIME_DECIMALS)
    try:
        metrics = request_metrics(request)
    except ValueError:
        return sent_s, None, None, None
    return (
        sent_s,
        round(metrics.ttft_s, TIME_DECIMALS),
        round(metrics.e2e_latency_s, TIME_DECIMALS),
        round(metrics.generation_rate_tokens_per_s, TIME_DECIMALS),
    )


def judge_runs(gate: ResolvedGate, runs: Sequence[RunResult]) -> tuple[MetricVerdict, ...]:
    """Return one verdict for each threshold; every run must be valid and every round complete."""

    def values(arm: Arm, metric: str) -> list[float]:
        ordered = sorted((run for run in runs if run.arm == arm), key=lambda run: run.round)
        return [run.metrics[metric] for run in ordered]

    return tuple(
        judge_metric(
            metric,
            threshold,
            candidate=values("candidate", metric),
            baseline=values("baseline", metric),
            confidence=gate.recipe.confidence,
        )
        for metric, threshold in gate.recipe.thresholds.items()
    )


def problems_of(runs: Sequence[RunResult]) -> tuple[str, ...]:
    """Return every reason some run is invalid, with its round and arm."""
    return tuple(
        f"round {run.round}, {run.arm}: {problem}" for run in runs for problem in run.problems
    )


def descriptive_reason(gate: ResolvedGate) -> str | None:
    """Return why this gate's figures describe but do not decide, or None if they decide."""
    for arm in ARMS:
        recipe = gate.engine(arm).recipe
        if recipe.kind == "endpoint" and recipe.restart_command is None:
            return (
                f"{arm}: {recipe.base_url} was not restarted between rounds, so its rounds are not "
                "independent and the figures are descriptive only; give the endpoint recipe a "
                "restart_command to get a verdict"
            )
    return None


def overall_outcome(
    gate: ResolvedGate, verdicts: Sequence[MetricVerdict], problems: Sequence[str]
) -> Outcome:
    """Return the gate's outcome: INVALID with problems, INCONCLUSIVE where only descriptive."""
    if problems:
        return Outcome.INVALID
    if descriptive_reason(gate) is not None:
        return Outcome.INCONCLUSIVE
    return worst_outcome([verdict.outcome for verdict in verdicts])


def notes_on(gate: ResolvedGate) -> tuple[str, ...]:
    """Return what a reader must know beside the figures."""
    notes = []
    for arm in ARMS:
        model = gate.engine(arm).recipe.model
        if isinstance(model, SyntheticModel):
            notes.append(
                f"{arm}: synthetic weights ({model.synthetic}, {model.quantization}, "
                f"seed {model.seed}); speed only, the text means nothing"
            )
    reason = descriptive_reason(gate)
    return (*notes, reason) if reason else tuple(notes)


def label_of(gate: ResolvedGate) -> Label:
    """Return which figures this gate's may be compared with."""
    kinds = {gate.candidate.recipe.kind, gate.baseline.recipe.kind}
    if "endpoint" in kinds:
        return "endpoint"
    return "embedded" if "embedded" in kinds else "gpu"


def engine_record(engine: NamedEngine, artifact: BuildArtifact | None) -> EngineRecord:
    """Return the stored form of an arm's engine; None: it was not built."""
    return EngineRecord(
        name=engine.name,
        digest=engine.digest,
        recipe=_without_secrets(engine.recipe.model_dump(mode="json")),
        model=None if artifact is None else _shown_model(artifact.model),
        provenance={} if artifact is None else artifact.provenance,
    )


def _without_secrets(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a stored recipe with the values of secret variables, by their names, left out."""
    shown = {
        name: REDACTED if is_secret_name(name) else value
        for name, value in recipe["environment"].items()
    }
    return recipe | {"environment": shown}


def _shown_model(model: str) -> str:
    """Return a hub id as it is and a folder by its name: where it lies is this host's affair."""
    return PurePath(model).name if PurePath(model).is_absolute() else model


def workload_record(gate: ResolvedGate) -> WorkloadRecord:
    """Return the stored form of a gate's workload."""
    return WorkloadRecord(
        name=gate.workload_name,
        digest=gate.workload_digest,
        recipe=gate.workload.model_dump(mode="json"),
    )
