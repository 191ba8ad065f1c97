"""The whole flow of a gate, in `run_gate`; `GateRun` holds its steps."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pytest_qperf.adapters.engines import adapter_for
from pytest_qperf.adapters.environment import EnvironmentRecord, describe_environment, fingerprint
from pytest_qperf.adapters.hardware import HeldHardware, hold_hardware, num_gpus
from pytest_qperf.adapters.load_client import AiohttpLoadClient
from pytest_qperf.adapters.prompt_source import workload_prompts
from pytest_qperf.adapters.result_store import ResultStore
from pytest_qperf.core.artifacts import BuildArtifact, NamedEngine, ResolvedGate, RunningEngine
from pytest_qperf.core.assemble import (
    engine_record,
    judge_runs,
    label_of,
    notes_on,
    overall_outcome,
    problems_of,
    run_result,
    workload_record,
)
from pytest_qperf.core.errors import EngineError, QperfError, ResultError
from pytest_qperf.core.recipe import Hardware
from pytest_qperf.core.records import Arm, GpuSummary, RunRecord
from pytest_qperf.core.result import EngineRecord, GateResult
from pytest_qperf.core.schedule import ARMS, ScheduledRun, run_schedule
from pytest_qperf.core.validity import run_problems
from pytest_qperf.core.verdict import MetricVerdict
from pytest_qperf.ports import EngineAdapter, LoadClient, Progress
from pytest_qperf.report.terminal import one_line, render_result

WARMUP_OSL_TOKENS = 8
WARMUP_ROUND = 0  # rounds count from 1, so no warm-up prompt is ever a measured one


@dataclass(frozen=True, slots=True)
class GateRequest:
    """One gate to run: which, how often, and where its files go.

    ``resume_folder`` is the run folder of an interrupted run of the same gate, or None.
    """

    gate: ResolvedGate
    num_rounds: int
    report_dir: Path
    cache_dir: Path
    repository: Path
    command: tuple[str, ...]
    lock_timeout_s: float
    resume_folder: Path | None = None


def _real_load_client(engine: NamedEngine) -> LoadClient:
    # vLLM and the embedded engine stream token ids; another server may refuse the field.
    return AiohttpLoadClient(return_token_ids=engine.recipe.kind in ("vllm", "embedded"))


@dataclass(frozen=True, slots=True)
class Tools:
    """The outside world as the pipeline uses it; the defaults are the real one."""

    adapter_for: Callable[[NamedEngine], EngineAdapter] = adapter_for
    load_client_for: Callable[[NamedEngine], LoadClient] = _real_load_client
    hold_hardware: Callable[..., AbstractContextManager[HeldHardware]] = hold_hardware


def run_gate(request: GateRequest, *, progress: Progress, tools: Tools | None = None) -> GateResult:
    """Run a gate: recipe, build, serve, warm up, load, samples, statistics, verdict, report.

    Returns the result, which is stored too. What cannot be measured becomes an INVALID result
    with its reasons, never an exception; an interruption passes through and keeps every finished
    run. Raises ResultError if the run folder cannot be used.
    """
    run = GateRun(request, progress, tools or Tools())
    try:
        with run.hardware() as hardware:
            run.begin(hardware)
            artifacts = {arm: run.build(arm) for arm in ARMS}
            for scheduled in run.unfinished():
                artifact = artifacts[scheduled.arm]
                with run.serve(scheduled, artifact, hardware) as engine:
                    run.warm_up(scheduled, engine)
                    record, gpu = run.load(scheduled, engine, hardware)
                run.keep(scheduled, engine, record, gpu)
        run.judge()
    except ResultError:
        raise  # the folder is another run's, or cannot be written: nothing more is written there
    except QperfError as error:
        run.fail(error)
    return run.report()


class GateRun:
    """One gate run in progress: its request, its run folder and what it found so far."""

    def __init__(self, request: GateRequest, progress: Progress, tools: Tools) -> None:
        self._request = request
        self._gate = request.gate
        self._progress = progress
        self._tools = tools
        self._started_at = datetime.now(UTC)
        self._store = _open_store(request)
        self._runs = list(self._store.finished_runs())
        self._artifacts: dict[Arm, BuildArtifact] = {}
        self._environment: EnvironmentRecord | None = None
        self._verdicts: tuple[MetricVerdict, ...] = ()
        self._problems: tuple[str, ...] = ()
        progress.note(f"{self._gate.name}: run folder {self._store.folder}")
        if self._runs:
            progress.note(
                f"{self._gate.name}: {len(self._runs) // 2} of {request.num_rounds} rounds "
                "finished before"
            )

    @contextmanager
    def hardware(self) -> Iterator[HeldHardware]:
        """Hold the gate's hardware."""
        with self._tools.hold_hardware(
            gate_hardware(self._gate),
            lock_timeout_s=self._request.lock_timeout_s,
            note=self._progress.note,
        ) as held:
            yield held

    def begin(self, hardware: HeldHardware) -> None:
        """Record the environment; a resumed run must have been started in one like it."""
        self._environment = describe_environment(
            hardware.gpu, num_gpus=num_gpus(), repository=self._request.repository
        )
        self._store.begin(
            self._gate,
            num_rounds=self._request.num_rounds,
            fingerprint=fingerprint(self._environment),
        )

    def build(self, arm: Arm) -> BuildArtifact:
        """Return one arm's artefacts, from the cache where they exist.

        A resumed run must go on with the build it was started with: a recipe names the folder of
        a plugin's sources, and those may have been edited since.
        """
        engine = self._gate.engine(arm)
        self._progress.update(f"{self._gate.name}: building {arm} {engine.name}")
        artifact = self._tools.adapter_for(engine).build(
            engine, cache_dir=self._request.cache_dir, progress=self._progress
        )
        self._store.check_build(arm, artifact.content_hashes())
        self._artifacts[arm] = artifact
        return artifact

    def unfinished(self) -> Iterator[ScheduledRun]:
        """Yield the runs still to do, in ABBA order; end early once a run turned out invalid."""
        finished = {run.round for run in self._runs}
        for scheduled in run_schedule(self._request.num_rounds):
            if scheduled.round in finished:
                continue
            if any(run.problems for run in self._runs):
                return
            yield scheduled

    @contextmanager
    def serve(
        self, scheduled: ScheduledRun, artifact: BuildArtifact, hardware: HeldHardware
    ) -> Iterator[RunningEngine]:
        """Start one arm's engine afresh; it is gone, and its memory back, when this ends."""
        engine = self._gate.engine(scheduled.arm)
        with (
            hardware.engine_slot(),
            self._tools.adapter_for(engine).launch(
                engine,
                artifact,
                log_path=self._store.log_path(scheduled.round, scheduled.arm),
                progress=_Prefixed(self._progress, self._where(scheduled)),
            ) as running,
        ):
            yield running

    def warm_up(self, scheduled: ScheduledRun, engine: RunningEngine) -> None:
        """Send one wave of short requests, so that no measured wave is the first of its shape.

        Raises EngineError if the engine does not answer them exactly: it would not answer the
        workload either.
        """
        workload = self._gate.workload.model_copy(
            update={
                "num_requests": self._gate.workload.concurrency,
                "osl_tokens": min(WARMUP_OSL_TOKENS, self._gate.workload.osl_tokens),
                "arrival": "burst",
            }
        )
        prompts = workload_prompts(self._gate.workload, round_number=WARMUP_ROUND)
        record = self._tools.load_client_for(self._gate.engine(scheduled.arm)).run(
            engine,
            workload,
            prompts[: workload.num_requests],
            progress=_Prefixed(self._progress, f"{self._where(scheduled)}: warming up"),
        )
        problems = run_problems(record, workload)
        if problems:
            raise EngineError(f"{self._where(scheduled)}: warm-up: " + "; ".join(problems))

    def load(
        self, scheduled: ScheduledRun, engine: RunningEngine, hardware: HeldHardware
    ) -> tuple[RunRecord, GpuSummary | None]:
        """Send the workload; return every request and what the GPU did meanwhile."""
        prompts = workload_prompts(self._gate.workload, round_number=scheduled.round)
        with hardware.sampling() as gpu_summary:  # not while prompts are drawn: the GPU idles
            record = self._tools.load_client_for(self._gate.engine(scheduled.arm)).run(
                engine,
                self._gate.workload,
                prompts,
                progress=_Prefixed(self._progress, self._where(scheduled)),
            )
        return record, gpu_summary()

    def keep(
        self,
        scheduled: ScheduledRun,
        engine: RunningEngine,
        record: RunRecord,
        gpu: GpuSummary | None,
    ) -> None:
        """Turn a record into the run's metrics, or its problems, and store both."""
        run = run_result(self._gate, record, scheduled=scheduled, engine=engine, gpu=gpu)
        self._runs.append(run)
        self._store.add_run(run, record)
        shown = [
            f"{name} {run.metrics[name]:.4g}"
            for name in self._gate.recipe.thresholds
            if name in run.metrics
        ]
        self._progress.note(f"{self._where(scheduled)}: {', '.join(shown) or 'INVALID'}")

    def judge(self) -> None:
        """Judge every threshold over all rounds; invalid runs are reasons, not data."""
        self._problems = problems_of(self._runs)
        if not self._problems:
            self._verdicts = judge_runs(self._gate, self._runs)

    def fail(self, error: QperfError) -> None:
        """Keep the error as the reason that nothing is judged."""
        self._problems = (*problems_of(self._runs), str(error))
        self._verdicts = ()

    def report(self) -> GateResult:
        """Return the result, stored beside its table."""
        result = GateResult(
            gate=self._gate.name,
            description=self._gate.recipe.description,
            digest=self._gate.digest,
            label=label_of(self._gate),
            outcome=overall_outcome(self._gate, self._verdicts, self._problems),
            problems=self._problems,
            started_at=self._started_at,
            finished_at=datetime.now(UTC),
            command=self._request.command,
            environment=None if self._environment is None else asdict(self._environment),
            fingerprint=None if self._environment is None else fingerprint(self._environment),
            num_rounds_planned=self._request.num_rounds,
            confidence=self._gate.recipe.confidence,
            candidate=self._engine_record("candidate"),
            baseline=self._engine_record("baseline"),
            workload=workload_record(self._gate),
            thresholds={
                name: threshold.limits() for name, threshold in self._gate.recipe.thresholds.items()
            },
            runs=tuple(self._runs),
            verdicts=self._verdicts,
            notes=notes_on(self._gate),
        )
        path = self._store.save_result(result, render_result(result))
        self._progress.note(f"{one_line(result)}; {path}")
        return result

    def _engine_record(self, arm: Arm) -> EngineRecord:
        return engine_record(self._gate.engine(arm), self._artifacts.get(arm))

    def _where(self, scheduled: ScheduledRun) -> str:
        return (
            f"{self._gate.name}: round {scheduled.round} of {self._request.num_rounds}, "
            f"{scheduled.arm}"
        )


def gate_hardware(gate: ResolvedGate) -> Hardware | None:
    """Return the hardware to hold for a gate; with an endpoint none, it may be elsewhere."""
    return None if label_of(gate) == "endpoint" else gate.recipe.hardware


@dataclass(frozen=True, slots=True)
class _Prefixed:
    """Progress whose updates say which run they are about."""

    progress: Progress
    where: str

    def update(self, text: str) -> None:
        """Show what is happening now."""
        self.progress.update(f"{self.where}: {text}")

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self.progress.note(f"{self.where}: {text}")


def _open_store(request: GateRequest) -> ResultStore:
    if request.resume_folder is not None:
        return ResultStore.resume(
            request.resume_folder, request.gate, num_rounds=request.num_rounds
        )
    return ResultStore.create(request.report_dir, request.gate)
