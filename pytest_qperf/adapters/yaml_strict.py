"""Strict YAML: the scalars of YAML 1.2's core schema, no surprises, and a position for every value.

PyYAML reads YAML 1.1, where `on` is true, `010` is 8, `12:30` is 750, `1e-3` is text and the last
of two equal keys wins. Here a file means what it says, or it is refused with line and column.

Refused: duplicate keys, keys that are not text, anchors, aliases, merge keys, tags, several
documents, .inf and .nan (JSON cannot carry them), nesting deeper than MAX_DEPTH and files larger
than MAX_FILE_BYTES.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

import yaml

from pytest_qperf.core.errors import RecipeError

MAX_FILE_BYTES = 262_144
MAX_DEPTH = 32
# Python refuses to print integers of more than 4300 digits; no quantity of a recipe needs 100.
MAX_NUMBER_LENGTH = 100

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
KeyPath = tuple[str | int, ...]

_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# YAML 1.2.2, section 10.3.2 (core schema, tag resolution).
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where something begins in a file; both counts start at 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A file's mapping and where each of its entries begins.

    ``positions`` has the empty path (the mapping itself), the position of the key for each entry
    of a mapping, and of the value for each item of a list.
    """

    value: dict[str, JsonValue]
    positions: dict[KeyPath, Position]

    def nearest_position(self, path: KeyPath) -> Position:
        """Return the position of ``path``, or of its closest ancestor that is in the file."""
        while path not in self.positions:
            path = path[:-1]
        return self.positions[path]


class _Problem(Exception):  # noqa: N818  control flow inside this module, never seen outside
    def __init__(self, position: Position, message: str) -> None:
        super().__init__(message)
        self.position = position


def load_yaml(data: bytes, *, source: str) -> YamlDocument:
    """Return the one mapping that ``data`` holds; ``source`` is the file's name for messages.

    Raises RecipeError, each problem ``source:line:column: message``. A syntax error is reported
    alone; duplicate keys, wrong keys and refused numbers all together.
    """
    if len(data) > MAX_FILE_BYTES:
        raise RecipeError(
            [
                f"{source}:1:1: expected a file of at most {MAX_FILE_BYTES} bytes, got more; "
                f"is this a recipe?"
            ]
        )
    node = _compose(_decode(data, source), source)
    if not isinstance(node, yaml.MappingNode):
        got = "an empty file" if node is None else f"a {_NODE_NAMES[type(node)]}"
        where = Position(1, 1) if node is None else _start(node)
        raise RecipeError([f"{source}:{where}: expected a mapping (`key: value` lines), got {got}"])
    builder = _Builder()
    value = builder.mapping(node, ())
    if builder.problems:
        raise RecipeError(
            [f"{source}:{where}: {message}" for where, message in sorted(builder.problems)]
        )
    return YamlDocument(value, builder.positions)


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1
        raise RecipeError(
            [
                f"{source}:{line}:{column}: expected UTF-8 text, "
                f"got byte 0x{data[error.start]:02x}; save the file as UTF-8"
            ]
        ) from error


