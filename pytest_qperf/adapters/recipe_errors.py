"""Validation errors of recipes as `file:line:column: key.path: expected X, got Y; how to fix`.

pydantic puts the branch of a union into an error's location and phrases errors for programmers;
here the location is the key path as the file has it, and the phrase says what to write instead.
"""

import difflib
import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pytest_qperf.adapters.yaml_strict import KeyPath, Position, YamlDocument

MAX_SHOWN_CHARACTERS = 60

_EXPECTED_BY_ERROR_TYPE = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
# What a validator's message begins with where it is about one key of its model.
_KEY_PREFIX = re.compile(r"([A-Za-z_][\w-]*(?:\.[\w-]+)*): (.*)")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem at one key; ``key_path`` may name a key that the file lacks."""

    position: Position
    key_path: KeyPath
    message: str

    def render(self, source: str) -> str:
        """Return the problem as one line; ``source`` is the file's name."""
        where = f"{shown_key_path(self.key_path)}: " if self.key_path else ""
        return f"{source}:{self.position}: {where}{self.message}"


def shown_key_path(path: KeyPath) -> str:
    """Return a key path as text: ``thresholds.ttft_mean_s``, ``arguments[2]``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """Return ``did you mean X? `` for the nearest known name, or nothing if none is near."""
    nearest = difflib.get_close_matches(wrong, list(known), n=1)
    return f"did you mean {nearest[0]!r}? " if nearest else ""


def validation_problems(
    error: ValidationError, document: YamlDocument, annotation: Any
) -> list[Problem]:
    """Return every problem pydantic found with ``annotation``, in the file's order."""
    problems = [
        Problem(document.nearest_position(path), path, message)
        for details in error.errors(include_url=False)
        for path, message in _translate(details, _locate(annotation, details["loc"]))
    ]
    return sorted(problems, key=lambda problem: problem.position)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an error is: its key path, the model that holds the last key, and the union branch.

    ``branch`` is the plain union's member the location ends in, None if it does not end in one.
    """

    path: KeyPath
    model: type[BaseModel] | None
    branch: Any


def _locate(annotation: Any, location: KeyPath) -> _Place:
    """Follow an error's location through the types; steps that name union branches are dropped."""
    path: KeyPath = ()
    model: type[BaseModel] | None = None
    branch: Any = None
    for step in location:
        members = _union_members(annotation)
        if len(members) > 1:
            branch = annotation = _member_named(members, str(step))
            continue
        annotation, branch = members[0], None
        path = (*path, step)
        if _is_model(annotation):
            model = annotation
            field = annotation.model_fields.get(str(step))
            annotation = None if field is None else field.annotation
        else:
            annotation = _element_type(annotation)
    return _Place(path, model, branch)


def _union_members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union without None; of anything else, the annotation itself."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for member in get_args(annotation) if member is not type(None))
    return (annotation,)


def _member_named(members: tuple[Any, ...], name: str) -> Any:
    """Return the member pydantic calls ``name``: a type's name or a discriminator's value."""
    return next(member for member in members if name in _names_of_member(member))


def _names_of_member(member: Any) -> Iterator[str]:
    yield member.__name__
    if _is_model(member):
        for field in member.model_fields.values():
            if get_origin(field.annotation) is Literal:
                yield from get_args(field.annotation)


def _element_type(annotation: Any) -> Any:
    """Return the type of a dict's values or a tuple's items; None for anything else."""
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        return arguments[1]
    return arguments[0] if get_origin(annotation) is tuple else None


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _translate(details: ErrorDetails, place: _Place) -> Iterator[tuple[KeyPath, str]]:
    """Yield one error's key paths and messages; nothing for the union branch that was not meant."""
    path, context = place.path, details.get("ctx", {})
    match details["type"]:
        case "missing":
            yield path, "expected this key, got none; add it"
        case "extra_forbidden":
            yield path, _unknown_key(str(path[-1]), place.model)
        case "union_tag_not_found":
            key = context["discriminator"].strip("'")
            yield (*path, key), "expected this key, got none; add it"
        case "union_tag_invalid":
            key = context["discriminator"].strip("'")
            yield (*path, key), _not_one_of(context["expected_tags"], details["input"][key])
        case "literal_error":
            yield path, _not_one_of(context["expected"], details["input"])
        case "value_error":
            for line in str(context["error"]).splitlines():
                yield _split_key_path(path, line)
        case _ if place.branch is not None:
            yield from _plain_union_problem(details, place)
        case _:
            yield path, _wrong_value(details)


def _unknown_key(key: str, model: type[BaseModel] | None) -> str:
    known = () if model is None else tuple(model.model_fields)
    hint = suggestion(key, known) or f"keys: {', '.join(known)}"
    return f"expected a known key, got {key!r}; {hint}".rstrip()


def _not_one_of(expected: str, got: Any) -> str:
    hint = suggestion(got, re.findall("'([^']*)'", expected)) if isinstance(got, str) else ""
    one_of = "one of " if "," in expected and " or " not in expected else ""
    return f"expected {one_of}{expected}, got {_shown(got)}; {hint}".rstrip("; ")


def _split_key_path(path: KeyPath, line: str) -> tuple[KeyPath, str]:
    found = _KEY_PREFIX.fullmatch(line)
    return (path, line) if found is None else ((*path, *found[1].split(".")), found[2])


def _plain_union_problem(details: ErrorDetails, place: _Place) -> Iterator[tuple[KeyPath, str]]:
    """Yield one problem where no member of a plain union (text, or a model) can be meant."""
    if isinstance(details["input"], dict) or _is_model(place.branch):
        return
    yield place.path, f"expected text or a mapping, got {_shown(details['input'])}"


def _wrong_value(details: ErrorDetails) -> str:
    got, kind, context = details["input"], details["type"], details.get("ctx", {})
    if kind in _EXPECTED_BY_ERROR_TYPE:
        hint = _type_hint(kind, got)
        return f"expected {_EXPECTED_BY_ERROR_TYPE[kind]}, got {_shown(got)}{hint}"
    if kind == "string_pattern_mismatch":
        return f"expected text that matches {context['pattern']}, got {_shown(got)}"
    if kind == "too_short":
        return f"expected at least {context['min_length']} entry, got {context['actual_length']}"
    expected = details["msg"].replace("Input should be", "expected a value")
    return f"{expected}, got {_shown(got)}"


def _type_hint(kind: str, got: Any) -> str:
    """Return how to mend a value of the wrong type, where that can be told from the value."""
    if kind == "string_type" and isinstance(got, bool | int | float):
        return "; put it in quotes"
    if kind in ("int_type", "float_type") and isinstance(got, str):
        return "; remove the quotes" if re.fullmatch(r"[-+.\deE]+", got) else ""
    if kind == "int_type" and isinstance(got, float) and got.is_integer():
        return f"; write {int(got)}"
    if kind == "bool_type" and isinstance(got, str):
        return "; only true and false are truth values here"
    return ""


def _shown(value: Any) -> str:
    """Return a value as a recipe would write it, cut to MAX_SHOWN_CHARACTERS."""
    match value:
        case None:
            shown = "nothing"
        case bool():
            shown = str(value).lower()
        case dict():
            shown = "a mapping"
        case list():
            shown = "a list"
        case _:
            shown = repr(value)
    return shown if len(shown) <= MAX_SHOWN_CHARACTERS else f"{shown[:MAX_SHOWN_CHARACTERS]}..."
