"""Seeded random checkpoints: the same bytes for the same seed on every machine.

Every linear weight is an e4m3 code times one power-of-two scale, in each quantization: bfloat16
holds those products exactly, so the BF16 and FP8 variants of a seed are the same model, and an
engine that fuses q, k and v under their largest scale changes nothing.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_qperf.checkpoint.config_file import (
    ModelConfig,
    render_config,
    render_generation_config,
)
from pytest_qperf.checkpoint.float_formats import (
    E4M3_VALUES,
    encode_e4m3,
    float32_to_bfloat16,
)
from pytest_qperf.checkpoint.layout import TensorSpec, layer_tensors, outer_tensors, scale_name
from pytest_qperf.checkpoint.safetensors_file import TensorHeader, write_safetensors
from pytest_qperf.checkpoint.shapes import Qwen2Shape
from pytest_qperf.checkpoint.tokenizer_file import (
    NUM_BYTES,
    render_tokenizer,
    render_tokenizer_config,
)
from pytest_qperf.core.errors import BuildError, RecipeError
from pytest_qperf.core.recipe import Quantization

MANIFEST = "checkpoint.json"
FORMAT_VERSION = 1
WEIGHT_STD = 0.02
NORM_STD = 0.05
WEIGHT_SCALE = 2.0**-12
INPUT_SCALE = 2.0**-6
"""Static activation scale: covers 448 x 2^-6 = 7, above any normalised activation's usual peak."""

_BLOCK_BYTES = 2**20
_SIDECAR_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A finished checkpoint. ``is_reused`` says that the folder was already complete."""

    folder: Path
    num_parameters: int
    size_bytes: int
    is_reused: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """Everything that fixes the bytes of a checkpoint."""

    shape: Qwen2Shape
    quantization: Quantization
    seed: int

    def identity(self) -> dict[str, Any]:
        content = {
            "format": "pytest-qperf synthetic checkpoint",
            "format_version": FORMAT_VERSION,
            "shape": {**asdict(self.shape), "eos_token_ids": [*self.shape.eos_token_ids]},
            "quantization": self.quantization,
            "seed": self.seed,
        }
        return content

    def shards(self) -> tuple[tuple[TensorSpec, ...], ...]:
        layers = range(self.shape.num_hidden_layers)
        return (
            *(layer_tensors(self.shape, layer) for layer in layers),
            outer_tensors(self.shape),
        )

    def headers(self, specs: Sequence[TensorSpec]) -> list[TensorHeader]:
        headers = []
        for spec in specs:
            is_fp8 = spec.part == "linear" and self.quantization != "bf16"
            headers.append(TensorHeader(spec.name, "F8_E4M3" if is_fp8 else "BF16", spec.shape))
            if is_fp8:
                headers.append(TensorHeader(scale_name(spec.name, "weight"), "F32", ()))
            if is_fp8 and self.quantization == "fp8-static":
                headers.append(TensorHeader(scale_name(spec.name, "input"), "F32", ()))
        return headers


def write_checkpoint(
    shape: Qwen2Shape,
    *,
    quantization: Quantization,
    seed: int,
    out: Path,
    note: Callable[[str], None],
) -> CheckpointInfo:
    """Write a folder in Hugging Face layout to ``out``, one shard a layer, and return what it is.

    The folder appears under its name only when complete; a complete one of the same shape,
    quantization and seed is used again. ``note`` gets a line of progress a shard. Memory stays
    below 200 MB whatever the shape. Raises BuildError if ``out`` holds anything else or if the
    disk has no room, RecipeError for a vocabulary without room for the 256 bytes.
    """
    plan = _Plan(shape, quantization, seed)
    if min(shape.vocab_size, *shape.eos_token_ids) < NUM_BYTES:
        raise RecipeError(
            [
                f"shape: expected vocab_size and eos_token_ids of {NUM_BYTES} or more (the first "
                f"tokens are the bytes), got {shape.vocab_size} and {shape.eos_token_ids}"
            ]
        )
    if out.exists() and not _is_empty_folder(out):
        return _reuse(out, plan)
    out.parent.mkdir(parents=True, exist_ok=True)
    _require_room(out, plan)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    try:
        partial.chmod(0o755)
        sizes = _write_folder(partial, plan, note=note)
        try:
            partial.rename(out)
        except OSError:
            if not out.exists():
                raise
            return _reuse(out, plan)  # another process finished the same folder first
        return CheckpointInfo(out, _num_parameters(plan), sum(sizes.values()), is_reused=False)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is None


def _num_parameters(plan: _Plan) -> int:
    return sum(int(np.prod(spec.shape)) for specs in plan.shards() for spec in specs)


def _reuse(out: Path, plan: _Plan) -> CheckpointInfo:
    manifest_path = out / MANIFEST
    wanted = plan.identity()
    if not manifest_path.is_file():
        raise BuildError(
            f"{out}: expected nothing or a checkpoint of this project, got other contents; "
            f"choose another folder or remove it"
        )
    try:
        manifest: dict[str, Any] = json.loads(manifest_path.read_bytes())
    except ValueError as error:
        raise BuildError(
            f"{manifest_path}: expected JSON, got {error}; remove the folder"
        ) from error
    found = {key: manifest.get(key) for key in wanted}
    if found != wanted:
        key = next(key for key in wanted if found[key] != wanted[key])
        raise BuildError(
            f"{out}: expected a checkpoint with {key} {wanted[key]!r}, got {found[key]!r}; "
            f"choose another folder or remove it"
        )
    sizes: dict[str, int] = manifest["file_sizes_bytes"]
    for name, size in sizes.items():
        actual = (out / name).stat().st_size if (out / name).is_file() else None
        if actual != size:
            raise BuildError(
                f"{out / name}: expected {size} bytes, got {actual}; remove the folder {out}"
            )
    return CheckpointInfo(out, _num_parameters(plan), sum(sizes.values()), is_reused=True)


def _require_room(out: Path, plan: _Plan) -> None:
    tensors = sum(header.num_bytes for specs in plan.shards() for header in plan.headers(specs))
    needed, free = tensors + _SIDECAR_BYTES, shutil.disk_usage(out.parent).free
    if free < needed:
        raise BuildError(
            f"{out}: expected {needed} bytes of free disk, got {free}; free some or choose "
            f"another folder"
        )


def _write_folder(folder: Path, plan: _Plan, *, note: Callable[[str], None]) -> dict[str, int]:
    config = ModelConfig(plan.shape, plan.quantization)
    sidecars = {
        "config.json": render_config(config),
        "generation_config.json": render_generation_config(plan.shape),
        "tokenizer.json": render_tokenizer(plan.shape),
        "tokenizer_config.json": render_tokenizer_config(plan.shape),
    }
    sizes = {}
    shards = plan.shards()
    weight_map: dict[str, str] = {}
    for number, specs in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        headers = plan.headers(specs)
        sizes[name] = write_safetensors(folder / name, headers, _Blocks(plan, specs))
        weight_map.update({header.name: name for header in headers})
        note(f"shard {number} of {len(shards)} written, {sum(sizes.values()) / 1e9:.2f} GB")
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
    sidecars["model.safetensors.index.json"] = json.dumps(index, indent=1, sort_keys=True) + "\n"
    for name, text in sidecars.items():
        sizes[name] = (folder / name).write_bytes(text.encode())
    manifest = {**plan.identity(), "file_sizes_bytes": sizes}
    (folder / MANIFEST).write_bytes((json.dumps(manifest, indent=1) + "\n").encode())
    return sizes


class _Blocks:
    """The bytes of one shard's tensors."""

    def __init__(self, plan: _Plan, specs: Sequence[TensorSpec]) -> None:
        self._plan = plan
        self._specs = {spec.name: spec for spec in specs}

    def __call__(self, header: TensorHeader) -> Iterator[bytes]:
        spec = self._specs.get(header.name)
        if spec is None:
            scale = WEIGHT_SCALE if header.name.endswith("weight_scale") else INPUT_SCALE
            yield np.array(scale, dtype="<f4").tobytes()
            return
        count = int(np.prod(spec.shape))
        if spec.part != "linear":
            table = _norm_table() if spec.part == "norm" else _bfloat16_table()
            for raw in _raw_blocks(self._plan.seed, spec.name, num_bytes=2 * count):
                yield table[np.frombuffer(raw, "<u2")].tobytes()
            return
        codes = _code_table()
        for raw in _raw_blocks(self._plan.seed, spec.name, num_bytes=count):
            # bytes.translate: 2.8 GB/s a core, numpy's take 0.5 GB/s (2026-12).
            block = raw.translate(codes.tobytes())
            if header.dtype == "BF16":
                block = _code_to_bfloat16()[np.frombuffer(block, np.uint8)].tobytes()
            yield block


