"""The host GEMM against NumPy from the same FP8 values, on every instruction set."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from fakes import fp8_reference
from numpy.typing import NDArray

from pytest_qperf.embedded.fp8_gemm import (
    Fp8Gemm,
    Fp8Weight,
    GemmOperands,
    GemmProblem,
    OutType,
    ScaleKind,
)

ROW_COUNTS = [*range(1, 18), 64, 130]
OUT_DTYPES = {
    OutType.FP32: np.float32,
    OutType.BF16: np.uint16,
    OutType.FP16: np.float16,
    OutType.E4M3: np.uint8,
}
GUARD = 64


@dataclass(frozen=True)
class Case:
    """Operands of one GEMM; a scale of one value is per tensor."""

    a: NDArray[np.uint8]
    w: NDArray[np.uint8]
    scale_a: NDArray[np.float32]
    scale_w: NDArray[np.float32]
    bias: NDArray[np.float32] | None = None
    scale_out: NDArray[np.float32] | None = None

    def scaled(self, sums: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the sums with both scales and the bias applied, in the documented order."""
        value = (sums * self.scale_a[:, None]) * self.scale_w[None, :]
        return value if self.bias is None else value + self.bias


def aligned(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return Fp8Weight.from_arrays(values, np.ones(1, np.float32)).codes


def random_codes(rng: np.random.Generator, num_rows: int, num_columns: int) -> NDArray[np.uint8]:
    codes = rng.integers(0, 0x7F, (num_rows, num_columns), dtype=np.uint8)
    return aligned(codes | rng.choice(np.array([0, 0x80], np.uint8), codes.shape))


def make_case(m: int, n: int, k: int) -> Case:
    rng = np.random.default_rng(m * 1_000_000 + n * 1000 + k)
    return Case(
        a=random_codes(rng, m, k),
        w=random_codes(rng, n, k),
        scale_a=rng.uniform(0.5, 2, m).astype(np.float32),
        scale_w=rng.uniform(0.5, 2, n).astype(np.float32),
    )


def multiply(gemm: Fp8Gemm, case: Case, out_type: OutType = OutType.FP32) -> NDArray[np.generic]:
    """Run the C interface; fail if it writes outside its (M, N) elements."""

    def address(array: NDArray[np.generic] | None) -> int | None:
        return None if array is None else array.ctypes.data

    m, n = len(case.a), len(case.w)
    problem = GemmProblem(
        m=m,
        n=n,
        k=case.a.shape[1],
        out_type=out_type,
        scale_a_kind=ScaleKind.PER_TENSOR if len(case.scale_a) == 1 else ScaleKind.PER_ROW,
        scale_w_kind=ScaleKind.PER_TENSOR if len(case.scale_w) == 1 else ScaleKind.PER_ROW,
        has_bias=case.bias is not None,
    )
    raw = np.zeros(m * n + 2 * GUARD, OUT_DTYPES[out_type])
    raw.view(np.uint8)[:] = 0xA5
    out = raw[GUARD : GUARD + m * n]
    operands = GemmOperands(
        a=address(case.a),
        w=address(case.w),
        scale_a=address(case.scale_a),
        scale_w=address(case.scale_w),
        bias=address(case.bias),
        scale_out=address(case.scale_out),
        out=address(out),
    )
    gemm.launch(problem, operands)
    for guard in (raw[:GUARD], raw[GUARD + m * n :]):
        assert set(guard.view(np.uint8)) == {0xA5}
    return out.reshape(m, n)


def assert_close(case: Case, out: NDArray[np.generic]) -> None:
    """Within the rounding of float32 sums in 16 lanes: (K / 16 + 6) * 2^-24 of the magnitudes."""
    exact = fp8_reference.gemm_float64(case.a, case.w)
    magnitude = np.abs(fp8_reference.DECODED[case.a]) @ np.abs(fp8_reference.DECODED[case.w]).T
    scale = case.scale_a[:, None].astype(np.float64) * case.scale_w[None, :]
    bias = np.zeros(1) if case.bias is None else case.bias.astype(np.float64)
    bound = (case.a.shape[1] / 16 + 6) * 2.0**-24 * (magnitude * scale + np.abs(bias))
    assert np.all(np.abs(out.astype(np.float64) - (exact * scale + bias)) <= bound)


@pytest.mark.parametrize("m", ROW_COUNTS)
def test_any_number_of_rows_matches_float64(gemm_on_isa: Fp8Gemm, m: int) -> None:
    case = make_case(m, 37, 144)
    assert_close(case, multiply(gemm_on_isa, case))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 63, 64, 65, 72, 130, 257])
