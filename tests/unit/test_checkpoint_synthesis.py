import hashlib
import json
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes.tiny_checkpoint import TINY, write_tiny, write_tiny_with_info

from pytest_qperf.checkpoint import synthesize
from pytest_qperf.checkpoint.layout import LM_HEAD
from pytest_qperf.checkpoint.reading import read_checkpoint
from pytest_qperf.checkpoint.safetensors_file import SafetensorsFile
from pytest_qperf.checkpoint.synthesize import write_checkpoint
from pytest_qperf.core.errors import BuildError, RecipeError
from pytest_qperf.core.recipe import Quantization

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
DiskUsage = namedtuple("DiskUsage", "total used free")


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ("bf16", "5a13d758c5c11d368d29ae83f90191195ba571e23de7f2e9b317e37390ed4493"),
        ("fp8-static", "9f9d7c19394c4001e86a199e6996fe24d716ccd79dd6f5a4c7070fa401030752"),
        ("fp8-dynamic", "f6eba75b7410a8b560de793e1e0d6ac2df0158da4684bb1cafb5fdbe64bebdd2"),
    ],
)
def test_a_seed_gives_these_bytes_on_every_machine(
    tmp_path: Path, quantization: Quantization, expected: str
) -> None:
    assert _digest(write_tiny(tmp_path / "a", quantization)) == expected


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    first = read_checkpoint(write_tiny(tmp_path / "a", seed=0))
    second = read_checkpoint(write_tiny(tmp_path / "b", seed=1))
    assert not np.array_equal(first.float32(Q_PROJ), second.float32(Q_PROJ))


def test_bf16_and_fp8_of_a_seed_are_the_same_model(tmp_path: Path) -> None:
    bf16 = read_checkpoint(write_tiny(tmp_path / "bf16", "bf16"))
    fp8 = read_checkpoint(write_tiny(tmp_path / "fp8", "fp8-static"))
    for name in (Q_PROJ, "model.layers.1.mlp.down_proj.weight", LM_HEAD):
        np.testing.assert_array_equal(bf16.float32(name), fp8.float32(name))


def test_weights_are_centred_with_the_stated_deviation(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_tiny(tmp_path / "a"))
    for name in ("model.layers.0.mlp.gate_proj.weight", LM_HEAD):
        weight = checkpoint.float32(name)
        assert abs(weight.mean()) < 0.001
        assert weight.std() == pytest.approx(0.02, rel=0.03)


def test_norms_are_near_one(tmp_path: Path) -> None:
    norm = read_checkpoint(write_tiny(tmp_path / "a")).float32("model.norm.weight")
    assert norm.mean() == pytest.approx(1.0, abs=0.03)
    assert 0 < norm.std() < 0.1


def test_fp8_scales_have_the_names_and_shapes_vllm_loads(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "a", "fp8-static")
    file = SafetensorsFile(folder / "model-00001-of-00003.safetensors")
    for part in ("q", "k", "v", "o"):
        prefix = f"model.layers.0.self_attn.{part}_proj."
        assert file.headers[prefix + "weight"].dtype == "F8_E4M3"
        assert file.headers[prefix + "weight_scale"].shape == ()
        assert file.tensor(prefix + "weight_scale") == np.float32(2.0**-12)
        assert file.tensor(prefix + "input_scale") == np.float32(2.0**-6)


def test_dynamic_quantization_has_no_input_scales(tmp_path: Path) -> None:
    index = json.loads((write_tiny(tmp_path / "a") / "model.safetensors.index.json").read_text())
    assert not [name for name in index["weight_map"] if name.endswith("input_scale")]


def test_the_index_names_every_tensor_of_every_shard(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "a")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {path.name: SafetensorsFile(path) for path in folder.glob("*.safetensors")}
    assert index["weight_map"] == {
        name: file for file, content in files.items() for name in content.headers
    }


def test_a_block_boundary_inside_a_tensor_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _digest(write_tiny(tmp_path / "whole"))
    monkeypatch.setattr(synthesize, "_BLOCK_BYTES", 1024)
    assert _digest(write_tiny(tmp_path / "pieces")) == whole


def test_tied_embeddings_have_no_lm_head(tmp_path: Path) -> None:
    shape = replace(TINY, tie_word_embeddings=True)
    write_checkpoint(
        shape, quantization="bf16", seed=0, out=tmp_path / "a", note=lambda _line: None
    )
    assert LM_HEAD not in read_checkpoint(tmp_path / "a").files


def test_progress_is_noted_shard_by_shard(tmp_path: Path) -> None:
    lines: list[str] = []
    write_checkpoint(TINY, quantization="bf16", seed=0, out=tmp_path / "a", note=lines.append)
    assert [line.split(",")[0] for line in lines] == [
        f"shard {number} of 3 written" for number in (1, 2, 3)
    ]


def test_a_complete_checkpoint_is_reused(tmp_path: Path) -> None:
    first = write_tiny_with_info(tmp_path / "a")
    written_at = (tmp_path / "a" / "config.json").stat().st_mtime_ns
    second = write_tiny_with_info(tmp_path / "a")
    assert (first.is_reused, second.is_reused) == (False, True)
    assert first.size_bytes == second.size_bytes
    assert (tmp_path / "a" / "config.json").stat().st_mtime_ns == written_at


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert not write_tiny_with_info(tmp_path / "a").is_reused


def test_a_checkpoint_of_another_seed_is_refused(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a", seed=0)
    with pytest.raises(BuildError, match="a: expected a checkpoint with seed 1, got 0; choose"):
        write_tiny(tmp_path / "a", seed=1)


def test_a_folder_with_other_contents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BuildError, match="expected nothing or a checkpoint of this project"):
        write_tiny(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_manifest_that_is_not_json_is_refused(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "a")
    (folder / "checkpoint.json").write_text("{")
    with pytest.raises(BuildError, match=r"checkpoint.json: expected JSON"):
        write_tiny(folder)


@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_a_damaged_checkpoint_is_not_reused(tmp_path: Path, damage: str) -> None:
    shard = write_tiny(tmp_path / "a") / "model-00002-of-00003.safetensors"
    if damage == "remove":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(BuildError, match=r"00002-of-00003.safetensors: expected \d+ bytes, got"):
        write_tiny(tmp_path / "a")


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(TINY, quantization="bf16", seed=0, out=tmp_path / "a", note=fail)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_finished_meanwhile_by_another_process_is_used(tmp_path: Path) -> None:
    def finish_first(_line: str) -> None:
        if not (tmp_path / "a").exists():
            shutil.copytree(write_tiny(tmp_path / "other"), tmp_path / "a")

    info = write_checkpoint(
        TINY, quantization="fp8-dynamic", seed=0, out=tmp_path / "a", note=finish_first
    )
    assert info.is_reused


def test_a_full_disk_is_reported_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: DiskUsage(100, 90, 10))
    with pytest.raises(BuildError, match=r"expected \d+ bytes of free disk, got 10"):
        write_tiny(tmp_path / "a")


def test_a_vocabulary_without_room_for_the_bytes_is_refused(tmp_path: Path) -> None:
    shape = replace(TINY, vocab_size=200, bos_token_id=None, eos_token_ids=(199,))
    with pytest.raises(RecipeError, match="expected vocab_size and eos_token_ids of 256 or more"):
        write_checkpoint(
            shape, quantization="bf16", seed=0, out=tmp_path / "a", note=lambda _line: None
        )
