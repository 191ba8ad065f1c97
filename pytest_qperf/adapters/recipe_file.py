"""Recipes from files: read, checked and resolved, every problem of a gate's four files at once."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from pytest_qperf.adapters.recipe_errors import Problem, suggestion, validation_problems
from pytest_qperf.adapters.yaml_strict import MAX_FILE_BYTES, KeyPath, YamlDocument, load_yaml
from pytest_qperf.core.artifacts import NamedEngine, ResolvedGate
from pytest_qperf.core.errors import RecipeError
from pytest_qperf.core.recipe import (
    EndpointEngine,
    EngineRecipe,
    GateRecipe,
    ModelSource,
    TokenFilePrompts,
    WorkloadRecipe,
)

RecipeT = TypeVar("RecipeT")


@dataclass(frozen=True, slots=True)
class RecipeKind(Generic[RecipeT]):
    """A kind of recipe: what it is called, the folder it lives in, and its model."""

    noun: str
    folder: str
    model: Any
    adapter: TypeAdapter[RecipeT]


ENGINE: RecipeKind[EngineRecipe] = RecipeKind(
    "engine", "engines", EngineRecipe, TypeAdapter(EngineRecipe)
)
WORKLOAD = RecipeKind("workload", "workloads", WorkloadRecipe, TypeAdapter(WorkloadRecipe))
GATE = RecipeKind("gate", "gates", GateRecipe, TypeAdapter(GateRecipe))


def read_recipe(path: Path, kind: RecipeKind[RecipeT]) -> RecipeT:
    """Return the recipe in ``path``; raise RecipeError with every problem of the file."""
    read = _read(path, kind)
    if read.recipe is None:
        raise RecipeError(list(read.problems))
    return read.recipe


class RecipeLibrary:
    """Recipes by name. A root holds ``engines/``, ``workloads/`` and ``gates/``; the first wins."""

    def __init__(self, roots: tuple[Path, ...]) -> None:
        self.roots = tuple(dict.fromkeys(root.resolve() for root in roots))

    def gate_names(self) -> dict[str, Path]:
        """Return every gate's name (its file's stem) and file, sorted by name."""
        return self._files(GATE)

    def load_engine(self, name: str) -> NamedEngine:
        """Return one engine by name; raise RecipeError if there is none or it is wrong."""
        path = self._file(ENGINE, name)
        return _named_engine(path, read_recipe(path, ENGINE))

    def load_gate(self, name_or_path: str) -> ResolvedGate:
        """Return a gate with everything it names.

        ``name_or_path``: a gate's name, or the path of a YAML file. The engines and workload of a
        file are looked up in its own root first (the parent of its folder, where that holds
        ``engines/`` and ``workloads/``), then in the library's roots.
        Raises RecipeError with every problem of the gate, its engines and its workload.
        """
        path = self._gate_file(name_or_path)
        own_root = path.resolve().parent.parent
        roots = (own_root, *self.roots) if _is_root(own_root) else self.roots
        return _resolve(_read(path, GATE), RecipeLibrary(roots))

    def _gate_file(self, name_or_path: str) -> Path:
        if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
            return Path(name_or_path)
        return self._file(GATE, name_or_path)

    def _file(self, kind: RecipeKind[Any], name: str) -> Path:
        files = self._files(kind)
        if name not in files:
            raise RecipeError([f"{kind.noun} {name!r}: {self.unknown_name(kind, name)}"])
        return files[name]

    def _files(self, kind: RecipeKind[Any]) -> dict[str, Path]:
        files: dict[str, Path] = {}
        for root in self.roots:
            for path in (root / kind.folder).glob("*.yaml"):
                files.setdefault(path.stem, path)
        return dict(sorted(files.items()))

    def unknown_name(self, kind: RecipeKind[Any], name: str) -> str:
        """Return the message for a name that no recipe has: the nearest name, all names."""
        known = self._files(kind)
        folders = ", ".join(_shown_path(root / kind.folder) for root in self.roots)
        article = "an" if kind.noun == "engine" else "a"
        return (
            f"expected the name of {article} {kind.noun} recipe, got {name!r}; "
            f"{suggestion(name, known)}"
            f"{kind.noun}s: {', '.join(known) or 'none'} (from *.yaml in {folders or 'no folder'})"
        )

    def find(self, kind: RecipeKind[Any], name: str) -> Path | None:
        """Return the file of a recipe, None if no root has it."""
        return self._files(kind).get(name)


@dataclass(frozen=True, slots=True)
class _Read(Generic[RecipeT]):
    """One file as far as it could be read: no recipe without a problem, and the other way round."""

    path: Path
    document: YamlDocument | None
    recipe: RecipeT | None
    problems: tuple[str, ...]

    def problem_at(self, key_path: KeyPath, message: str) -> str:
        if self.document is None:
            return f"{_shown_path(self.path)}: {message}"
        position = self.document.nearest_position(key_path)
        return Problem(position, key_path, message).render(_shown_path(self.path))


def _read(path: Path, kind: RecipeKind[RecipeT]) -> _Read[RecipeT]:
    source = _shown_path(path)
    try:
        document = load_yaml(_read_bytes(path), source=source)
    except RecipeError as error:
        return _Read(path, None, None, error.problems)
    try:
        recipe = kind.adapter.validate_json(json.dumps(document.value))
    except ValidationError as error:
        problems = validation_problems(error, document, kind.model)
        return _Read(path, document, None, tuple(problem.render(source) for problem in problems))
    return _Read(path, document, recipe, ())


def _read_bytes(path: Path) -> bytes:
    """Return the file's bytes, at most one more than a recipe may have."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise RecipeError(
            [f"{_shown_path(path)}: expected a readable recipe file, got: {error.strerror}"]
        ) from error


