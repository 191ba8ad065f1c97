"""Strict YAML: YAML 1.2's scalars, nothing silent, and a position for everything."""

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_qperf.adapters.yaml_strict import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    JsonValue,
    Position,
    load_yaml,
)
from pytest_qperf.core.errors import RecipeError


def value_of(scalar: str) -> JsonValue:
    return load_yaml(f"key: {scalar}\n".encode(), source="f.yaml").value["key"]


def problems_of(data: bytes | str) -> list[str]:
    raw = data.encode() if isinstance(data, str) else data
    with pytest.raises(RecipeError) as caught:
        load_yaml(raw, source="f.yaml")
    return list(caught.value.problems)


# Text that YAML can carry unescaped or JSON escapes; lone surrogates are no text at all, and
# PyYAML refuses U+007F, which JSON leaves bare.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=12)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**30), max_value=10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
JSON_OBJECTS = st.dictionaries(TEXT, JSON_VALUES, max_size=4)


@given(JSON_OBJECTS)
def test_any_json_object_loads_as_itself(value: dict[str, JsonValue]) -> None:
    assert load_yaml(json.dumps(value).encode(), source="f").value == value


@given(JSON_OBJECTS, st.booleans())
def test_any_object_dumped_as_yaml_with_quoted_text_loads_as_itself(
    value: dict[str, JsonValue], flow: bool
) -> None:
    dumped = yaml.dump(value, Dumper=QuotingDumper, default_flow_style=flow, width=10_000)
    assert load_yaml(dumped.encode(), source="f").value == value


class QuotingDumper(yaml.SafeDumper):
    """Quotes every text: a YAML 1.1 writer leaves `1e3` bare, which is a number in YAML 1.2."""

    def ignore_aliases(self, data: object) -> bool:
        return True


QuotingDumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'),
)


YAML_LIKE = st.text(st.sampled_from(list("a:-? \n\t[]{},#&*!|>'\"%@`\\xuU0918<~.")), max_size=40)


@given(st.binary(max_size=60) | YAML_LIKE.map(str.encode))
def test_any_bytes_load_or_are_refused_with_a_position(data: bytes) -> None:
    problems: tuple[str, ...] = ()
    try:
        load_yaml(data, source="f")
    except RecipeError as error:
        problems = error.problems
    assert all(re.match(r"f:\d+:\d+: expected|f:\d+:\d+: .+: expected", p) for p in problems)


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        ("1e-3", 0.001),
        ("+1.5E3", 1500.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("010", 10),
        ("-7", -7),
        ("0o17", 15),
        ("0x1F", 31),
        ("on", "on"),
        ("OFF", "OFF"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("2026-01-01", "2026-01-01"),
        ("0.25.1", "0.25.1"),
        ("=", "="),
        ("e5", "e5"),
        (".", "."),
        ("٣", "٣"),
        ("true", True),
        ("TRUE", True),
        ("False", False),
        ("tRUE", "tRUE"),
        ("", None),
        ("~", None),
        ("null", None),
        ("Null", None),
        ("nUll", "nUll"),
        ("'8'", "8"),
        ('"true"', "true"),
        ('"\\ud83d\\ude00"', "😀"),
        ("|-\n  8", "8"),
    ],
)
def test_a_scalar_is_what_yaml_1_2_says(scalar: str, expected: JsonValue) -> None:
    value = value_of(scalar)
    assert value == expected
    assert type(value) is type(expected)


def test_a_byte_order_mark_is_not_part_of_the_first_key() -> None:
    assert load_yaml(b"\xef\xbb\xbfa: 1\n", source="f").value == {"a": 1}


def test_a_quoted_merge_key_is_a_key() -> None:
    assert load_yaml(b'"<<": 1\n', source="f").value == {"<<": 1}


def test_entries_have_the_position_of_their_key_and_items_of_their_value() -> None:
    document = load_yaml(b"a: 1\nb:\n  c: [x, y]\n  d:\n  - e: 2\n", source="f")
    assert document.positions == {
        (): Position(1, 1),
        ("a",): Position(1, 1),
        ("b",): Position(2, 1),
        ("b", "c"): Position(3, 3),
        ("b", "c", 0): Position(3, 7),
        ("b", "c", 1): Position(3, 10),
        ("b", "d"): Position(4, 3),
        ("b", "d", 0): Position(5, 5),
        ("b", "d", 0, "e"): Position(5, 5),
    }


