"""Linear layers with two backends: NumPy's BLAS in FP32, and the FP8 GEMM plugin.

Both keep one promise, on which batching rests: a row of the result depends on that row of the
input alone. The plugin promises it for every number of rows. BLAS does not: it picks its kernel by
the number of rows and covers a block with several kernels that round differently (OpenBLAS 0.3.31
on Haswell and Zen from 17 rows on). So the FP32 backend multiplies blocks of a fixed number of
rows, filled up with zeros, the largest that this machine's BLAS treats alike: see `RowBlocks`.
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

_MIN_FIRST_TRY = 8


class Linear(Protocol):
    """x (M, K) float32 -> x W^T + bias (M, N) float32."""

    in_features: int

    def __call__(self, x: Array, *, padded_rows: int) -> Array:
        """Return the product; a token must always be given the same ``padded_rows`` >= M."""


class RowBlocks:
    """Finds how many rows BLAS multiplies at once without treating them differently."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], int] = {}

    def block_rows(self, weight: Array, padded_rows: int) -> int:
        """Return a power of two, at most the next one from ``padded_rows``, by trying.

        The answer is kept for every weight of this shape. One row at a time is always alike.
        """
        key = (*weight.shape, padded_rows)
        if key not in self._known:
            block_rows = max(_MIN_FIRST_TRY, 1 << (padded_rows - 1).bit_length())
            while block_rows > 1 and not _treats_rows_alike(weight, block_rows):
                block_rows //= 2
            self._known[key] = block_rows
        return self._known[key]


def _treats_rows_alike(weight: Array, num_rows: int) -> bool:
    row = np.random.default_rng(0).standard_normal((1, weight.shape[1]), dtype=np.float32)
    product = _multiply(weight, np.tile(row, (num_rows, 1)))
    return bool((product == product[0]).all())


def _multiply(weight: Array, x: Array) -> Array:
    # (W x^T)^T: at 8 rows 10 to 20 % faster than x W^T with OpenBLAS 0.3.31 (2026-12), and on
    # Haswell and Zen alike in blocks of up to 16 rows, x W^T of up to 8.
    return (weight @ x.T).T


class NumpyLinear:
    """FP32 weights (N, K), multiplied by BLAS."""

    def __init__(self, weight: Array, bias: Array | None, *, blocks: RowBlocks) -> None:
        self.in_features = weight.shape[1]
        self._weight = weight
        self._bias = bias
        self._blocks = blocks

    def __call__(self, x: Array, *, padded_rows: int) -> Array:
        """Return x W^T + bias, block by block; ``padded_rows`` decides the blocks' size."""
        block_rows = self._blocks.block_rows(self._weight, padded_rows)
        out = np.empty((len(x), len(self._weight)), np.float32)
        for begin in range(0, len(x), block_rows):
            rows = x[begin : begin + block_rows]
            block = np.zeros((block_rows, x.shape[1]), np.float32)
            block[: len(rows)] = rows
            out[begin : begin + len(rows)] = _multiply(self._weight, block)[: len(rows)]
        if self._bias is not None:
            out += self._bias
        return out


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
        self._blocks = RowBlocks()
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
            return NumpyLinear(self._fp32_weight(names), bias, blocks=self._blocks)
        parts = [self._checkpoint.fp8_linear(f"{name}.weight") for name in names]
        codes = np.concatenate([part.codes for part in parts])
        scale = np.concatenate(
            [np.full(len(part.codes), part.scale, dtype=np.float32) for part in parts]
        )
        return Fp8Linear(self._gemm, Fp8Weight.from_arrays(codes, scale), bias)

    def fp32(self, weight: Array) -> Linear:
        """Return a layer without bias that stays in FP32 in every precision."""
        return NumpyLinear(weight, None, blocks=self._blocks)

    def _fp32_weight(self, names: Sequence[str]) -> Array:
        weights = [self._checkpoint.float32(f"{name}.weight") for name in names]
        return weights[0] if len(weights) == 1 else np.concatenate(weights)


def require_row_independence(linear: Linear, *, num_rows: int) -> None:
    """Raise EngineError unless a row gives the same bits at every place of a block of rows."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_rows, linear.in_features), dtype=np.float32)
    expected = linear(x, padded_rows=num_rows)
    turned = linear(x[::-1], padded_rows=num_rows)[::-1]
    shifted = np.roll(linear(np.roll(x, 1, axis=0), padded_rows=num_rows), -1, axis=0)
    alone = [linear(row, padded_rows=num_rows) for row in (x[:1], x[-1:])]
    ends_match = np.array_equal(expected[[0, -1]], np.concatenate(alone))
    if not (ends_match and all(np.array_equal(expected, moved) for moved in (turned, shifted))):
        raise EngineError(
            f"linear layer of {linear.in_features} inputs: expected the same result for a row "
            f"wherever it stands among {num_rows}, got another one; this BLAS or plugin cannot "
            f"keep a request's tokens independent of its batch"
        )
