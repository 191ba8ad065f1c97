"""Real checkpoint folders of a few hundred KB."""

from pathlib import Path

from pytest_qperf.checkpoint.shapes import SHAPES
from pytest_qperf.checkpoint.synthesize import CheckpointInfo, write_checkpoint
from pytest_qperf.core.recipe import Quantization

TINY = SHAPES["qwen2-tiny"]


def write_tiny(out: Path, quantization: Quantization = "fp8-dynamic", seed: int = 0) -> Path:
    """Write the tiny shape to ``out`` and return ``out``."""
    return write_tiny_with_info(out, quantization, seed).folder


def write_tiny_with_info(
    out: Path, quantization: Quantization = "fp8-dynamic", seed: int = 0
) -> CheckpointInfo:
    """Write the tiny shape to ``out``."""
    return write_checkpoint(
        TINY, quantization=quantization, seed=seed, out=out, note=lambda _line: None
    )