def _resolve(gate: _Read[GateRecipe], library: RecipeLibrary) -> ResolvedGate:
    candidate = _referenced(gate, "candidate", ENGINE, library)
    baseline = _referenced(gate, "baseline", ENGINE, library)
    workload = _token_file_checked(_referenced(gate, "workload", WORKLOAD, library))
    if (
        gate.recipe is None
        or candidate.recipe is None
        or baseline.recipe is None
        or workload.recipe is None
    ):
        reads: tuple[_Read[Any], ...] = (gate, candidate, baseline, workload)
        problems = [problem for read in reads for problem in read.problems]
        raise RecipeError(list(dict.fromkeys(problems)))
    engines = [
        _named_engine(read.path, _with_model(recipe, gate.recipe.model))
        for read, recipe in ((candidate, candidate.recipe), (baseline, baseline.recipe))
    ]
    _require_same_model(gate, *engines)
    workload_digest = _workload_digest(workload.path, workload.recipe)
    digests = [gate.recipe.digest(), *(engine.digest for engine in engines), workload_digest]
    return ResolvedGate(
        name=gate.path.stem,
        path=gate.path,
        recipe=gate.recipe,
        candidate=engines[0],
        baseline=engines[1],
        workload_name=workload.path.stem,
        workload=_with_absolute_token_file(workload.path, workload.recipe),
        workload_digest=workload_digest,
        digest=hashlib.sha256("\n".join(digests).encode()).hexdigest(),
    )


def _referenced(
    gate: _Read[GateRecipe], key: str, kind: RecipeKind[RecipeT], library: RecipeLibrary
) -> _Read[RecipeT]:
    """Read the recipe that a gate's key names, even where the gate itself has problems."""
    name = None if gate.document is None else gate.document.value.get(key)
    if not isinstance(name, str):
        return _Read(gate.path, None, None, ())  # the gate's own problems say so
    path = library.find(kind, name)
    if path is None:
        problem = gate.problem_at((key,), library.unknown_name(kind, name))
        return _Read(gate.path, None, None, (problem,))
    return _read(path, kind)


def _named_engine(path: Path, recipe: EngineRecipe) -> NamedEngine:
    return NamedEngine(
        name=path.stem, recipe=recipe, recipes_root=path.parent.parent, digest=recipe.digest()
    )


def _with_model(recipe: EngineRecipe, model: ModelSource | None) -> EngineRecipe:
    return recipe if model is None else recipe.model_copy(update={"model": model})


def _require_same_model(
    gate: _Read[GateRecipe], candidate: NamedEngine, baseline: NamedEngine
) -> None:
    recipes = (candidate.recipe, baseline.recipe)
    if any(isinstance(recipe, EndpointEngine) for recipe in recipes):
        return  # an endpoint may serve the checkpoint under another name
    if candidate.recipe.model != baseline.recipe.model:
        message = (
            f"expected the baseline's model ({baseline.recipe.model}), "
            f"got {candidate.recipe.model}; both arms must load the same checkpoint: "
            f"add `model` to the gate, or change one engine"
        )
        raise RecipeError([gate.problem_at(("candidate",), message)])


def _token_file(workload_path: Path, recipe: WorkloadRecipe) -> Path | None:
    """Return the workload's token file (paths are relative to the recipe), None if it has none."""
    if not isinstance(recipe.prompts, TokenFilePrompts):
        return None
    return workload_path.parent / recipe.prompts.path


def _token_file_checked(workload: _Read[WorkloadRecipe]) -> _Read[WorkloadRecipe]:
    if workload.recipe is None:
        return workload
    tokens = _token_file(workload.path, workload.recipe)
    if tokens is None or tokens.is_file():
        return workload
    message = f"expected a file, got none at {_shown_path(tokens)}; paths start at the recipe"
    problem = workload.problem_at(("prompts", "path"), message)
    return _Read(workload.path, workload.document, None, (problem,))


def _with_absolute_token_file(workload_path: Path, recipe: WorkloadRecipe) -> WorkloadRecipe:
    tokens = _token_file(workload_path, recipe)
    if tokens is None:
        return recipe
    prompts = recipe.prompts.model_copy(update={"path": str(tokens.resolve())})
    return recipe.model_copy(update={"prompts": prompts})


def _workload_digest(workload_path: Path, recipe: WorkloadRecipe) -> str:
    """Return a digest of the workload as written and of its tokens, the same in every folder."""
    tokens = _token_file(workload_path, recipe)
    if tokens is None:
        return recipe.digest()
    parts = f"{recipe.digest()} {hashlib.sha256(tokens.read_bytes()).hexdigest()}"
    return hashlib.sha256(parts.encode()).hexdigest()


def _is_root(folder: Path) -> bool:
    return (folder / ENGINE.folder).is_dir() and (folder / WORKLOAD.folder).is_dir()


def _shown_path(path: Path) -> str:
    """Return a path relative to the current folder where it is inside it, else absolute."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
