"""The world outside `run_gate`, scripted: engines, a load client and hardware that keep a log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.named_engines import RecordedProgress
from fakes.small_gates import run_record, running_engine, small_gate
from pytest_qperf.adapters.hardware import HeldHardware
from pytest_qperf.core.artifacts import BuildArtifact, NamedEngine, ResolvedGate, RunningEngine
from pytest_qperf.core.recipe import Hardware, WorkloadRecipe
from pytest_qperf.core.records import RunRecord
from pytest_qperf.core.result import GateResult
from pytest_qperf.pipeline import GateRequest, Tools, run_gate
from pytest_qperf.ports import Progress

Spoil = Callable[[RunRecord], RunRecord]


@dataclass
class FakeWorld:
    """Everything that happens is one line of ``log``, engines by their recipes' names.

    ``raises`` maps a line and how often it happened so far (from 1) to what then goes wrong;
    ``spoils`` does the same for the record that a line of the load client returns.
    ``rates`` and ``ttfts_s`` hold a value for each measured run of an engine, the last for all
    that follow.
    """

    rates: dict[str, list[float]] = field(default_factory=lambda: {"A": [4.0], "B": [5.0]})
    ttfts_s: dict[str, list[float]] = field(default_factory=lambda: {"A": [0.5], "B": [0.5]})
    raises: dict[tuple[str, int], BaseException] = field(default_factory=dict)
    spoils: dict[tuple[str, int], Spoil] = field(default_factory=dict)
    sources: str = "sources"
    log: list[str] = field(default_factory=list)
    prompts: dict[str, list[tuple[tuple[int, ...], ...]]] = field(default_factory=dict)
    held: list[Hardware | None] = field(default_factory=list)

    def happen(self, line: str) -> int:
        """Log a line; return how often it happened, or raise what is scripted for that time."""
        self.log.append(line)
        count = self.log.count(line)
        if (line, count) in self.raises:
            raise self.raises[line, count]
        return count

    def tools(self) -> Tools:
        return Tools(
            adapter_for=lambda _engine: _FakeAdapter(self),
            load_client_for=lambda engine: _FakeLoadClient(self, engine.name),
            hold_hardware=self._hold_hardware,
        )

    @contextmanager
    def _hold_hardware(self, hardware: Hardware | None, **_: Any) -> Iterator[HeldHardware]:
        self.held.append(hardware)
        self.happen("lock")
        try:
            yield HeldHardware(None)
        finally:
            self.happen("unlock")


@dataclass
class _FakeAdapter:
    world: FakeWorld

    def build(self, engine: NamedEngine, *, cache_dir: Path, progress: Progress) -> BuildArtifact:
        self.world.happen(f"build {engine.name}")
        return BuildArtifact(
            model="/cache/checkpoint-of-both",
            provenance={
                "plugin_hash": f"{self.world.sources} of {engine.name}",
                "plugin_build_s": str(len(self.world.log)),
            },
        )

    @contextmanager
    def launch(
        self, engine: NamedEngine, artifact: BuildArtifact, *, log_path: Path, progress: Progress
    ) -> Iterator[RunningEngine]:
        self.world.happen(f"start {engine.name}")
        log_path.write_text(f"the log of {engine.name}\n")
        try:
            yield running_engine(engine.name)
        finally:
            self.world.log.append(f"stop {engine.name}")


@dataclass
class _FakeLoadClient:
    world: FakeWorld
    name: str

    def run(
        self,
        engine: RunningEngine,
        workload: WorkloadRecipe,
        prompts: tuple[tuple[int, ...], ...],
        *,
        progress: Progress,
    ) -> RunRecord:
        assert engine.served_model == self.name
        assert len(prompts) == workload.num_requests
        is_warm_up = workload.num_requests == workload.concurrency
        line = f"{'warm' if is_warm_up else 'load'} {self.name}"
        self.world.prompts.setdefault(line, []).append(prompts)
        count = self.world.happen(line)
        record = run_record(
            workload,
            rate_tokens_per_s=_nth(self.world.rates[self.name], count),
            ttft_s=_nth(self.world.ttfts_s[self.name], count),
        )
        spoil = self.world.spoils.get((line, count))
        return record if spoil is None else spoil(record)


def _nth(values: list[float], count: int) -> float:
    return values[min(count, len(values)) - 1]


@dataclass
class GateBench:
    """Runs the small gate in a folder, with a world that the test scripts."""

    folder: Path
    world: FakeWorld = field(default_factory=FakeWorld)
    gate: ResolvedGate = field(default_factory=small_gate)
    progress: RecordedProgress = field(default_factory=RecordedProgress)

    def run(self, *, num_rounds: int = 2, resume_folder: Path | None = None) -> GateResult:
        request = GateRequest(
            gate=self.gate,
            num_rounds=num_rounds,
            report_dir=self.folder / "report",
            cache_dir=self.folder / "cache",
            repository=self.folder,
            command=("pytest", "--qperf"),
            lock_timeout_s=1.0,
            resume_folder=resume_folder,
        )
        return run_gate(request, progress=self.progress, tools=self.world.tools())

    def run_folder(self) -> Path:
        """Return the only run folder there is."""
        (folder,) = (self.folder / "report" / self.gate.name).iterdir()
        return folder

    def forget(self) -> None:
        """Begin a new log; counts of lines begin again too."""
        self.world = FakeWorld()