@pytest.mark.parametrize("m", [3, 20])
def test_any_number_of_channels_matches_float64(gemm_on_isa: Fp8Gemm, m: int, n: int) -> None:
    case = make_case(m, n, 112)
    assert_close(case, multiply(gemm_on_isa, case))


@pytest.mark.parametrize("k", [16, 112, 144, 400, 1024, 1040, 2816])
@pytest.mark.parametrize("m", [2, 19])
def test_sums_are_bitwise_those_of_the_documented_order(
    gemm_on_isa: Fp8Gemm, m: int, k: int
) -> None:
    case = make_case(m, 33, k)
    expected = case.scaled(fp8_reference.gemm_in_lanes(case.a, case.w))
    np.testing.assert_array_equal(multiply(gemm_on_isa, case), expected)


def test_scales_may_be_per_tensor(gemm_on_isa: Fp8Gemm) -> None:
    case = replace(
        make_case(5, 9, 112),
        scale_a=np.array([0.5], np.float32),
        scale_w=np.array([4.0], np.float32),
    )
    assert_close(case, multiply(gemm_on_isa, case))


def test_bias_is_added_after_the_scales(gemm_on_isa: Fp8Gemm) -> None:
    bias = np.arange(9, dtype=np.float32) * 1000
    case = replace(make_case(5, 9, 112), bias=bias)
    assert_close(case, multiply(gemm_on_isa, case))


def test_each_row_gets_its_own_scale(gemm_on_isa: Fp8Gemm) -> None:
    m, n, k = 130, 5, 64
    scale_a = (2.0 ** (np.arange(m) % 5)).astype(np.float32)
    ones = np.full((m, k), 0x38, np.uint8)
    case = Case(aligned(ones), aligned(ones[:n].copy()), scale_a, np.ones(1, np.float32))
    expected = np.broadcast_to(k * scale_a[:, None], (m, n))
    np.testing.assert_array_equal(multiply(gemm_on_isa, case), expected)


def test_every_pair_of_codes_multiplies_exactly(gemm_on_isa: Fp8Gemm) -> None:
    a = np.zeros((256, 16), np.uint8)
    a[:, 0] = np.arange(256)
    one = np.ones(1, np.float32)
    case = Case(aligned(a), aligned(a.copy()), one, one)
    expected = np.outer(fp8_reference.DECODED, fp8_reference.DECODED).astype(np.float32)
    np.testing.assert_array_equal(multiply(gemm_on_isa, case), expected)


def test_nan_spreads_over_its_row_and_its_channel_only(gemm_on_isa: Fp8Gemm) -> None:
    case = make_case(7, 9, 112)
    case.a[2, 50] = 0x7F
    case.w[4, 111] = 0xFF
    is_nan = np.isnan(multiply(gemm_on_isa, case).astype(np.float32))
    expected = np.zeros((7, 9), bool)
    expected[2, :] = expected[:, 4] = True
    np.testing.assert_array_equal(is_nan, expected)


@pytest.mark.parametrize("m", [1, 5, 17])
def test_nan_codes_past_the_last_row_and_channel_do_not_enter(gemm_on_isa: Fp8Gemm, m: int) -> None:
    case = make_case(m, 9, 112)
    padded_a = aligned(np.vstack([case.a, np.full((8, 112), 0x7F, np.uint8)]))
    padded_w = aligned(np.vstack([case.w, np.full((8, 112), 0x7F, np.uint8)]))
    padded = replace(case, a=padded_a[:m], w=padded_w[:9])
    np.testing.assert_array_equal(multiply(gemm_on_isa, padded), multiply(gemm_on_isa, case))


def test_a_tiny_scale_gives_finite_tiny_values(gemm_on_isa: Fp8Gemm) -> None:
    case = replace(make_case(5, 9, 112), scale_w=np.array([1e-23], np.float32))
    out = multiply(gemm_on_isa, case).astype(np.float64)
    assert np.isfinite(out).all()
    assert np.abs(out).max() < 1e-15


