"""Serving on this host: supervised process, free port, first token, confirmed facts."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pytest_qperf.adapters.engine_facts import confirmed_facts, facts_error
from pytest_qperf.adapters.readiness import ProgressLine, ReadyTarget, wait_until_generating
from pytest_qperf.adapters.supervisor import free_port, supervise
from pytest_qperf.core.artifacts import RunningEngine
from pytest_qperf.core.errors import EngineError

PORT_TAKEN = "address already in use"


@dataclass(frozen=True, slots=True)
class ServerStart:
    """One start of a server: what to run, with which environment, and how to stop it."""

    command: list[str]
    environment: dict[str, str]
    cleanup_command: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """How to start one engine on a given port, and what to require of it.

    ``fact_problems`` returns a line for each fact that is not as the recipe states.
    """

    engine_name: str
    ready_timeout_s: float
    start_on_port: Callable[[int], ServerStart]
    fact_problems: Callable[[dict[str, str]], list[str]]


@contextlib.contextmanager
def serve_locally(
    plan: ServerPlan, *, log_path: Path, progress: ProgressLine
) -> Iterator[RunningEngine]:
    """Yield the engine once it generates and is what its recipe states; leave no process behind.

    A port that somebody takes between choosing and binding is exchanged for another, once.
    Raises EngineError.
    """
    logged_before = _size_bytes(log_path)

    def start() -> AbstractContextManager[RunningEngine]:
        return _serve_on_port(plan, free_port(), log_path=log_path, progress=progress)

    with ExitStack() as stack:
        try:
            running = stack.enter_context(start())
        except EngineError:
            if PORT_TAKEN not in log_text_since(log_path, logged_before).lower():
                raise
            progress.note(f"engine {plan.engine_name}: its port was taken; trying another")
            running = stack.enter_context(start())
        yield running


def log_text_since(log_path: Path, start_byte: int) -> str:
    """Return what a log holds from ``start_byte`` on; empty if there is no such file."""
    if not log_path.exists():
        return ""
    with log_path.open("rb") as log:
        log.seek(start_byte)
        return log.read().decode(errors="replace")


def _size_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextlib.contextmanager
def _serve_on_port(
    plan: ServerPlan, port: int, *, log_path: Path, progress: ProgressLine
) -> Iterator[RunningEngine]:
    start = plan.start_on_port(port)
    logged_before = _size_bytes(log_path)
    target = ReadyTarget(
        name=f"engine {plan.engine_name}",
        base_url=f"http://127.0.0.1:{port}",
        timeout_s=plan.ready_timeout_s,
    )
    with supervise(
        start.command,
        environment=start.environment,
        log_path=log_path,
        cleanup_command=start.cleanup_command,
    ) as process:
        ready = wait_until_generating(process, target, progress=progress)
        try:
            log_text = log_text_since(log_path, logged_before)
            facts = confirmed_facts(target.base_url, log_text=log_text)
        except OSError as error:
            raise EngineError(
                f"{target.name}: expected answers about its version and configuration, "
                f"got {type(error).__name__}: {error}; log: {log_path}"
            ) from error
        problems = plan.fact_problems(facts)
        if problems:
            raise facts_error(plan.engine_name, problems, log_path=log_path)
        yield RunningEngine(
            base_url=target.base_url,
            served_model=ready.served_model,
            facts=facts,
            start_s=ready.start_s,
            log_path=log_path,
            pid=process.pid,
        )
