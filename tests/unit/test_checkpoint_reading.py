import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.tiny_checkpoint import write_tiny

from pytest_qperf.checkpoint.float_formats import E4M3_VALUES
from pytest_qperf.checkpoint.reading import read_checkpoint
from pytest_qperf.checkpoint.safetensors_file import (
    SafetensorsFile,
    TensorHeader,
    write_safetensors,
)
from pytest_qperf.core.errors import BuildError, RecipeError

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
SHARD = "model-00001-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


def _patch_index(folder: Path, weight_map: dict[str, Any]) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def _weight_map(folder: Path) -> dict[str, Any]:
    weight_map: dict[str, Any] = json.loads((folder / INDEX).read_text())["weight_map"]
    return weight_map


def test_a_quantised_weight_reads_as_code_value_times_scale(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny(tmp_path / "a"))
    stored = checkpoint.fp8_linear(Q_PROJ)
    assert stored.scale == 2.0**-12
    np.testing.assert_array_equal(
        checkpoint.float32(Q_PROJ), E4M3_VALUES[stored.codes] * np.float32(2.0**-12)
    )


def test_a_single_file_checkpoint_is_read(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "a", "bf16")
    files = {path: SafetensorsFile(path) for path in folder.glob("*.safetensors")}
    owners = {name: file for file in files.values() for name in file.headers}
    write_safetensors(
        folder / "model.safetensors",
        [owners[name].headers[name] for name in owners],
        lambda header: [owners[header.name].tensor(header.name).tobytes()],
    )
    expected = read_checkpoint(write_tiny(tmp_path / "b", "bf16")).float32(Q_PROJ)
    for path in (*files, folder / INDEX):
        path.unlink()
    np.testing.assert_array_equal(read_checkpoint(folder).float32(Q_PROJ), expected)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="nowhere: expected a model folder, got no folder"):
        read_checkpoint(tmp_path / "nowhere")


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"config.json: expected a readable config.json"):
        read_checkpoint(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "a")
    (folder / INDEX).unlink()
    with pytest.raises(
        BuildError, match=r"expected model.safetensors or .*index.json, got neither"
    ):
        read_checkpoint(folder)


def test_an_index_without_a_weight_map_is_refused(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "a")
    (folder / INDEX).write_text("{}")
    with pytest.raises(BuildError, match="expected JSON with a weight_map"):
        read_checkpoint(folder)


def test_a_missing_tensor_is_named_with_what_it_should_be(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "a")
    weight_map = _weight_map(folder)
    del weight_map[Q_PROJ]
    _patch_index(folder, weight_map)
    with pytest.raises(
        BuildError, match=r"q_proj.weight: expected F8_E4M3 \[64, 64\], got no such"
    ):
        read_checkpoint(folder)


def test_a_tensor_that_is_only_in_the_index_is_missing(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "a")
    _patch_index(folder, _weight_map(folder) | {Q_PROJ: "model-00002-of-00003.safetensors"})
    with pytest.raises(BuildError, match=r"q_proj.weight: .* got no such tensor"):
        read_checkpoint(folder)


def test_a_tensor_of_another_type_is_refused(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "a", "bf16")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BuildError, match=r"expected F8_E4M3 \[64, 64\], got BF16 \[64, 64\]"):
        read_checkpoint(folder)


def test_codes_of_a_bf16_checkpoint_are_refused(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny(tmp_path / "a", "bf16"))
    with pytest.raises(BuildError, match=r"expected an FP8 checkpoint .* got bf16 weights"):
        checkpoint.fp8_linear(Q_PROJ)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_not_positive_is_refused(tmp_path: Path, scale: float) -> None:
    folder = write_tiny(tmp_path / "a")
    file = SafetensorsFile(folder / SHARD)
    contents = {name: file.tensor(name).tobytes() for name in file.headers}
    contents[f"{Q_PROJ}_scale"] = struct.pack("<f", scale)

    def blocks(header: TensorHeader) -> list[bytes]:
        return [contents[header.name]]

    write_safetensors(folder / SHARD, list(file.headers.values()), blocks)
    with pytest.raises(BuildError, match=r"q_proj.weight_scale: expected a positive scale, got"):
        read_checkpoint(folder).float32(Q_PROJ)