def _raw_blocks(seed: int, name: str, *, num_bytes: int) -> Iterator[bytes]:
    """Give uniform random bytes that depend on the seed and the tensor's name alone."""
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = np.random.PCG64(int.from_bytes(key, "little"))
    while num_bytes > 0:
        size = min(num_bytes, _BLOCK_BYTES)
        words = generator.random_raw(-(-size // 8))
        yield words.astype("<u8", copy=False).tobytes()[:size]
        num_bytes -= size


@cache
def _normal_quantiles(count: int) -> NDArray[np.float64]:
    """Return the standard normal's quantiles at (i + 1/2) / count: equally likely values."""
    upper = [NormalDist().inv_cdf((index + 0.5) / count) for index in range(count // 2, count)]
    return np.concatenate([-np.array(upper[::-1]), upper])


@cache
def _code_table() -> NDArray[np.uint8]:
    return encode_e4m3(_normal_quantiles(256) * (WEIGHT_STD / WEIGHT_SCALE))


@cache
def _code_to_bfloat16() -> NDArray[np.uint16]:
    return float32_to_bfloat16(E4M3_VALUES * np.float32(WEIGHT_SCALE)).astype("<u2")


@cache
def _bfloat16_table() -> NDArray[np.uint16]:
    values = _normal_quantiles(65536) * WEIGHT_STD
    return float32_to_bfloat16(values.astype(np.float32)).astype("<u2")


@cache
def _norm_table() -> NDArray[np.uint16]:
    values = 1.0 + _normal_quantiles(65536) * NORM_STD
    return float32_to_bfloat16(values.astype(np.float32)).astype("<u2")
