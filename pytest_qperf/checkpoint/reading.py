"""Reading a checkpoint folder: every tensor checked against the config before any is used."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_qperf.checkpoint.config_file import ModelConfig, read_config
from pytest_qperf.checkpoint.float_formats import bfloat16_to_float32, decode_e4m3
from pytest_qperf.checkpoint.layout import layer_tensors, outer_tensors, scale_name
from pytest_qperf.checkpoint.safetensors_file import SafetensorsFile, TensorHeader
from pytest_qperf.core.errors import BuildError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """A quantised weight: ``codes`` (N, K) e4m3 as uint8, ``scale`` one float for all of it."""

    codes: NDArray[np.uint8]
    scale: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose tensors all are what its config says; data is mapped, read when used."""

    folder: Path
    config: ModelConfig
    files: dict[str, SafetensorsFile]

    def float32(self, name: str) -> NDArray[np.float32]:
        """Return a tensor's values; a quantised weight is multiplied by its scale."""
        patterns = self.files[name].tensor(name)
        if patterns.dtype == np.uint8:
            values: NDArray[np.float32] = decode_e4m3(patterns)
            values *= np.float32(self._scale(name))
            return values
        if patterns.dtype == np.uint16:
            return bfloat16_to_float32(patterns)
        return np.array(patterns, dtype=np.float32)

    def fp8_linear(self, name: str) -> Fp8Linear:
        """Return a linear weight as it is stored; raise BuildError if it is not FP8."""
        if self.config.quantization == "bf16":
            raise BuildError(
                f"{self.folder}: expected an FP8 checkpoint (quantization_config in config.json), "
                f"got bf16 weights"
            )
        return Fp8Linear(np.asarray(self.files[name].tensor(name)), self._scale(name))

    def _scale(self, weight_name: str) -> float:
        name = scale_name(weight_name, "weight")
        scale = float(self.files[name].tensor(name).reshape(-1)[0])
        if not (np.isfinite(scale) and scale > 0):
            raise BuildError(f"{self.folder}: {name}: expected a positive scale, got {scale}")
        return scale


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return the checked checkpoint in ``folder``.

    Raises BuildError (folder, file or tensor missing, or of another type or shape) or RecipeError
    (config.json).
    """
    if not folder.is_dir():
        raise BuildError(f"{folder}: expected a model folder, got no folder of that name")
    config = read_config(folder / "config.json")
    files = _files_by_tensor(folder)
    problems = [
        problem
        for header in _expected_headers(config)
        if (problem := _mismatch(header, files)) is not None
    ]
    if problems:
        raise BuildError("\n".join(f"{folder}: {problem}" for problem in problems[:10]))
    return Checkpoint(folder=folder, config=config, files=files)


def _files_by_tensor(folder: Path) -> dict[str, SafetensorsFile]:
    if (folder / _SINGLE).is_file():
        file = SafetensorsFile(folder / _SINGLE)
        return dict.fromkeys(file.headers, file)
    index = folder / _INDEX
    if not index.is_file():
        raise BuildError(f"{folder}: expected {_SINGLE} or {_INDEX}, got neither")
    try:
        content: Any = json.loads(index.read_bytes())
        weight_map = {str(name): str(file) for name, file in content["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildError(f"{index}: expected JSON with a weight_map, got {error!r}") from error
    opened = {name: SafetensorsFile(folder / name) for name in sorted(set(weight_map.values()))}
    return {name: opened[file] for name, file in weight_map.items()}


def _expected_headers(config: ModelConfig) -> list[TensorHeader]:
    shape = config.shape
    layers = (spec for i in range(shape.num_hidden_layers) for spec in layer_tensors(shape, i))
    headers = []
    for spec in (*layers, *outer_tensors(shape)):
        is_fp8 = spec.part == "linear" and config.quantization != "bf16"
        headers.append(TensorHeader(spec.name, "F8_E4M3" if is_fp8 else "BF16", spec.shape))
        if is_fp8:
            headers.append(TensorHeader(scale_name(spec.name, "weight"), "F32", ()))
    return headers


def _mismatch(expected: TensorHeader, files: dict[str, SafetensorsFile]) -> str | None:
    file = files.get(expected.name)
    found = None if file is None else file.headers.get(expected.name)
    if found is None:
        return f"{expected.name}: expected {_describe(expected)}, got no such tensor"
    is_scale = expected.shape == () and found.shape in ((), (1,))
    if found.dtype != expected.dtype or not (is_scale or found.shape == expected.shape):
        return f"{expected.name}: expected {_describe(expected)}, got {_describe(found)}"
    return None


def _describe(header: TensorHeader) -> str:
    return f"{header.dtype} {list(header.shape)}"
