"""Small gates and runs with chosen figures: baseline engine "A", candidate engine "B"."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pytest_qperf.core.artifacts import NamedEngine, ResolvedGate, RunningEngine
from pytest_qperf.core.assemble import run_result
from pytest_qperf.core.recipe import (
    EmbeddedEngine,
    EndpointEngine,
    EngineRecipe,
    GateRecipe,
    Hardware,
    RandomTokenPrompts,
    SyntheticModel,
    Threshold,
    VllmEngine,
    WorkloadRecipe,
)
from pytest_qperf.core.records import Arm, ClientHealth, RequestRecord, RunRecord, TokenChunk
from pytest_qperf.core.result import RunResult
from pytest_qperf.core.schedule import ScheduledRun

NS_PER_S = 1_000_000_000
WAVE_S = 100  # between the sends of two waves: longer than any request here takes
STARTED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RATE = "generation_rate_mean_tokens_per_s"
TTFT = "ttft_mean_s"

EMBEDDED = EmbeddedEngine(
    kind="embedded", description="built in", model="some/model", precision="fp32"
)
SYNTHETIC = SyntheticModel(synthetic="qwen2-tiny", quantization="fp8-dynamic", seed=7)
VLLM = VllmEngine(
    kind="vllm",
    description="the server",
    model="some/model",
    precision="fp8",
    interpreter="python3",
)
ENDPOINT = EndpointEngine(
    kind="endpoint", description="elsewhere", model="", base_url="http://host:8000"
)
RESTARTED_ENDPOINT = ENDPOINT.model_copy(update={"restart_command": ("restart",)})

WORKLOAD = WorkloadRecipe(
    description="two waves of two",
    isl_tokens=8,
    osl_tokens=5,
    concurrency=2,
    num_requests=4,
    arrival="burst",
    prompts=RandomTokenPrompts(source="random_tokens", min_token_id=1, max_token_id=200),
    seed=0,
)


def small_gate(
    *,
    baseline: EngineRecipe = EMBEDDED,
    candidate: EngineRecipe = EMBEDDED,
    min_rate_ratio: float = 1.1,
    max_ttft_ratio: float = 1.1,
    workload: WorkloadRecipe = WORKLOAD,
    hardware: Hardware | None = None,
) -> ResolvedGate:
    """Two rounds; the rate must rise and TTFT must not, by the given ratios."""
    recipe = GateRecipe(
        description="B against A",
        candidate="B",
        baseline="A",
        workload="small",
        hardware=hardware,
        rounds=2,
        thresholds={
            RATE: Threshold(min_ratio_to_baseline=min_rate_ratio),
            TTFT: Threshold(max_ratio_to_baseline=max_ttft_ratio),
        },
    )
    root = Path("engine_recipes")
    return ResolvedGate(
        name="small-gate",
        path=root / "gates" / "small-gate.yaml",
        recipe=recipe,
        candidate=NamedEngine("B", candidate, root, "digest-b"),
        baseline=NamedEngine("A", baseline, root, "digest-a"),
        workload_name="small",
        workload=workload,
        workload_digest="digest-of-the-workload",
        digest="digest-of-the-gate",
    )


def run_record(
    workload: WorkloadRecipe = WORKLOAD, *, rate_tokens_per_s: float = 4.0, ttft_s: float = 0.5
) -> RunRecord:
    """Every request alike: its first token after ttft_s, the others one by one at the rate."""
    requests = tuple(
        _request(index, workload, rate_tokens_per_s, ttft_s)
        for index in range(workload.num_requests)
    )
    health = ClientHealth(
        event_loop_lag_p99_s=0.001, event_loop_lag_max_s=0.002, send_lag_max_s=0.003
    )
    return RunRecord(
        started_at=STARTED_AT, duration_s=10.0, requests=requests, client_health=health
    )


def _request(index: int, workload: WorkloadRecipe, rate: float, ttft_s: float) -> RequestRecord:
    sent_ns = index // workload.concurrency * WAVE_S * NS_PER_S
    chunks = tuple(
        TokenChunk(perf_ns=sent_ns + round((ttft_s + number / rate) * NS_PER_S), num_tokens=1)
        for number in range(workload.osl_tokens)
    )
    return RequestRecord(
        index=index,
        is_warmup=index < workload.concurrency,
        scheduled_perf_ns=sent_ns,
        sent_perf_ns=sent_ns,
        ended_perf_ns=chunks[-1].perf_ns,
        http_status=200,
        isl_tokens=workload.isl_tokens,
        osl_tokens=workload.osl_tokens,
        cached_tokens=None,
        finish_reason="length",
        chunks=chunks,
        error=None,
    )


def with_http_429(record: RunRecord) -> RunRecord:
    """The same run, its last request refused."""
    refused = replace(
        record.requests[-1],
        http_status=429,
        error="HTTP status: expected 200, got 429",
        isl_tokens=None,
        osl_tokens=None,
        finish_reason=None,
    )
    return replace(record, requests=(*record.requests[:-1], refused))


REFUSED = "1 of 4 requests: HTTP status (first: request 3: expected 200, got 429)"


def running_engine(name: str = "A") -> RunningEngine:
    return RunningEngine(
        base_url="http://127.0.0.1:1",
        served_model=name,
        facts={"version": "1.0"},
        start_s=2.5,
        log_path=None,
        pid=None,
    )


def stored_run(
    round_number: int, arm: Arm, record: RunRecord, gate: ResolvedGate | None = None
) -> RunResult:
    return run_result(
        gate or small_gate(),
        record,
        scheduled=ScheduledRun(round_number, arm),
        engine=running_engine(),
        gpu=None,
    )
