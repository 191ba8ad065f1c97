"""e4m3fn conversions and per-token quantisation of the host library, on every instruction set."""

import numpy as np
import pytest
from fakes import fp8_reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_qperf.embedded.fp8_gemm import Fp8Gemm

ALL_CODES = np.arange(256, dtype=np.uint8)
FINITE = fp8_reference.DECODED[:0x7F].astype(np.float32)
MIDPOINTS = ((FINITE[:-1] + FINITE[1:]) / 2).astype(np.float32)
SHARED_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def _floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def test_all_256_codes_decode_exactly(gemm_on_isa: Fp8Gemm) -> None:
    decoded = gemm_on_isa.decode_e4m3(ALL_CODES)
    np.testing.assert_array_equal(decoded, fp8_reference.DECODED.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(decoded), ALL_CODES >= 0x80)


def test_only_0x7f_and_0xff_are_nan(gemm_on_isa: Fp8Gemm) -> None:
    is_nan = np.isnan(gemm_on_isa.decode_e4m3(ALL_CODES))
    assert ALL_CODES[is_nan].tolist() == [0x7F, 0xFF]


def test_encoding_what_was_decoded_gives_the_code_back(gemm_on_isa: Fp8Gemm) -> None:
    decoded = gemm_on_isa.decode_e4m3(ALL_CODES)
    np.testing.assert_array_equal(gemm_on_isa.encode_e4m3(decoded), ALL_CODES)


def test_half_way_between_two_codes_goes_to_the_even_one(gemm_on_isa: Fp8Gemm) -> None:
    lower = np.arange(len(MIDPOINTS))
    expected = np.where(lower % 2 == 0, lower, lower + 1)
    np.testing.assert_array_equal(gemm_on_isa.encode_e4m3(MIDPOINTS), expected)
    np.testing.assert_array_equal(gemm_on_isa.encode_e4m3(-MIDPOINTS), expected | 0x80)


def test_just_off_half_way_goes_to_the_nearer_code(gemm_on_isa: Fp8Gemm) -> None:
    lower = np.arange(len(MIDPOINTS))
    below = np.nextafter(MIDPOINTS, np.float32(0))
    above = np.nextafter(MIDPOINTS, np.float32(1e9))
    np.testing.assert_array_equal(gemm_on_isa.encode_e4m3(below), lower)
    np.testing.assert_array_equal(gemm_on_isa.encode_e4m3(above), lower + 1)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (448.0, 0x7E),
        (449.0, 0x7E),
        (1e30, 0x7E),
        (float("inf"), 0x7E),
        (float("-inf"), 0xFE),
        (2.0**-9, 0x01),
        (2.0**-10, 0x00),
        (1.5 * 2.0**-9, 0x02),
        (7.5 * 2.0**-9, 0x08),
        (1e-45, 0x00),
        (-0.0, 0x80),
        (1.0, 0x38),
    ],
)
def test_known_values_encode_to_known_codes(gemm_on_isa: Fp8Gemm, value: float, code: int) -> None:
    assert gemm_on_isa.encode_e4m3(_floats(value)).tolist() == [code]


def test_nan_of_either_sign_and_any_payload_stays_nan(gemm_on_isa: Fp8Gemm) -> None:
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32)
    codes = gemm_on_isa.encode_e4m3(bits.view(np.float32))
    assert codes.tolist() == [0x7F, 0xFF, 0x7F, 0xFF]


@SHARED_FIXTURE
@given(st.lists(st.floats(width=32), min_size=1, max_size=70))
def test_any_floats_encode_as_the_reference_does(gemm: Fp8Gemm, values: list[float]) -> None:
    array = np.array(values, np.float32)
    np.testing.assert_array_equal(gemm.encode_e4m3(array), fp8_reference.encode(array))


@SHARED_FIXTURE
@given(st.lists(st.floats(-500, 500, width=32), min_size=1, max_size=70))
def test_floats_in_range_encode_as_the_reference_does(gemm: Fp8Gemm, values: list[float]) -> None:
    array = np.array(values, np.float32)
    np.testing.assert_array_equal(gemm.encode_e4m3(array), fp8_reference.encode(array))


def test_arrays_longer_than_one_chunk_convert_whole(gemm: Fp8Gemm) -> None:
    values = np.linspace(-500, 500, 50_001, dtype=np.float32)
    codes = gemm.encode_e4m3(values)
    np.testing.assert_array_equal(codes, fp8_reference.encode(values))
    np.testing.assert_array_equal(gemm.decode_e4m3(codes), fp8_reference.DECODED[codes])


def test_an_empty_array_converts_to_an_empty_array(gemm: Fp8Gemm) -> None:
    assert gemm.encode_e4m3(np.empty(0, np.float32)).shape == (0,)
    assert gemm.decode_e4m3(np.empty(0, np.uint8)).shape == (0,)


def test_quantising_scales_each_row_by_its_largest_magnitude(gemm_on_isa: Fp8Gemm) -> None:
    x = np.array([[448, -1, 0], [-896, 2, 0], [0.5, 0.25, 0]], np.float32)
    codes, scales = gemm_on_isa.quantize_per_token(x)
    np.testing.assert_array_equal(scales, _floats(1, 2, 0.5 / 448))
    assert codes.tolist() == [[0x7E, 0xB8, 0x00], [0xFE, 0x38, 0x00], [0x7E, 0x76, 0x00]]


@pytest.mark.parametrize("num_rows", [1, 3, 40])
@pytest.mark.parametrize("num_columns", [1, 17, 1024])
def test_quantising_matches_the_reference_bit_by_bit(
    gemm_on_isa: Fp8Gemm, num_rows: int, num_columns: int
) -> None:
    rng = np.random.default_rng(num_rows * 10_000 + num_columns)
    x = rng.standard_normal((num_rows, num_columns), dtype=np.float32)
    codes, scales = gemm_on_isa.quantize_per_token(x)
    expected = np.abs(x).max(axis=1) / np.float32(448)
    np.testing.assert_array_equal(scales, expected)
    np.testing.assert_array_equal(codes, fp8_reference.encode(x / expected[:, None]))


def test_a_row_of_zeros_gets_the_smallest_scale_and_zero_codes(gemm_on_isa: Fp8Gemm) -> None:
    codes, scales = gemm_on_isa.quantize_per_token(np.zeros((1, 16), np.float32))
    assert codes.tolist() == [[0] * 16]
    assert scales.tolist() == [2.0**-126]


def test_a_nan_element_becomes_nan_and_leaves_the_scale(gemm_on_isa: Fp8Gemm) -> None:
    codes, scales = gemm_on_isa.quantize_per_token(np.array([[np.nan, 448]], np.float32))
    assert scales.tolist() == [1.0]
    assert codes.tolist() == [[0x7F, 0x7E]]


def test_an_infinite_element_makes_its_row_not_finite(gemm_on_isa: Fp8Gemm) -> None:
    codes, scales = gemm_on_isa.quantize_per_token(np.array([[np.inf, 1], [1, 1]], np.float32))
    assert scales.tolist() == [np.inf, np.float32(1) / np.float32(448)]
    assert (codes[0, 0] & 0x7F, codes[0, 1]) == (0x7F, 0x00)
    assert codes[1].tolist() == [0x7E, 0x7E]


def test_quantising_no_rows_gives_no_rows(gemm: Fp8Gemm) -> None:
    codes, scales = gemm.quantize_per_token(np.empty((0, 16), np.float32))
    assert (codes.shape, scales.shape) == ((0, 16), (0,))
