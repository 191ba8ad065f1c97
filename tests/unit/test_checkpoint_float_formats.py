import math

import numpy as np
import pytest
from fakes import fp8_reference
from hypothesis import given
from hypothesis import strategies as st

from pytest_qperf.checkpoint.float_formats import (
    E4M3_MAX,
    E4M3_VALUES,
    bfloat16_to_float32,
    decode_e4m3,
    encode_e4m3,
    float32_to_bfloat16,
)


def test_the_e4m3_table_equals_the_formats_definition() -> None:
    np.testing.assert_array_equal(E4M3_VALUES, fp8_reference.DECODED.astype(np.float32))


def test_every_e4m3_value_encodes_to_its_own_code() -> None:
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes[~np.isnan(E4M3_VALUES)]
    np.testing.assert_array_equal(encode_e4m3(decode_e4m3(numbers)), numbers)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0625, 1.0),  # halfway between 1 (even code) and 1.125
        (1.1875, 1.25),  # halfway between 1.125 and 1.25 (even code)
        (2.0**-10, 0.0),  # halfway between 0 and the smallest subnormal
        (449.0, 448.0),
        (math.inf, 448.0),
        (-math.inf, -448.0),
    ],
)
def test_e4m3_rounds_to_nearest_even_and_saturates(value: float, expected: float) -> None:
    assert decode_e4m3(encode_e4m3(np.array([value])))[0] == expected


def test_nan_encodes_to_the_e4m3_nan() -> None:
    assert encode_e4m3(np.array([np.nan]))[0] == 0x7F


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_e4m3_encoding_equals_the_reference(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    np.testing.assert_array_equal(encode_e4m3(array), fp8_reference.encode(array))


@given(st.floats(min_value=-E4M3_MAX, max_value=E4M3_MAX))
def test_e4m3_encoding_is_within_half_a_step(value: float) -> None:
    decoded = float(decode_e4m3(encode_e4m3(np.array([value])))[0])
    assert abs(decoded - value) <= max(abs(value) / 16, 2.0**-10)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (1.0 + 2.0**-8, 1.0),  # halfway, 1 is even
        (1.0 + 3 * 2.0**-8, 1.0 + 2.0**-6),  # halfway, the upper neighbour is even
        (-1.0 - 3 * 2.0**-8, -1.0 - 2.0**-6),
    ],
)
def test_bfloat16_rounds_to_nearest_even(value: float, expected: float) -> None:
    rounded = bfloat16_to_float32(float32_to_bfloat16(np.array([value], dtype=np.float32)))
    assert rounded[0] == expected


def test_nan_stays_nan_in_bfloat16() -> None:
    # All-ones NaN: adding the rounding increment to its bits would wrap around to zero.
    nan = np.array([0xFFFFFFFF], dtype=np.uint32).view(np.float32)
    assert np.isnan(bfloat16_to_float32(float32_to_bfloat16(nan)))[0]


@given(st.integers(min_value=0, max_value=0xFFFF))
def test_every_bfloat16_number_survives_the_round_trip(pattern: int) -> None:
    patterns = np.array([pattern], dtype=np.uint16)
    values = bfloat16_to_float32(patterns)
    if not np.isnan(values[0]):
        assert float32_to_bfloat16(values)[0] == pattern
