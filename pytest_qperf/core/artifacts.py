"""What adapters hand to each other: built artefacts, running engines, the environment's record."""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_qperf.core.recipe import EngineRecipe, GateRecipe, WorkloadRecipe
from pytest_qperf.core.records import Arm


@dataclass(frozen=True, slots=True)
class NamedEngine:
    """An engine recipe with its name (the file's stem), the folder it came from and its digest."""

    name: str
    recipe: EngineRecipe
    recipes_root: Path
    digest: str


@dataclass(frozen=True, slots=True)
class ResolvedGate:
    """A gate with everything it names loaded; ``digest`` covers all four recipes.

    Both engines carry the gate's ``model`` where the gate gives one. ``workload_digest`` covers
    the workload as written and its tokens, where they come from a file.
    """

    name: str
    path: Path
    recipe: GateRecipe
    candidate: NamedEngine
    baseline: NamedEngine
    workload_name: str
    workload: WorkloadRecipe
    workload_digest: str
    digest: str

    @property
    def key(self) -> str:
        """Return what tells gates of one pytest run apart.

        The digest alone does not: it leaves out where plugin sources lie, and equal recipes in two
        folders name different sources.
        """
        return f"{self.path} {self.digest}"

    def engine(self, arm: Arm) -> NamedEngine:
        """Return the engine of one arm."""
        return self.candidate if arm == "candidate" else self.baseline

    def with_engine(self, arm: Arm, engine: NamedEngine) -> "ResolvedGate":
        """Return the gate with one arm's engine replaced, and a digest that says so."""
        digest = hashlib.sha256(f"{self.digest} {arm} {engine.digest}".encode()).hexdigest()
        if arm == "candidate":
            return replace(self, candidate=engine, digest=digest)
        return replace(self, baseline=engine, digest=digest)


@dataclass(frozen=True, slots=True)
class BuildArtifact:
    """What an engine needs to start: a model folder or hub id, and libraries built for it.

    ``model`` is what the server is told to load: a folder's path or a hub id (for an endpoint: the
    model name it serves, or "" to ask it). ``libraries`` maps a plugin's name to its built library.
    ``provenance`` goes into the result as it is: content hashes, compiler, seconds, cache hit.
    """

    model: str
    libraries: dict[str, Path] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)

    def content_hashes(self) -> dict[str, str]:
        """Return the provenance that fixes what was built: entries named *_hash or *_sha256."""
        return {
            name: value
            for name, value in self.provenance.items()
            if name.endswith(("_hash", "_sha256"))
        }


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A server that has generated at least one real token.

    ``facts`` are what the server itself confirmed (version, quantization, kv_cache_dtype, ...).
    ``start_s`` is the time from process start to the first generated token.
    """

    base_url: str
    served_model: str
    facts: dict[str, str]
    start_s: float
    log_path: Path | None
    pid: int | None