def _compose(text: str, source: str) -> yaml.Node | None:
    loader: _StrictLoader | None = None
    try:
        loader = _StrictLoader(text)
        return loader.get_single_node()
    except _Problem as problem:
        raise RecipeError([f"{source}:{problem.position}: {problem}"]) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
        raise RecipeError(
            [
                f"{source}:{line}:{column}: expected printable text, got character "
                f"U+{ord(text[error.position]):04X}; write it as an escape in double quotes"
            ]
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Position(1, 1) if mark is None else _at(mark)
        raise RecipeError([f"{source}:{where}: {_syntax_message(error)}"]) from error
    except (ValueError, OverflowError) as error:
        # PyYAML lets these out for "\U00110000" and the like, beyond the last character there is.
        where = Position(1, 1) if loader is None else _at(loader.get_mark())
        raise RecipeError([f"{source}:{where}: expected valid YAML, got: {error}"]) from error


def _syntax_message(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "unknown problem"
    if problem == "but found another document":
        return "expected one document, got a second one after `---`; keep one recipe a file"
    if "'\\t'" in problem:
        return "expected spaces, got a tab; YAML is indented by spaces"
    context = f" ({error.context})" if error.context else ""
    hint = (
        "; text that contains `: ` goes in quotes" if problem.startswith("mapping values") else ""
    )
    return f"expected valid YAML, got: {problem}{context}{hint}"


_NODE_NAMES: dict[type, str] = {yaml.ScalarNode: "single value", yaml.SequenceNode: "list"}


class _StrictLoader(yaml.SafeLoader):
    """Composes nodes only: refuses aliases, anchors, tags and deep nesting before building any."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        _refuse_indirection(event)
        if self.depth > MAX_DEPTH:
            raise _Problem(
                _start(event), f"expected at most {MAX_DEPTH} levels of nesting, got more"
            )
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def resolve(
        self, kind: type[yaml.Node], value: str | None, implicit: bool | tuple[bool, bool]
    ) -> str:
        # YAML 1.1's resolution is not used: _Builder reads scalars itself; "?" marks no tag.
        return "?"


def _refuse_indirection(event: yaml.Event) -> None:
    if isinstance(event, yaml.AliasEvent):
        raise _Problem(
            _start(event), f"expected a value, got the alias *{event.anchor}; write the value"
        )
    if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
        raise _Problem(
            _start(event), f"expected a value, got the anchor &{event.anchor}; remove it"
        )
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise _Problem(
            _start(event),
            f"expected a value, got the tag {tag}; remove it (text goes in quotes)",
        )


class _Builder:
    """Turns composed nodes into plain values; gathers positions and problems on the way."""

    def __init__(self) -> None:
        self.positions: dict[KeyPath, Position] = {}
        self.problems: list[tuple[Position, str]] = []

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, JsonValue]:
        self.positions.setdefault(path, _start(node))
        result: dict[str, JsonValue] = {}
        for key_node, value_node in node.value:
            try:
                key = _key(key_node)
            except _Problem as problem:
                self.problems.append((problem.position, str(problem)))
                continue
            here = (*path, key)
            if key in result:
                self.problems.append((_start(key_node), self._duplicate(here)))
            self.positions[here] = _start(key_node)
            result[key] = self._value(value_node, here)
        return result

    def _duplicate(self, path: KeyPath) -> str:
        first = self.positions[path]
        shown = ".".join(map(str, path))
        return f"{shown}: expected each key once, got it again after line {first.line}; remove one"

    def _value(self, node: yaml.Node, path: KeyPath) -> JsonValue:
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            self.positions.setdefault(path, _start(node))
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return _scalar(node)
        except _Problem as problem:
            self.problems.append((problem.position, str(problem)))
            return None

    def _item(self, node: yaml.Node, path: KeyPath) -> JsonValue:
        self.positions[path] = _start(node)
        return self._value(node, path)


def _start(marked: Any) -> Position:
    """Return where a node or event begins (its type's mark is optional, a parsed file's is not)."""
    return _at(marked.start_mark)


def _at(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _Problem(
            _start(node),
            f"expected a key of text, got a {_NODE_NAMES.get(type(node), 'mapping')}",
        )
    if node.style is None and node.value == "<<":
        raise _Problem(_start(node), "expected a key, got the merge key <<; write the keys out")
    key = _scalar(node)
    if not isinstance(key, str):
        shown = node.value or "an empty key"
        raise _Problem(
            _start(node), f"expected a key of text, got {shown}; put it in quotes if it is meant"
        )
    return key


def _scalar(node: yaml.Node) -> bool | int | float | str | None:
    """Return a scalar by the core schema; quoted and block scalars are always text."""
    text: str = node.value
    if not isinstance(node, yaml.ScalarNode) or node.style is not None:
        return _text(node)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _NOT_FINITE.fullmatch(text):
        raise _Problem(_start(node), f"expected a finite number, got {text}")
    is_integer = _INTEGER.fullmatch(text) is not None
    if not is_integer and not _FLOAT.fullmatch(text):
        return _text(node)
    if len(text) > MAX_NUMBER_LENGTH:
        raise _Problem(
            _start(node),
            f"expected a number of at most {MAX_NUMBER_LENGTH} characters, got {len(text)}",
        )
    if is_integer:
        return int(text, base=0) if text.startswith(("0o", "0x")) else int(text)
    number = float(text)
    if not math.isfinite(number):
        raise _Problem(_start(node), f"expected a finite number, got {text}")
    return number


def _text(node: yaml.Node) -> str:
    """Return a text scalar; JSON's escaped surrogate pairs become the characters they stand for."""
    text: str = node.value
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _Problem(
            _start(node), "expected text, got half of a surrogate pair; write the character"
        ) from None
