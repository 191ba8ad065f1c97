"""Engines of kind endpoint: a server somebody else runs, restarted by a command if there is one."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from pytest_qperf.adapters.engine_facts import confirmed_facts, fact_mismatches, facts_error
from pytest_qperf.adapters.readiness import (
    LOG_TAIL_LINES,
    ProgressLine,
    ReadyTarget,
    wait_until_generating,
)
from pytest_qperf.adapters.recipe_kind import recipe_as
from pytest_qperf.core.artifacts import BuildArtifact, NamedEngine, RunningEngine
from pytest_qperf.core.errors import BuildError, EngineError, RecipeError
from pytest_qperf.core.recipe import EndpointEngine


class EndpointAdapter:
    """Attaches to a URL; starts and stops nothing of its own."""

    def build(
        self, engine: NamedEngine, *, cache_dir: Path, progress: ProgressLine
    ) -> BuildArtifact:
        """Return the model name to ask for.

        Raises RecipeError for a URL without a host or with a wrong port, BuildError for a
        synthetic checkpoint.
        """
        del cache_dir, progress
        recipe = recipe_as(engine, EndpointEngine)
        if not _is_server_url(recipe.base_url):
            raise RecipeError(
                [
                    f"engine {engine.name}: base_url: expected http(s)://HOST, http(s)://HOST:PORT "
                    f"or either with a path, got {recipe.base_url!r}"
                ]
            )
        if not isinstance(recipe.model, str):
            raise BuildError(
                f"engine {engine.name}: model: expected the name that {recipe.base_url} serves, "
                f'got a synthetic checkpoint; write the name, or "" to ask the server'
            )
        return BuildArtifact(model=recipe.model)

    @contextlib.contextmanager
    def launch(
        self,
        engine: NamedEngine,
        artifact: BuildArtifact,
        *,
        log_path: Path,
        progress: ProgressLine,
    ) -> Iterator[RunningEngine]:
        """Yield the server once it generates and is what the recipe states.

        ``log_path`` takes the restart command's output. Raises EngineError.
        """
        recipe = recipe_as(engine, EndpointEngine)
        if recipe.restart_command is not None:
            progress.update(f"engine {engine.name}: running its restart command")
            _restart(engine.name, recipe, log_path)
        target = ReadyTarget(
            name=f"engine {engine.name}",
            base_url=server_root(recipe.base_url),
            timeout_s=recipe.ready_timeout_s,
            model=artifact.model,
            is_already_serving=recipe.restart_command is None,
        )
        ready = wait_until_generating(None, target, progress=progress)
        facts = confirmed_facts_of(target)
        problems = fact_mismatches(recipe.expect, facts)
        if problems:
            raise facts_error(engine.name, problems, log_path=None)
        yield RunningEngine(
            base_url=target.base_url,
            served_model=ready.served_model,
            facts=facts,
            start_s=ready.start_s,
            log_path=None,
            pid=None,
        )


def server_root(base_url: str) -> str:
    """Return the URL without a trailing slash and without the /v1 that OpenAI clients want."""
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def _is_server_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or out of range
        return False


def confirmed_facts_of(target: ReadyTarget) -> dict[str, str]:
    """Return what the server confirms; raises EngineError if it stops answering."""
    try:
        return confirmed_facts(target.base_url, log_text=None)
    except OSError as error:
        raise EngineError(
            f"{target.name}: expected answers about its version and configuration from "
            f"{target.base_url}, got {type(error).__name__}: {error}"
        ) from error


def _restart(engine_name: str, recipe: EndpointEngine, log_path: Path) -> None:
    """Run the restart command to its end; a server it leaves in the background stays."""
    command = list(recipe.restart_command or ())
    environment = dict(os.environ) | recipe.environment
    log_path.parent.mkdir(parents=True, exist_ok=True)
    where = f"engine {engine_name}: restart_command"
    # Output goes to a file: a pipe would stay open as long as the restarted server holds it.
    with log_path.open("wb") as log:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(f"{where}: expected {command[0]!r} to run, got {error}") from error
        code = _wait_or_kill(process, recipe.ready_timeout_s)
    if code != 0:
        got = f"no end within {recipe.ready_timeout_s:g} s" if code is None else f"exit code {code}"
        lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(lines[-LOG_TAIL_LINES:])
        raise EngineError(
            f"{where}: expected exit code 0, got {got}; "
            f"last {LOG_TAIL_LINES} lines of {log_path}:\n{tail}"
        )


def _wait_or_kill(process: "subprocess.Popen[bytes]", timeout_s: float) -> int | None:
    """Return the exit code, or None after killing the command's process group at the timeout."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        return None
    except BaseException:
        _kill_group(process)
        raise


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