def test_a_path_that_is_not_in_the_file_has_the_position_of_its_nearest_ancestor() -> None:
    document = load_yaml(b"a: 1\nb:\n  c: 2\n", source="f")
    assert document.nearest_position(("b", "missing", 3)) == Position(2, 1)
    assert document.nearest_position(("missing",)) == Position(1, 1)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", "1:1: expected a mapping (`key: value` lines), got an empty file"),
        ("# note\n", "1:1: expected a mapping (`key: value` lines), got an empty file"),
        ("null\n", "1:1: expected a mapping (`key: value` lines), got a single value"),
        ("\n- 1\n", "2:1: expected a mapping (`key: value` lines), got a list"),
        (
            "a:\n  b: 1\n  c: 2\n  b: 3\n",
            "4:3: a.b: expected each key once, got it again after line 2; remove one",
        ),
        ("a: &x 1\n", "1:4: expected a value, got the anchor &x; remove it"),
        ("a: *x\n", "1:4: expected a value, got the alias *x; write the value"),
        ("a:\n  <<: {b: 1}\n", "2:3: expected a key, got the merge key <<; write the keys out"),
        (
            "a: !!str 8\n",
            "1:4: expected a value, got the tag tag:yaml.org,2002:str; "
            "remove it (text goes in quotes)",
        ),
        ("a: ! 8\n", "1:4: expected a value, got the tag !; remove it (text goes in quotes)"),
        (
            "a: 1\n---\nb: 2\n",
            "2:1: expected one document, got a second one after `---`; keep one recipe a file",
        ),
        ("a:\n\tb: 1\n", "2:1: expected spaces, got a tab; YAML is indented by spaces"),
        (b"a: 1\nb: \xff\n", "2:4: expected UTF-8 text, got byte 0xff; save the file as UTF-8"),
        (
            "a: 1\nb: \x01\n",
            "2:4: expected printable text, got character U+0001; "
            "write it as an escape in double quotes",
        ),
        ("8: x\n", "1:1: expected a key of text, got 8; put it in quotes if it is meant"),
        ("true: x\n", "1:1: expected a key of text, got true; put it in quotes if it is meant"),
        (
            "? \n: x\n",
            "1:2: expected a key of text, got an empty key; put it in quotes if it is meant",
        ),
        ("? [a]\n: x\n", "1:3: expected a key of text, got a list"),
        ("? {a: 1}\n: x\n", "1:3: expected a key of text, got a mapping"),
        ("a: .inf\n", "1:4: expected a finite number, got .inf"),
        ("a: -.INF\n", "1:4: expected a finite number, got -.INF"),
        ("a: [.nan]\n", "1:5: expected a finite number, got .nan"),
        ("a: 1e999\n", "1:4: expected a finite number, got 1e999"),
        ("a: " + "9" * 101, "1:4: expected a number of at most 100 characters, got 101"),
        ('a: "\\ud83d"\n', "1:4: expected text, got half of a surrogate pair; write the character"),
        (
            'a: "\\U00110000"\n',
            "1:7: expected valid YAML, got: chr() arg not in range(0x110000)",
        ),
        (
            "a: b: c\n",
            "1:5: expected valid YAML, got: mapping values are not allowed here; "
            "text that contains `: ` goes in quotes",
        ),
        (
            "a: 'x\n",
            "2:1: expected valid YAML, got: found unexpected end of stream "
            "(while scanning a quoted scalar)",
        ),
    ],
)
def test_a_trap_is_refused_at_its_place(data: bytes | str, problem: str) -> None:
    assert problems_of(data) == [f"f.yaml:{problem}"]


def test_problems_after_parsing_come_together_in_the_files_order() -> None:
    assert problems_of("a: .inf\nb:\n  8: x\n  c: 1\n  c: .nan\n") == [
        "f.yaml:1:4: expected a finite number, got .inf",
        "f.yaml:3:3: expected a key of text, got 8; put it in quotes if it is meant",
        "f.yaml:5:3: b.c: expected each key once, got it again after line 4; remove one",
        "f.yaml:5:6: expected a finite number, got .nan",
    ]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_nesting_too_deep_to_be_a_recipe_is_refused_without_recursion(opening: str) -> None:
    problem = problems_of("a:\n  " + opening * 20_000)[0]
    assert problem.endswith(f"expected at most {MAX_DEPTH} levels of nesting, got more")


def test_the_deepest_nesting_allowed_loads() -> None:
    data = b"a: " + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)
    assert ("a", *[0] * (MAX_DEPTH - 2)) in load_yaml(data, source="f").positions


def test_a_file_too_large_to_be_a_recipe_is_refused_unparsed() -> None:
    assert problems_of(b"#" * (MAX_FILE_BYTES + 1)) == [
        "f.yaml:1:1: expected a file of at most 262144 bytes, got more; is this a recipe?"
    ]
