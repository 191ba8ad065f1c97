"""What the pipeline needs from the outside, as protocols; `adapters` implements them."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from pytest_qperf.core.artifacts import BuildArtifact, NamedEngine, RunningEngine
from pytest_qperf.core.recipe import WorkloadRecipe
from pytest_qperf.core.records import RunRecord


class Progress(Protocol):
    """Where live progress goes: one updating line on a terminal, plain lines in a log."""

    def update(self, text: str) -> None:
        """Show what is happening now; may overwrite the previous update."""

    def note(self, text: str) -> None:
        """Show a line that stays."""


class EngineAdapter(Protocol):
    """Builds and starts engines of one recipe kind."""

    def build(self, engine: NamedEngine, *, cache_dir: Path, progress: Progress) -> BuildArtifact:
        """Return the artefacts the engine needs, from the content-hash cache where they exist.

        Raises BuildError.
        """

    def launch(
        self, engine: NamedEngine, artifact: BuildArtifact, *, log_path: Path, progress: Progress
    ) -> AbstractContextManager[RunningEngine]:
        """Start the engine; yield it once it has generated a token and confirmed its facts.

        On leaving the context no process of the engine is left and its GPU memory is back.
        Raises EngineError with exit code, last 40 log lines and the log's path.
        """


class LoadClient(Protocol):
    """Sends a workload to a running engine."""

    def run(
        self,
        engine: RunningEngine,
        workload: WorkloadRecipe,
        prompts: tuple[tuple[int, ...], ...],
        *,
        progress: Progress,
    ) -> RunRecord:
        """Send every prompt once and return all requests, failed ones with their error.

        prompts: num_requests lists of isl_tokens token ids.
        Raises LoadError if nothing can be sent.
        """
