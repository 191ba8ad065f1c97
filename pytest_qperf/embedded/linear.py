"""Linear layers with two backends: NumPy's BLAS in FP32, and the FP8 GEMM plugin.

Both keep one promise, on which batching rests: a row of the result depends on that row of the
input alone. The plugin promises it for every number of rows. BLAS picks its kernel by the number
of rows, so the FP32 backend always multiplies ``padded_rows`` rows, filled up with zeros;
`require_row_independence` checks at start-up that this suffices on this machine's BLAS.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_qperf.checkpoint.reading import Checkpoint
from pytest_qperf.core.errors import EngineError
from pytest_qperf.embedded.fp8_gemm import Fp8Gemm, Fp8Weight

Array = NDArray[np.float32]
Precision = Literal["fp32", "fp8"]
BACKENDS: dict[Precision, str] = {"fp32": "numpy-fp32", "fp8": "fp8-gemm"}


class Linear(Protocol):
    """x (M, K) float32 -> x W^T + bias (M, N) float32."""

    in_features: int

    def __call__(self, x: Array, *, padded_rows: int) -> Array:
        """Return the product; callers give the same ``padded_rows`` >= M for the same token."""


class NumpyLinear:
    """FP32 weights (N, K), multiplied by BLAS."""

    def __init__(self, weight: Array, bias: Array | None) -> None:
        self.in_features = weight.shape[1]
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Array, *, padded_rows: int) -> Array:
        """Return x W^T + bias, computed as a block of ``padded_rows`` rows."""
        if len(x) != padded_rows:
            padded = np.zeros((padded_rows, x.shape[1]), np.float32)
            padded[: len(x)] = x
        else:
            padded = x
        # (W x^T)^T: 10 to 20 % faster than x W^T at 8 rows with OpenBLAS 0.3.31 (2026-12).
        product = (self._weight @ padded.T).T[: len(x)]
        if self._bias is not None:
            return product + self._bias
        return np.ascontiguousarray(product)


class Fp8Linear:
    """FP8 e4m3 weights with float32 scales, multiplied by the plugin."""

    def __init__(self, gemm: Fp8Gemm, weight: Fp8Weight, bias: Array | None) -> None:
        self.in_features = weight.codes.shape[1]
        self._gemm = gemm
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Array, *, padded_rows: int) -> Array:
        """Return x W^T + bias; the plugin needs no padding."""
        return self._gemm.linear(np.ascontiguousarray(x), self._weight, self._bias)


class LinearFactory:
    """Makes the linear layers of a checkpoint; weights named together become one layer.

    ``library`` is the built plugin, for precision fp8 only.
    """

    def __init__(self, checkpoint: Checkpoint, library: Path | None, *, num_threads: int) -> None:
        self._checkpoint = checkpoint
        self._gemm = None if library is None else Fp8Gemm(library, num_threads)

    @property
    def precision(self) -> Precision:
        """Return the precision of the layers made."""
        return "fp32" if self._gemm is None else "fp8"

    def fused(self, names: Sequence[str], *, has_bias: bool) -> Linear:
        """Return one layer whose outputs are those of the layers ``names``, side by side."""
        bias = None
        if has_bias:
            bias = np.concatenate([self._checkpoint.float32(f"{name}.bias") for name in names])
        if self._gemm is None:
            return NumpyLinear(self._fp32_weight(names), bias)
        parts = [self._checkpoint.fp8_linear(f"{name}.weight") for name in names]
        codes = np.concatenate([part.codes for part in parts])
        scale = np.concatenate(
            [np.full(len(part.codes), part.scale, dtype=np.float32) for part in parts]
        )
        return Fp8Linear(self._gemm, Fp8Weight.from_arrays(codes, scale), bias)

    def _fp32_weight(self, names: Sequence[str]) -> Array:
        weights = [self._checkpoint.float32(f"{name}.weight") for name in names]
        return weights[0] if len(weights) == 1 else np.concatenate(weights)


def require_row_independence(linear: Linear, *, num_rows: int) -> None:
    """Raise EngineError unless a row gives the same bits at every place of a block of rows."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_rows, linear.in_features), dtype=np.float32)
    expected = linear(x, padded_rows=num_rows)
    turned = linear(x[::-1], padded_rows=num_rows)[::-1]
    alone = linear(x[-1:], padded_rows=num_rows)
    if not (np.array_equal(expected, turned) and np.array_equal(expected[-1:], alone)):
        raise EngineError(
            f"linear layer of {linear.in_features} inputs: expected the same result for a row "
            f"wherever it stands among {num_rows}, got another one; this BLAS or plugin cannot "
            f"keep a request's tokens independent of its batch"
        )
