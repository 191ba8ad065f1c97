"""bfloat16 and float8 e4m3fn in NumPy: both as unsigned integers holding the bit patterns.

e4m3fn: 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities, NaN is 0x7f and 0xff, the
largest value is 448. Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning", table 1.
"""

import numpy as np
from numpy.typing import NDArray

E4M3_MAX = 448.0
_E4M3_NAN = 0x7F


def bfloat16_to_float32(patterns: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the values of bfloat16 bit patterns, exactly; same shape."""
    return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return bfloat16 bit patterns, rounded to nearest even; NaN stays NaN; same shape."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    last_kept_bit = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + last_kept_bit) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def _e4m3_table() -> NDArray[np.float32]:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(
        exponent == 0,
        mantissa * 2.0**-9,
        (1 + mantissa / 8) * 2.0 ** (exponent - 7.0),
    )
    values = np.where(codes >= 128, -magnitude, magnitude)
    values[(codes & 0x7F) == _E4M3_NAN] = np.nan
    return values.astype(np.float32)


E4M3_VALUES = _e4m3_table()
"""(256,) float32: the value of every e4m3fn code."""
E4M3_VALUES.setflags(write=False)

_POSITIVE = E4M3_VALUES[:_E4M3_NAN].astype(np.float64)
_MIDPOINTS = (_POSITIVE[1:] + _POSITIVE[:-1]) / 2


def decode_e4m3(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the values of e4m3fn codes, exactly; same shape."""
    return E4M3_VALUES[codes]


def encode_e4m3(values: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return e4m3fn codes: nearest, ties to even, beyond 448 saturated; NaN gives 0x7f."""
    magnitude = np.abs(values)
    # Equal unless the value is a midpoint; then they are the two neighbours, one of them even.
    below = np.searchsorted(_MIDPOINTS, magnitude, side="left")
    above = np.searchsorted(_MIDPOINTS, magnitude, side="right")
    code = np.where(below % 2 == 0, below, above)
    code = np.where(np.signbit(values), code | 0x80, code)
    return np.where(np.isnan(values), _E4M3_NAN, code).astype(np.uint8)
