"""Engines of kind embedded: this package's NumPy engine, in a process of its own."""

import os
import sys
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from pytest_qperf.adapters.engine_facts import fact_mismatches
from pytest_qperf.adapters.local_server import ServerPlan, ServerStart, serve_locally
from pytest_qperf.adapters.model_source import resolve_model
from pytest_qperf.adapters.plugin_build import build_host_library
from pytest_qperf.adapters.readiness import ProgressLine
from pytest_qperf.adapters.recipe_kind import recipe_as
from pytest_qperf.adapters.resources import plugin_source_dir
from pytest_qperf.core.artifacts import BuildArtifact, NamedEngine, RunningEngine
from pytest_qperf.core.errors import BuildError
from pytest_qperf.core.recipe import EmbeddedEngine

PLUGIN = "fp8_gemm"


class EmbeddedAdapter:
    """Makes the checkpoint, builds the plugin's host library, starts the NumPy engine."""

    def build(
        self, engine: NamedEngine, *, cache_dir: Path, progress: ProgressLine
    ) -> BuildArtifact:
        """Return the checkpoint's folder and, for fp8, the library built from the plugin's source.

        Raises BuildError.
        """
        recipe = recipe_as(engine, EmbeddedEngine)
        model = resolve_model(recipe.model, cache_dir=cache_dir, note=progress.update)
        if model.folder is None:
            raise BuildError(
                f"engine {engine.name}: model: expected a folder or a synthetic checkpoint, got "
                f"the hub id {model.model!r}: the embedded engine downloads nothing"
            )
        if recipe.plugin_source is None:
            return BuildArtifact(model=model.model, provenance=model.provenance)
        library = build_host_library(
            plugin_source_dir(engine), cache_dir=cache_dir, note=progress.note
        )
        provenance = {
            "plugin_source": recipe.plugin_source,
            "plugin_hash": library.content_hash,
            "plugin_compiler": library.compiler,
            "plugin_build_s": f"{library.build_s:.2f}",
            "plugin_is_cache_hit": str(library.is_cache_hit).lower(),
        }
        return BuildArtifact(
            model=model.model,
            libraries={PLUGIN: library.path},
            provenance=model.provenance | provenance,
        )

    def launch(
        self,
        engine: NamedEngine,
        artifact: BuildArtifact,
        *,
        log_path: Path,
        progress: ProgressLine,
    ) -> AbstractContextManager[RunningEngine]:
        """Return the context in which the engine runs, generates and is what the recipe states.

        On entering raises EngineError with exit code, last log lines and the log's path.
        """
        recipe = recipe_as(engine, EmbeddedEngine)
        plan = ServerPlan(
            engine_name=engine.name,
            ready_timeout_s=recipe.ready_timeout_s,
            start_on_port=partial(_start, recipe, artifact),
            fact_problems=partial(fact_mismatches, recipe.expect),
        )
        return serve_locally(plan, log_path=log_path, progress=progress)


def embedded_command(recipe: EmbeddedEngine, artifact: BuildArtifact, *, port: int) -> list[str]:
    """Return the argv of the embedded engine's server."""
    library = artifact.libraries.get(PLUGIN)
    return [
        *(sys.executable, "-m", "pytest_qperf.embedded"),
        *("--model", artifact.model),
        *("--port", str(port)),
        *("--precision", recipe.precision),
        *(() if library is None else ("--library", str(library))),
        *("--num-threads", str(recipe.num_threads)),
        *("--max-batch-size", str(recipe.max_batch_size)),
    ]


def _start(recipe: EmbeddedEngine, artifact: BuildArtifact, port: int) -> ServerStart:
    environment = dict(os.environ) | {"PYTHONUNBUFFERED": "1"} | recipe.environment
    return ServerStart(embedded_command(recipe, artifact, port=port), environment)
