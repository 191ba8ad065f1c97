"""The `qperf` command: everything around gates that is not a pytest run."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_qperf import __version__
from pytest_qperf.core.errors import QperfError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0 if it did what was asked, 1 with one clear error if not."""
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except QperfError as error:
        sys.stderr.write(f"qperf: {error}\n")
    except OSError as error:
        sys.stderr.write(
            f"qperf: {error.filename or 'output'}: expected to read or write it, got "
            f"{error.strerror}; check the path, its permissions and the disk\n"
        )
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qperf", description="Recipes, checkpoints and results of pytest-qperf's gates."
    )
    parser.add_argument("--version", action="version", version=f"pytest-qperf {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_validate(commands)
    _add_schema(commands)
    _add_checkpoint(commands)
    _add_report(commands)
    return parser


def _add_validate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    validate = commands.add_parser("validate", help="check gates and everything they name")
    validate.add_argument(
        "gates", nargs="*", metavar="NAME|PATH", help="default: every gate in reach"
    )
    validate.add_argument(
        "--recipes", action="append", default=[], type=Path, metavar="DIR",
        help="further folder of recipes (repeatable)",
    )  # fmt: skip
    validate.set_defaults(run=_validate)


def _add_schema(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    schema = commands.add_parser(
        "schema", help="write the recipes' JSON schemas, which editors complete from"
    )
    schema.add_argument("folder", type=Path, metavar="DIR")
    schema.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if the folder is not up to date"
    )
    schema.set_defaults(run=_schema)


def _add_checkpoint(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    checkpoint = commands.add_parser("checkpoint", help="synthetic model checkpoints")
    actions = checkpoint.add_subparsers(required=True, metavar="ACTION")
    synth = actions.add_parser("synth", help="write a seeded random checkpoint")
    synth.add_argument("--shape", required=True, help="a name (see `shapes`) or a config.json")
    synth.add_argument("--quant", required=True, choices=("bf16", "fp8-static", "fp8-dynamic"))
    synth.add_argument("--seed", type=_seed, default=0)
    synth.add_argument("out", type=Path, metavar="OUT")
    synth.set_defaults(run=_synthesise)
    shapes = actions.add_parser("shapes", help="list the shapes that have a name")
    shapes.set_defaults(run=_shapes)


def _add_report(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    report = commands.add_parser("report", help="show a stored result")
    report.add_argument("result", type=Path, metavar="RESULT_JSON")
    report.set_defaults(run=_report)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of 0 or more, got {text!r}")
    return int(text)


def _validate(parsed: argparse.Namespace) -> int:
    from pytest_qperf.adapters.recipe_file import RecipeLibrary
    from pytest_qperf.adapters.resources import packaged_recipes_root
    from pytest_qperf.core.errors import RecipeError

    project = Path("engine_recipes").resolve()
    packaged = packaged_recipes_root()
    roots = [*parsed.recipes, *([project] if project.is_dir() else []), packaged]
    library = RecipeLibrary(tuple(dict.fromkeys(roots)))
    problems = [
        f"--recipes: expected a folder, got {root}; check the path"
        for root in parsed.recipes
        if not root.is_dir()
    ]
    for name in parsed.gates or sorted(library.gate_names()):
        try:
            gate = library.load_gate(name)
        except RecipeError as error:
            problems += error.problems
        else:
            sys.stdout.write(f"{gate.name}: ok ({gate.digest[:12]})\n")
    if problems:
        raise RecipeError(problems)
    return 0


def _schema(parsed: argparse.Namespace) -> int:
    from pytest_qperf.adapters.recipe_schema import recipe_schemas, write_schemas

    if not parsed.check:
        for path in write_schemas(parsed.folder):
            sys.stdout.write(f"{path}\n")
        return 0
    stale = [
        name
        for name, text in recipe_schemas().items()
        if not (path := parsed.folder / name).is_file() or path.read_bytes() != text.encode()
    ]
    for name in stale:
        sys.stderr.write(
            f"qperf: {parsed.folder / name}: expected the schema of this version, got another or "
            f"none; run `qperf schema {parsed.folder}`\n"
        )
    return 1 if stale else 0


def _synthesise(parsed: argparse.Namespace) -> int:
    from pytest_qperf.checkpoint.config_file import resolve_shape
    from pytest_qperf.checkpoint.synthesize import write_checkpoint
    from pytest_qperf.progress import stderr_progress

    info = write_checkpoint(
        resolve_shape(parsed.shape),
        quantization=parsed.quant,
        seed=parsed.seed,
        out=parsed.out,
        note=stderr_progress().note,
    )
    sys.stdout.write(f"{info.folder}\n")
    return 0


def _shapes(_parsed: argparse.Namespace) -> int:
    from pytest_qperf.checkpoint.shapes import SHAPES

    for name, shape in SHAPES.items():
        sys.stdout.write(
            f"{name}: hidden {shape.hidden_size}, intermediate {shape.intermediate_size}, "
            f"{shape.num_hidden_layers} layers, vocabulary {shape.vocab_size}\n"
        )
    return 0


def _report(parsed: argparse.Namespace) -> int:
    from pytest_qperf.adapters.result_store import read_result
    from pytest_qperf.report.terminal import render_result

    sys.stdout.write(render_result(read_result(parsed.result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