def test_intermediate_sums_beyond_fp16_do_not_overflow(gemm_on_isa: Fp8Gemm) -> None:
    top = aligned(np.full((2, 400), 0x7E, np.uint8))
    case = Case(top, top, np.array([2.0**-12], np.float32), np.array([2.0**-12], np.float32))
    out = multiply(gemm_on_isa, case, OutType.FP16)
    np.testing.assert_array_equal(out, np.float16(400 * 448**2 * 2.0**-24))


def test_a_row_has_the_same_bits_in_every_batch(gemm_on_isa: Fp8Gemm) -> None:
    case = make_case(130, 70, 1040)
    whole = multiply(gemm_on_isa, case)
    for m in ROW_COUNTS:
        rows = slice(130 - m, 130)
        part = replace(case, a=aligned(case.a[rows].copy()), scale_a=case.scale_a[rows])
        if m > 1:
            np.testing.assert_array_equal(multiply(gemm_on_isa, part), whole[rows])
    for row in range(0, 130, 13):
        alone = replace(case, a=aligned(case.a[[row]]), scale_a=case.scale_a[[row]])
        np.testing.assert_array_equal(multiply(gemm_on_isa, alone)[0], whole[row])


@pytest.mark.parametrize("m", [3, 40])
def test_the_number_of_threads_changes_no_bit(library_path: Path, m: int) -> None:
    case = make_case(m, 300, 400)
    results = [multiply(Fp8Gemm(library_path, num_threads), case) for num_threads in (1, 2, 3, 7)]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_repeating_a_call_changes_no_bit(gemm_on_isa: Fp8Gemm) -> None:
    case = make_case(8, 300, 400)
    first = multiply(gemm_on_isa, case)
    for _ in range(50):
        np.testing.assert_array_equal(multiply(gemm_on_isa, case), first)


def test_callers_on_several_threads_do_not_disturb_each_other(gemm: Fp8Gemm) -> None:
    cases = [make_case(m, 130, 400) for m in (1, 8, 20, 33)] * 8
    expected = [multiply(gemm, case) for case in cases]
    with ThreadPoolExecutor(4) as executor:
        results = list(executor.map(lambda case: multiply(gemm, case), cases))
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, right)


def test_fp16_output_is_the_float32_result_rounded_once(gemm_on_isa: Fp8Gemm) -> None:
    case = make_case(33, 70, 112)
    for scale in (1e-9, 1e-6, 1e-3, 1.0):
        scaled = replace(case, scale_a=case.scale_a * np.float32(scale))
        with np.errstate(over="ignore"):
            expected = multiply(gemm_on_isa, scaled).astype(np.float16)
        np.testing.assert_array_equal(multiply(gemm_on_isa, scaled, OutType.FP16), expected)


def test_bf16_output_is_the_float32_result_rounded_once(gemm_on_isa: Fp8Gemm) -> None:
    case = make_case(33, 70, 112)
    bits = multiply(gemm_on_isa, case).view(np.uint32).astype(np.uint64)
    expected = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(multiply(gemm_on_isa, case, OutType.BF16), expected)


def test_nan_stays_nan_in_every_output_type(gemm_on_isa: Fp8Gemm) -> None:
    one = np.ones(1, np.float32)
    case = Case(aligned(np.full((1, 16), 0x7F, np.uint8)), make_case(1, 3, 16).w, one, one)
    assert np.isnan(multiply(gemm_on_isa, case, OutType.FP16).astype(np.float32)).all()
    bf16 = multiply(gemm_on_isa, case, OutType.BF16).astype(np.uint32) << 16
    assert np.isnan(bf16.view(np.float32)).all()
    e4m3 = multiply(gemm_on_isa, replace(case, scale_out=one), OutType.E4M3)
    assert set((e4m3.astype(np.uint8) & 0x7F).ravel()) == {0x7F}


@pytest.mark.parametrize("scale", [1.0, 0.25, 3000.0])
def test_e4m3_output_honours_its_scale(gemm_on_isa: Fp8Gemm, scale: float) -> None:
    case = replace(make_case(9, 21, 112), scale_out=np.array([scale], np.float32))
    values = multiply(gemm_on_isa, replace(case, scale_out=None)).astype(np.float32)
    expected = fp8_reference.encode(values / np.float32(scale))
    np.testing.assert_array_equal(multiply(gemm_on_isa, case, OutType.E4M3), expected)
