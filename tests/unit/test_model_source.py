"""From a recipe's `model` to what is loaded."""

import hashlib
from pathlib import Path

import pytest

from pytest_qperf.adapters.model_source import checkpoint_folder_name, resolve_model
from pytest_qperf.checkpoint.synthesize import FORMAT_VERSION
from pytest_qperf.core.errors import BuildError
from pytest_qperf.core.recipe import ModelSource, SyntheticModel

TINY = SyntheticModel(synthetic="qwen2-tiny", quantization="fp8-static", seed=3)


def no_note(text: str) -> None:
    raise AssertionError(f"nothing should be written, got {text!r}")


def refusal(source: ModelSource, cache_dir: Path) -> str:
    with pytest.raises(BuildError) as caught:
        resolve_model(source, cache_dir=cache_dir, note=no_note)
    return str(caught.value)


@pytest.mark.parametrize("hub_id", ["Qwen/Qwen2.5-7B", "gpt2", "org/name_with.dots-1"])
def test_a_hub_id_is_kept_as_it_is(tmp_path: Path, hub_id: str) -> None:
    resolved = resolve_model(hub_id, cache_dir=tmp_path, note=no_note)
    assert (resolved.model, resolved.folder) == (hub_id, None)
    assert resolved.provenance == {"model_source": f"hub id {hub_id}"}


def test_a_folder_becomes_its_absolute_path_with_its_config_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.json").write_bytes(b"{}")
    monkeypatch.chdir(tmp_path)
    resolved = resolve_model("models/m", cache_dir=tmp_path, note=no_note)
    assert resolved.model == str(tmp_path / "models" / "m")
    assert resolved.folder == tmp_path / "models" / "m"
    assert resolved.provenance["model_config_sha256"] == hashlib.sha256(b"{}").hexdigest()


@pytest.mark.parametrize("path", ["/no/such/model", "./model", "../model", "~/no/such/model"])
def test_a_path_that_is_missing_is_not_taken_for_a_hub_id(tmp_path: Path, path: str) -> None:
    assert refusal(path, tmp_path).startswith(
        f"model: expected a folder with config.json, got '{path}';"
    )


def test_an_existing_folder_without_a_config_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "expected a folder with config.json, got 'empty'" in refusal("empty", tmp_path)


@pytest.mark.parametrize("text", ["", "a/b/c", "two words", "org/"])
def test_a_string_that_is_neither_folder_nor_hub_id_is_refused(tmp_path: Path, text: str) -> None:
    assert f"got {text!r}, which is none of them" in refusal(text, tmp_path)


def test_an_unknown_shape_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    source = SyntheticModel(synthetic="qwen9", quantization="bf16", seed=0)
    message = refusal(source, tmp_path)
    assert message.startswith("model: synthetic: expected a shape out of ")
    assert "qwen2.5-7b" in message
    assert "got 'qwen9'" in message


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert "checkpoints: expected a folder that can be written, got " in refusal(
        TINY, tmp_path / "cache"
    )


def test_a_synthetic_checkpoint_is_written_once_and_then_reused(tmp_path: Path) -> None:
    notes: list[str] = []
    first = resolve_model(TINY, cache_dir=tmp_path, note=notes.append)
    again = resolve_model(TINY, cache_dir=tmp_path, note=no_note)
    name = f"qwen2-tiny-fp8-static-seed3-v{FORMAT_VERSION}"
    assert first.folder == again.folder == (tmp_path / "checkpoints" / name).resolve()
    assert (Path(first.model) / "config.json").is_file()
    assert notes
    assert all(note.startswith(f"checkpoint {name}: ") for note in notes)
    assert first.provenance["model_is_reused"] == "false"
    assert again.provenance["model_is_reused"] == "true"
    assert first.provenance["model_config_sha256"] == again.provenance["model_config_sha256"]


def test_everything_that_fixes_the_bytes_is_in_the_folder_name() -> None:
    other_seed = TINY.model_copy(update={"seed": 4})
    other_format = TINY.model_copy(update={"quantization": "bf16"})
    names = {checkpoint_folder_name(source) for source in (TINY, other_seed, other_format)}
    assert len(names) == 3
