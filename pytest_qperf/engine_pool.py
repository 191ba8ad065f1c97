"""Engines for fixtures: started when first used, one at a time, behind the host's lock."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import pytest

from pytest_qperf.adapters.hardware import HeldHardware
from pytest_qperf.adapters.load_client import AiohttpLoadClient
from pytest_qperf.adapters.prompt_source import workload_prompts
from pytest_qperf.core.artifacts import ResolvedGate, RunningEngine
from pytest_qperf.core.errors import LoadError
from pytest_qperf.core.metrics import compute_metrics, summarise_run
from pytest_qperf.core.recipe import WorkloadRecipe
from pytest_qperf.core.records import Arm, RequestRecord
from pytest_qperf.core.validity import run_problems
from pytest_qperf.options import QperfOptions
from pytest_qperf.pipeline import Tools, gate_hardware
from pytest_qperf.ports import Progress
from pytest_qperf.progress import pytest_progress

POOL_KEY = pytest.StashKey["EnginePool"]()


class EnginePool:
    """Runs at most one engine; asking for another one ends the first.

    The host's lock is held from the first start until `close`.
    """

    def __init__(
        self, *, options: QperfOptions, log_dir: Path, progress: Progress, tools: Tools
    ) -> None:
        self._options = options
        self._log_dir = log_dir
        self._progress = progress
        self._tools = tools
        self._hardware = ExitStack()
        self._held: tuple[str | None, HeldHardware] | None = None
        self._engine = ExitStack()
        self._current: tuple[str, Arm, RunningEngine] | None = None
        self._num_starts = 0

    def running(self, gate: ResolvedGate, arm: Arm) -> RunningEngine:
        """Return this arm's engine, running; start it, and end another one, where needed.

        Raises BuildError, EngineError or EnvironmentUnfitError.
        """
        if self._current is not None and self._current[:2] == (gate.key, arm):
            return self._current[2]
        self.stop()
        hardware = self._hold(gate)
        engine = gate.engine(arm)
        adapter = self._tools.adapter_for(engine)
        artifact = adapter.build(
            engine, cache_dir=platformdirs.user_cache_path("qperf"), progress=self._progress
        )
        self._num_starts += 1
        self._log_dir.mkdir(parents=True, exist_ok=True)
        log_path = self._log_dir / f"{self._num_starts:03d}-{engine.name}.log"
        self._engine.enter_context(hardware.engine_slot())
        running = self._engine.enter_context(
            adapter.launch(engine, artifact, log_path=log_path, progress=self._progress)
        )
        self._current = (gate.key, arm, running)
        return running

    def stop(self) -> None:
        """End the running engine, if there is one."""
        self._current = None
        self._engine.close()

    def close(self) -> None:
        """End the running engine and let the hardware go."""
        self.stop()
        self._held = None
        self._hardware.close()

    def _hold(self, gate: ResolvedGate) -> HeldHardware:
        hardware = gate_hardware(gate)
        wanted = None if hardware is None else hardware.gpu
        if self._held is not None and self._held[0] == wanted:
            return self._held[1]
        self.close()
        held = self._hardware.enter_context(
            self._tools.hold_hardware(
                hardware,
                lock_timeout_s=self._options.lock_timeout_s,
                note=self._progress.note,
            )
        )
        self._held = (wanted, held)
        return held


@dataclass(frozen=True, slots=True)
class LazyEngine:
    """One arm's engine as a fixture gives it: it starts with the first property that needs it.

    Two of them in one test take turns on the hardware: using one ends the other.
    """

    gate: ResolvedGate
    arm: Arm
    pool: EnginePool
    progress: Progress
    tools: Tools

    @property
    def name(self) -> str:
        """Return the engine recipe's name; starts nothing."""
        return self.gate.engine(self.arm).name

    @property
    def base_url(self) -> str:
        """Return ``http://host:port`` of the running server."""
        return self._running().base_url

    @property
    def served_model(self) -> str:
        """Return the model name that requests must carry."""
        return self._running().served_model

    @property
    def facts(self) -> dict[str, str]:
        """Return what the running server itself confirmed."""
        return self._running().facts

    def measure(self, workload: WorkloadRecipe, *, round_number: int = 1) -> dict[str, float]:
        """Send a workload once and return every metric of the table.

        One run has no error bounds; use a gate to decide anything by it.
        Raises LoadError with every reason if the run is invalid.
        """
        client = self.tools.load_client_for(self.gate.engine(self.arm))
        record = client.run(
            self._running(),
            workload,
            workload_prompts(workload, round_number=round_number),
            progress=self.progress,
        )
        problems = run_problems(record, workload)
        if problems:
            raise LoadError(f"{self.name}: " + "; ".join(problems))
        return compute_metrics(summarise_run(record))

    def complete(self, prompt: tuple[int, ...], *, max_tokens: int) -> RequestRecord:
        """Send one prompt of token ids and return the decoded response with its token times."""
        running = self._running()
        return AiohttpLoadClient().complete_once(
            running.base_url, model=running.served_model, prompt=prompt, max_tokens=max_tokens
        )

    def _running(self) -> RunningEngine:
        return self.pool.running(self.gate, self.arm)


def engine_pool(config: pytest.Config) -> EnginePool:
    """Return the pytest run's pool, made on first use."""
    pool = config.stash.get(POOL_KEY, None)
    if pool is None:
        options = QperfOptions.from_pytest_config(config)
        pool = EnginePool(
            options=options,
            log_dir=options.report_dir / "fixtures" / "logs",
            progress=pytest_progress(config),
            tools=Tools(),
        )
        config.stash[POOL_KEY] = pool
    return pool


def close_engine_pool(config: pytest.Config) -> None:
    """End whatever the run's pool still holds."""
    pool = config.stash.get(POOL_KEY, None)
    if pool is not None:
        pool.close()
