"""What is written down by machine: JSON schemas of recipes and results, tables for the docs."""

import json
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pytest_qperf.adapters.recipe_file import ENGINE, GATE, WORKLOAD
from pytest_qperf.core.metrics import METRICS
from pytest_qperf.core.recipe import (
    EmbeddedEngine,
    EndpointEngine,
    EngineBase,
    EngineFacts,
    GateRecipe,
    Hardware,
    RandomTokenPrompts,
    SyntheticModel,
    Threshold,
    TokenFilePrompts,
    TrtllmEngine,
    VllmEngine,
    WorkloadRecipe,
)
from pytest_qperf.core.result import GateResult

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE_BEGIN = "<!-- reference: generated from the models -->"
REFERENCE_END = "<!-- end of reference -->"
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}

_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("Engine: keys of every kind", EngineBase),
    ("Engine: `kind: vllm`", VllmEngine),
    ("Engine: `kind: trtllm`", TrtllmEngine),
    ("Engine: `kind: embedded`", EmbeddedEngine),
    ("Engine: `kind: endpoint`", EndpointEngine),
    ("Engine: a synthetic `model`", SyntheticModel),
    ("Engine: `expect`", EngineFacts),
    ("Workload", WorkloadRecipe),
    ("Workload: `prompts` with `source: random_tokens`", RandomTokenPrompts),
    ("Workload: `prompts` with `source: token_file`", TokenFilePrompts),
    ("Gate", GateRecipe),
    ("Gate: `hardware`", Hardware),
    ("Gate: one entry of `thresholds`", Threshold),
)


def recipe_schemas() -> dict[str, str]:
    """Return the JSON schemas of the recipes and of the result as text, by file name, in order."""
    schemas: dict[str, str] = {}
    for kind in (ENGINE, WORKLOAD, GATE):
        body = kind.adapter.json_schema()
        if kind is GATE:
            body["properties"]["thresholds"]["propertyNames"] = {"enum": list(METRICS)}
        schema = {"$schema": _DIALECT, **body, "title": f"qperf {kind.noun} recipe"}
        schemas[f"{kind.noun}.schema.json"] = _schema_text(schema)
    result = {"$schema": _DIALECT, **GateResult.model_json_schema(), "title": "qperf gate result"}
    return schemas | {"result.schema.json": _schema_text(result)}


def _schema_text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def write_schemas(folder: Path) -> tuple[Path, ...]:
    """Write every schema into ``folder``, made if it is missing; return the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in recipe_schemas().items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return tuple(paths)


def recipe_reference() -> str:
    """Return a Markdown table of every key for each model, and one of the metrics."""
    sections = [
        f"### {title}\n\n{_first_line(model)}\n\n{_key_table(model)}" for title, model in _SECTIONS
    ]
    return "\n\n".join([*sections, f"### Metrics for `thresholds`\n\n{_metric_table()}"]) + "\n"


def with_reference(document: str) -> str:
    """Return a Markdown document with the reference between its two markers brought up to date.

    Raises ValueError if a marker is missing.
    """
    before, begin, rest = document.partition(REFERENCE_BEGIN)
    _, end, after = rest.partition(REFERENCE_END)
    if not (begin and end):
        raise ValueError(f"expected the lines {REFERENCE_BEGIN!r} and {REFERENCE_END!r}, got none")
    return f"{before}{begin}\n\n{recipe_reference()}\n{end}{after}"


def _first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0].replace("``", "`")


def _key_table(model: type[BaseModel]) -> str:
    inherited = () if model is EngineBase else tuple(EngineBase.model_fields)
    rows = [
        f"| `{name}` | {_type_text(field)} | {_default_text(field)} | {_cell(field.description)} |"
        for name, field in model.model_fields.items()
        if not (issubclass(model, EngineBase) and name in inherited)
    ]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows])


def _metric_table() -> str:
    rows = [
        f"| `{metric.name}` | {metric.unit} | {'higher' if metric.higher_is_better else 'lower'} "
        f"| {_cell(metric.formula)} |"
        for metric in METRICS.values()
    ]
    return "\n".join(["| metric | unit | better | formula |", "|---|---|---|---|", *rows])


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


def _type_text(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(constraint, name):g}"
        for constraint in field.metadata
        for name, sign in _BOUNDS.items()
        if getattr(constraint, name, None) is not None
    ]
    return ", ".join([_annotation_text(field.annotation), *bounds])


def _annotation_text(annotation: Any) -> str:
    """Return a type as a reader of YAML would call it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        members = [_annotation_text(member) for member in arguments if member is not type(None)]
        return " or ".join(dict.fromkeys(members))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return f"list of {_annotation_text(arguments[0])}"
    if origin is dict:
        return f"mapping of {_annotation_text(arguments[0])} to {_annotation_text(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}[annotation]


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    match field.default:
        case None | () | dict() | BaseModel():
            return "none"
        case default:
            return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
