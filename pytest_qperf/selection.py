"""Which gates a pytest run is about: resolved from names, options and the hardware here."""

import json
from dataclasses import dataclass
from pathlib import Path

from pytest_qperf.adapters.hardware import missing_hardware
from pytest_qperf.adapters.recipe_file import RecipeLibrary
from pytest_qperf.adapters.resources import packaged_recipes_root
from pytest_qperf.core.artifacts import NamedEngine, ResolvedGate
from pytest_qperf.core.errors import RecipeError
from pytest_qperf.core.recipe import EndpointEngine
from pytest_qperf.core.records import Arm
from pytest_qperf.options import QperfOptions


@dataclass(frozen=True, slots=True)
class SelectedGate:
    """A gate to run, or the reason it cannot even be tried: exactly one of the two is None."""

    name: str
    path: Path
    gate: ResolvedGate | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Selection:
    """The gates to run, and those left out because their hardware is not here, with the reason."""

    gates: tuple[SelectedGate, ...]
    left_out: tuple[tuple[str, str], ...]


def recipe_library(options: QperfOptions, rootpath: Path) -> RecipeLibrary:
    """Return the recipes in reach: the options' folders, the project's own, then the packaged."""
    project = rootpath / "engine_recipes"
    roots = [*options.recipe_dirs, *([project] if project.is_dir() else [])]
    packaged = packaged_recipes_root()
    if packaged not in roots:
        roots.append(packaged)
    return RecipeLibrary(tuple(roots))


def select_gates(options: QperfOptions, rootpath: Path) -> Selection:
    """Return the named gates, or every gate whose hardware is here if none is named.

    A recipe that cannot be read is a selected gate with a problem. Raises RecipeError for a name
    that no gate has.
    """
    library = recipe_library(options, rootpath)
    names = options.gates or _resumed_gate(options)
    if names:
        return Selection(_distinct([_load(library, name, options) for name in names]), ())
    selected: list[SelectedGate] = []
    left_out: list[tuple[str, str]] = []
    for name in sorted(library.gate_names()):
        loaded = _load(library, name, options)
        reason = None if loaded.gate is None else missing_hardware(loaded.gate.recipe.hardware)
        if reason is None:
            selected.append(loaded)
        elif options.is_gpu_required:
            problem = f"--qperf-require-gpu: {reason}"
            selected.append(SelectedGate(name, loaded.path, None, problem))
        else:
            left_out.append((name, reason))
    return Selection(tuple(selected), tuple(left_out))


def named_gate(name: str, options: QperfOptions, rootpath: Path) -> ResolvedGate:
    """Return one gate by name or path; raise RecipeError if it is unknown or cannot be read."""
    return _with_endpoints(recipe_library(options, rootpath).load_gate(name), options)


def only_gate(options: QperfOptions, rootpath: Path) -> ResolvedGate:
    """Return the gate that is selected, if it is exactly one; raise RecipeError otherwise."""
    selected = select_gates(options, rootpath).gates
    if len(selected) != 1:
        names = ", ".join(gate.name for gate in selected) or "none"
        raise RecipeError(
            [
                f"qperf_gate: expected one gate, got {len(selected)} ({names}); name it with "
                '@pytest.mark.qperf(gate="NAME") or --qperf-gate NAME'
            ]
        )
    if selected[0].gate is None:
        raise RecipeError([str(selected[0].problem)])
    return selected[0].gate


def _resumed_gate(options: QperfOptions) -> tuple[str, ...]:
    """Return the gate a run folder belongs to; nothing if there is no run to resume."""
    if options.resume_folder is None:
        return ()
    try:
        stamp = json.loads((options.resume_folder / "gate.json").read_text())
        return (str(stamp["gate"]),)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeError(
            [
                f"{options.resume_folder}: expected a run folder with gate.json in it, got "
                f"{error!r}; the interrupted run printed its folder"
            ]
        ) from error


def _distinct(gates: list[SelectedGate]) -> tuple[SelectedGate, ...]:
    """Return the gates without repetitions; raise RecipeError for two files of one name."""
    by_name: dict[str, SelectedGate] = {}
    for gate in gates:
        first = by_name.setdefault(gate.name, gate)
        if first.path.resolve() != gate.path.resolve():
            raise RecipeError(
                [
                    f"--qperf-gate: expected gates of different names, got {first.path} and "
                    f"{gate.path}; their reports would mix: rename one file"
                ]
            )
    return tuple(by_name.values())


def _load(library: RecipeLibrary, name: str, options: QperfOptions) -> SelectedGate:
    path = library.gate_names().get(name, Path(name))
    if not path.is_file():
        library.load_gate(name)  # raises, with the nearest names
    try:
        gate = _with_endpoints(library.load_gate(name), options)
    except RecipeError as error:
        return SelectedGate(path.stem, path, None, str(error))
    return SelectedGate(gate.name, gate.path, gate, None)


def _with_endpoints(gate: ResolvedGate, options: QperfOptions) -> ResolvedGate:
    urls: dict[Arm, str | None] = {
        "candidate": options.candidate_url,
        "baseline": options.baseline_url,
    }
    for arm, url in urls.items():
        if url is not None:
            gate = gate.with_engine(arm, _endpoint(gate.engine(arm), url))
    return gate


def _endpoint(engine: NamedEngine, url: str) -> NamedEngine:
    """Return the engine as a running server; an endpoint recipe keeps its restart command."""
    recipe = engine.recipe
    if isinstance(recipe, EndpointEngine):
        replaced = recipe.model_copy(update={"base_url": url})
    else:
        replaced = EndpointEngine(
            kind="endpoint",
            description=f"{engine.name}, already running at {url}",
            model="",
            base_url=url,
            expect=recipe.expect,
        )
    return NamedEngine(engine.name, replaced, engine.recipes_root, replaced.digest())
