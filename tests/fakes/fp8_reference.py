"""e4m3fn and the GEMM's contract in NumPy, written from the definitions, independent of the C++."""

import numpy as np
from numpy.typing import NDArray

NUM_LANES = 16


def _value(code: int) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 0xF, code & 7
    if exponent == 0xF and mantissa == 7:
        return float("nan")
    if exponent == 0:
        return float(sign * mantissa / 8 * 2.0**-6)
    return float(sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7))


DECODED: NDArray[np.float64] = np.array([_value(code) for code in range(256)])
_MAGNITUDES: NDArray[np.float64] = DECODED[:0x7F]


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the nearest e4m3fn codes, ties to the even code, saturating; NaN stays NaN."""
    exact = values.astype(np.float64)
    magnitude = np.minimum(np.abs(np.nan_to_num(exact, nan=0.0, posinf=1e300)), 448.0)
    lower = np.searchsorted(_MAGNITUDES, magnitude, side="right") - 1
    upper = np.minimum(lower + 1, len(_MAGNITUDES) - 1)
    above, below = _MAGNITUDES[upper] - magnitude, magnitude - _MAGNITUDES[lower]
    goes_up = (above < below) | ((above == below) & (lower % 2 == 1))
    codes = np.where(np.isnan(exact), 0x7F, np.where(goes_up, upper, lower))
    return (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def gemm_float64(a: NDArray[np.uint8], w: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return sum_k a[m, k] * w[n, k] in float64, (M, N)."""
    return DECODED[a] @ DECODED[w].T


def gemm_in_lanes(a: NDArray[np.uint8], w: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the float32 sums in the documented order: 16 lanes over k, then their halves."""
    left = DECODED[a].astype(np.float32)
    right = DECODED[w].astype(np.float32)
    lanes = np.zeros((len(a), len(w), NUM_LANES), np.float32)
    for k in range(0, a.shape[1], NUM_LANES):
        block = slice(k, k + NUM_LANES)
        lanes += left[:, None, block] * right[None, :, block]
    while lanes.shape[2] > 1:
        half = lanes.shape[2] // 2
        lanes = lanes[:, :, :half] + lanes[:, :, half:]
    return lanes[:, :, 0]
