"""A gate's result as it is stored: one versioned JSON document, readable for ever.

Written once, read by renderers and by `--qperf-resume`. Raw token times lie beside it, see
`adapters/result_store.py`.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pytest_qperf.core.records import Arm, GpuSummary
from pytest_qperf.core.verdict import MetricVerdict, Outcome

Label = Literal["gpu", "embedded", "endpoint"]


class StoredModel(BaseModel):
    """Refuses unknown keys: a document of another version is an error, not half a result.

    Refuses numbers that are not finite: JSON has none, and what was stored could not be read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RequestColumns(StoredModel):
    """A summary of every request of a run, one list a column, in request order.

    Times in seconds, rounded to a microsecond; None where a request has no such value.
    """

    is_warmup: tuple[bool, ...] = ()
    isl_tokens: tuple[int | None, ...] = ()
    osl_tokens: tuple[int | None, ...] = ()
    sent_s: tuple[float, ...] = ()
    ttft_s: tuple[float | None, ...] = ()
    e2e_latency_s: tuple[float | None, ...] = ()
    generation_rate_tokens_per_s: tuple[float | None, ...] = ()
    error: tuple[str | None, ...] = ()


class RunResult(StoredModel):
    """One run: one fresh start of one arm's engine, and everything measured on it."""

    round: int
    arm: Arm
    started_at: datetime
    duration_s: float
    start_s: float
    facts: dict[str, str]
    metrics: dict[str, float]
    requests: RequestColumns
    event_loop_lag_p99_s: float
    event_loop_lag_max_s: float
    send_lag_max_s: float
    gpu: GpuSummary | None
    problems: tuple[str, ...]


class EngineRecord(StoredModel):
    """Which engine an arm was: the recipe in full, its digest, and what was built for it.

    ``model`` is None if the engine was never built.
    """

    name: str
    digest: str
    recipe: dict[str, Any]
    model: str | None
    provenance: dict[str, str]


class WorkloadRecord(StoredModel):
    """The workload in full."""

    name: str
    digest: str
    recipe: dict[str, Any]


class GateResult(StoredModel):
    """Everything a gate run found; ``problems`` says why where the outcome is INVALID.

    ``notes`` says what a reader must know beside the figures, such as synthetic weights.
    ``label`` keeps figures apart that must never be compared: an embedded engine's are not a GPU's.
    """

    schema_version: Literal[1] = 1
    gate: str
    description: str
    digest: str
    label: Label
    outcome: Outcome
    problems: tuple[str, ...]
    started_at: datetime
    finished_at: datetime
    command: tuple[str, ...]
    environment: dict[str, Any] | None
    fingerprint: str | None
    num_rounds_planned: int
    confidence: float
    candidate: EngineRecord
    baseline: EngineRecord
    workload: WorkloadRecord
    thresholds: dict[str, dict[str, float]]
    runs: tuple[RunResult, ...]
    verdicts: tuple[MetricVerdict, ...]
    notes: tuple[str, ...]

    def verdict(self, metric: str) -> MetricVerdict:
        """Return the verdict on one metric; raise KeyError if it was not judged."""
        for verdict in self.verdicts:
            if verdict.metric == metric:
                return verdict
        raise KeyError(f"{metric}: not judged by gate {self.gate}")

    def run_values(self, arm: Arm, metric: str) -> tuple[float, ...]:
        """Return one arm's run-level values of a metric, in round order."""
        runs = sorted((run for run in self.runs if run.arm == arm), key=lambda run: run.round)
        return tuple(run.metrics[metric] for run in runs if metric in run.metrics)
