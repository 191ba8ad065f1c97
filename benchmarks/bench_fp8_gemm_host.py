"""NumPy's FP32 BLAS beside the FP8 plugin's host build, on the embedded model's linear layers.

Run: pytest benchmarks/bench_fp8_gemm_host.py (not collected by default).

A measured call is one pass over 12 layers of one shape, each with its own weights, as a decode step
or a prefill does it; the plugin's time includes quantising the activations. BLAS takes its thread
count from the environment (OPENBLAS_NUM_THREADS), the plugin gets one for each usable core.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from pytest_qperf.adapters.plugin_build import build_host_library
from pytest_qperf.checkpoint.shapes import SHAPES
from pytest_qperf.embedded.fp8_gemm import Fp8Gemm, Fp8Weight

Array = NDArray[np.float32]

SOURCE_DIR = Path(__file__).resolve().parents[1] / "plugins" / "fp8_gemm"
SHAPE = SHAPES["qwen2-embedded"]
NUM_LAYERS = SHAPE.num_hidden_layers
HEAD_DIM = SHAPE.hidden_size // SHAPE.num_attention_heads
QKV_OUTPUTS = SHAPE.hidden_size + 2 * SHAPE.num_key_value_heads * HEAD_DIM


@dataclass(frozen=True, slots=True)
class Layer:
    """N outputs and K inputs of a linear layer."""

    n: int
    k: int


LAYERS = {
    "qkv": Layer(QKV_OUTPUTS, SHAPE.hidden_size),
    "o": Layer(SHAPE.hidden_size, SHAPE.hidden_size),
    "gate_up": Layer(2 * SHAPE.intermediate_size, SHAPE.hidden_size),
    "down": Layer(SHAPE.hidden_size, SHAPE.intermediate_size),
}


@pytest.fixture(scope="session")
def gemm(tmp_path_factory: pytest.TempPathFactory) -> Fp8Gemm:
    """Build the plugin; one thread for each core this process may use."""
    cache_dir = tmp_path_factory.mktemp("plugin_cache")
    library = build_host_library(SOURCE_DIR, cache_dir=cache_dir, note=lambda _line: None)
    return Fp8Gemm(library.path, num_threads=len(os.sched_getaffinity(0)))


def _blas_pass(layer: Layer, x: Array) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    shape = (layer.n, layer.k)
    weights = [rng.standard_normal(shape, dtype=np.float32) for _ in range(NUM_LAYERS)]

    def multiply_all() -> None:
        for weight in weights:
            # As the embedded engine's FP32 baseline does it: faster than x @ weight.T.
            _ = (weight @ x.T).T

    return multiply_all


def _plugin_pass(gemm: Fp8Gemm, layer: Layer, x: Array) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    scale = np.ones(layer.n, np.float32)
    weights = [
        Fp8Weight.from_arrays(rng.integers(0, 0x7F, (layer.n, layer.k), dtype=np.uint8), scale)
        for _ in range(NUM_LAYERS)
    ]

    def multiply_all() -> None:
        for weight in weights:
            gemm.linear(x, weight)

    return multiply_all


@pytest.mark.parametrize("implementation", ["blas_fp32", "plugin_fp8"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("m", [8, 256])
def test_twelve_layers(
    benchmark: BenchmarkFixture, gemm: Fp8Gemm, m: int, name: str, implementation: str
) -> None:
    """Time one pass over the layers; decode batch 8 and a prefill of 256 tokens."""
    layer = LAYERS[name]
    x = np.random.default_rng(1).standard_normal((m, layer.k), dtype=np.float32)
    benchmark.group = f"{name} {layer.n}x{layer.k}, M = {m}"
    benchmark.extra_info.update(m=m, n=layer.n, k=layer.k, layers=NUM_LAYERS, isa=gemm.isa)
    if implementation == "blas_fp32":
        benchmark(_blas_pass(layer, x))
    else:
        benchmark(_plugin_pass(gemm, layer, x))
