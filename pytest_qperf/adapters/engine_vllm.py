"""Engines of kind vllm: `vllm serve` from an interpreter or a container image."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from uuid import uuid4

from pytest_qperf.adapters import vllm_command
from pytest_qperf.adapters.engine_facts import fact_mismatches, mismatch
from pytest_qperf.adapters.local_server import ServerPlan, ServerStart, serve_locally
from pytest_qperf.adapters.model_source import resolve_model
from pytest_qperf.adapters.readiness import ProgressLine
from pytest_qperf.adapters.recipe_kind import recipe_as
from pytest_qperf.core.artifacts import BuildArtifact, NamedEngine, RunningEngine
from pytest_qperf.core.errors import BuildError, EngineError, RecipeError
from pytest_qperf.core.recipe import VllmEngine

FIND_VLLM = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
FIND_VLLM_TIMEOUT_S = 60.0


class VllmAdapter:
    """Builds nothing but the checkpoint; starts, checks and stops `vllm serve`."""

    def build(
        self, engine: NamedEngine, *, cache_dir: Path, progress: ProgressLine
    ) -> BuildArtifact:
        """Return the model to serve, after a look at the arguments and the interpreter.

        Raises RecipeError for arguments a recipe may not set, BuildError for the rest.
        """
        recipe = recipe_as(engine, VllmEngine)
        problems = vllm_command.reserved_argument_problems(recipe.arguments)
        if problems:
            raise RecipeError([f"engine {engine.name}: {problem}" for problem in problems])
        if recipe.plugin_source is not None:
            raise BuildError(
                f"engine {engine.name}: plugin_source: expected none, got "
                f"{recipe.plugin_source!r}: no plugin can be built into vLLM; remove it"
            )
        if recipe.interpreter is not None:
            _check_interpreter(engine.name, recipe.interpreter, _environment(recipe))
        model = resolve_model(recipe.model, cache_dir=cache_dir, note=progress.update)
        return BuildArtifact(model=model.model, provenance=model.provenance)

    def launch(
        self,
        engine: NamedEngine,
        artifact: BuildArtifact,
        *,
        log_path: Path,
        progress: ProgressLine,
    ) -> AbstractContextManager[RunningEngine]:
        """Return the context in which `vllm serve` runs, generates and is what the recipe states.

        On entering raises EngineError with exit code, last log lines and the log's path.
        """
        recipe = recipe_as(engine, VllmEngine)
        if recipe.image is None:
            start_on_port = partial(_interpreter_start, recipe, artifact.model)
        else:
            _check_docker(engine.name, recipe.image)
            start_on_port = partial(_container_start, recipe, artifact.model)
        plan = ServerPlan(
            engine_name=engine.name,
            ready_timeout_s=recipe.ready_timeout_s,
            start_on_port=start_on_port,
            fact_problems=partial(fact_problems, recipe),
        )
        return serve_locally(plan, log_path=log_path, progress=progress)


def fact_problems(recipe: VllmEngine, facts: Mapping[str, str]) -> list[str]:
    """Return a line for each fact, and for the precision, that the server does not confirm.

    Precision fp8 needs some quantization; bf16 needs none, and bfloat16 weights.
    """
    problems = fact_mismatches(recipe.expect, facts)
    is_quantized = None if "quantization" not in facts else facts["quantization"] != "none"
    if is_quantized != (recipe.precision == "fp8"):
        problems.append(
            mismatch("precision", expected=recipe.precision, facts=facts, asked="quantization")
        )
    elif recipe.precision == "bf16" and facts.get("dtype") != "bfloat16":
        problems.append(mismatch("precision", expected="bf16", facts=facts, asked="dtype"))
    return problems


def _environment(recipe: VllmEngine) -> dict[str, str]:
    return dict(os.environ) | recipe.environment


def _check_interpreter(engine_name: str, interpreter: str, environment: dict[str, str]) -> None:
    """Raise BuildError unless the interpreter runs and has vllm; importing it would take 19 s."""
    path = _interpreter_path(interpreter, environment)
    if path is None:
        raise BuildError(
            f"engine {engine_name}: interpreter: expected a python that can import vllm, "
            f"got {interpreter!r}, which is not there; install vllm and name its python"
        )
    try:
        found = subprocess.run(
            [path, "-c", FIND_VLLM],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FIND_VLLM_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(
            f"engine {engine_name}: interpreter: expected {interpreter!r} to run, got {error}"
        ) from error
    if found.returncode != 0:
        raise BuildError(
            f"engine {engine_name}: interpreter: expected a python that can import vllm, "
            f"got {interpreter!r}, which cannot (exit code {found.returncode}); "
            f"run `{interpreter} -m pip install vllm`\n{found.stderr[-2000:]}".rstrip()
        )


def _interpreter_path(interpreter: str, environment: Mapping[str, str]) -> str | None:
    """Return the absolute path of a command name or path, or None if it is not executable."""
    found = shutil.which(str(Path(interpreter).expanduser()), path=environment.get("PATH"))
    # Not resolved: a virtual environment's python is a link, and its place is what selects it.
    return None if found is None else str(Path(found).absolute())


def _check_docker(engine_name: str, image: str) -> None:
    if shutil.which("docker") is None:
        raise EngineError(
            f"engine {engine_name}: image: expected docker on PATH to run {image!r}, got none; "
            f"install docker, or give the recipe an interpreter"
        )


def _interpreter_start(recipe: VllmEngine, model: str, port: int) -> ServerStart:
    interpreter, environment = recipe.interpreter or "", _environment(recipe)
    command = vllm_command.interpreter_command(
        _interpreter_path(interpreter, environment) or interpreter,
        model,
        port=port,
        arguments=recipe.arguments,
    )
    return ServerStart(command=command, environment=environment)


def _container_start(recipe: VllmEngine, model: str, port: int) -> ServerStart:
    environment = _environment(recipe)
    hub_cache = Path(environment.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    container = vllm_command.ContainerRun(
        name=f"qperf-{uuid4().hex[:12]}",
        gpus=environment.get("CUDA_VISIBLE_DEVICES"),
        hub_cache=hub_cache if hub_cache.is_dir() else None,
        passed_variables=tuple(
            name
            for name in vllm_command.PASSED_TO_CONTAINER
            if name in os.environ and name not in recipe.environment
        ),
    )
    return ServerStart(
        command=vllm_command.container_command(recipe, model, port=port, container=container),
        environment=dict(os.environ),
        cleanup_command=vllm_command.container_cleanup_command(container.name),
    )
