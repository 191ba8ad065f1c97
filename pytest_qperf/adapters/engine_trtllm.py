"""Engines of kind trtllm: recognised, and refused by name, until their builder exists."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

from pytest_qperf.adapters.readiness import ProgressLine
from pytest_qperf.adapters.recipe_kind import recipe_as
from pytest_qperf.core.artifacts import BuildArtifact, NamedEngine, RunningEngine
from pytest_qperf.core.errors import BuildError
from pytest_qperf.core.recipe import TrtllmEngine


class TrtllmAdapter:
    """Refuses to build: this version has no TensorRT-LLM builder."""

    def build(
        self, engine: NamedEngine, *, cache_dir: Path, progress: ProgressLine
    ) -> BuildArtifact:
        """Raise BuildError."""
        del cache_dir, progress
        _refuse(engine)

    def launch(
        self,
        engine: NamedEngine,
        artifact: BuildArtifact,
        *,
        log_path: Path,
        progress: ProgressLine,
    ) -> AbstractContextManager[RunningEngine]:
        """Raise BuildError."""
        del artifact, log_path, progress
        _refuse(engine)


def _refuse(engine: NamedEngine) -> NoReturn:
    recipe = recipe_as(engine, TrtllmEngine)
    raise BuildError(
        f"engine {engine.name}: expected a builder for kind 'trtllm' (image {recipe.image!r}), "
        f"got none: this version has no TensorRT-LLM builder yet; "
        f"serve the engine yourself and use kind 'endpoint'"
    )
