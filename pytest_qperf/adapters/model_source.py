"""From a recipe's `model` to what a server is told to load."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from pytest_qperf.checkpoint.shapes import SHAPES
from pytest_qperf.checkpoint.synthesize import FORMAT_VERSION, write_checkpoint
from pytest_qperf.core.errors import BuildError
from pytest_qperf.core.recipe import ModelSource, SyntheticModel

CONFIG_FILE = "config.json"
# The Hub's rule: an optional organisation, then a name, of letters, digits, '-', '_' and '.'.
HUB_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What to load: a folder's absolute path, or a hub id (then ``folder`` is None)."""

    model: str
    folder: Path | None
    provenance: dict[str, str] = field(default_factory=dict)


def resolve_model(
    source: ModelSource, *, cache_dir: Path, note: Callable[[str], None]
) -> ResolvedModel:
    """Return the model to load; a synthetic checkpoint is written into ``cache_dir`` on first use.

    A string that names an existing folder is that folder (relative to the current one), any other
    is a hub id. Raises BuildError.
    """
    if isinstance(source, SyntheticModel):
        return _synthetic(source, cache_dir=cache_dir, note=note)
    folder = Path(source).expanduser() if source else None
    if folder is not None and (folder / CONFIG_FILE).is_file():
        return _folder(folder.resolve())
    looks_like_a_path = source.startswith(("/", "./", "../", "~")) or source in (".", "..")
    if looks_like_a_path or (folder is not None and folder.exists()):
        raise BuildError(
            f"model: expected a folder with {CONFIG_FILE}, got {source!r}; "
            f"name a folder in Hugging Face layout, a hub id or a synthetic checkpoint"
        )
    if HUB_ID.fullmatch(source) is None:
        raise BuildError(
            f"model: expected a folder, a hub id such as 'Qwen/Qwen2.5-7B' or a synthetic "
            f"checkpoint, got {source!r}, which is none of them"
        )
    return ResolvedModel(model=source, folder=None, provenance={"model_source": f"hub id {source}"})


def checkpoint_folder_name(source: SyntheticModel) -> str:
    """Return the cache folder's name: everything that fixes the checkpoint's bytes."""
    return f"{source.synthetic}-{source.quantization}-seed{source.seed}-v{FORMAT_VERSION}"


def _folder(folder: Path) -> ResolvedModel:
    provenance = {"model_source": f"folder {folder}"} | _config_digest(folder)
    return ResolvedModel(model=str(folder), folder=folder, provenance=provenance)


def _synthetic(
    source: SyntheticModel, *, cache_dir: Path, note: Callable[[str], None]
) -> ResolvedModel:
    shape = SHAPES.get(source.synthetic)
    if shape is None:
        raise BuildError(
            f"model: synthetic: expected a shape out of {', '.join(sorted(SHAPES))}, "
            f"got {source.synthetic!r}; see `qperf checkpoint shapes`"
        )
    name = checkpoint_folder_name(source)
    folder = (cache_dir / "checkpoints" / name).resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(
            f"{folder.parent}: expected a folder that can be written, got {error.strerror}; "
            f"choose another cache folder"
        ) from error
    # Two arms or two sessions share one checkpoint: the second waits for the first, then reuses.
    with FileLock(folder.with_name(f"{name}.lock")):
        info = write_checkpoint(
            shape,
            quantization=source.quantization,
            seed=source.seed,
            out=folder,
            note=lambda line: note(f"checkpoint {name}: {line}"),
        )
    provenance = {
        "model_source": f"synthetic {name}",
        "model_num_parameters": str(info.num_parameters),
        "model_size_bytes": str(info.size_bytes),
        "model_is_reused": str(info.is_reused).lower(),
    }
    return ResolvedModel(
        model=str(folder), folder=folder, provenance=provenance | _config_digest(folder)
    )


def _config_digest(folder: Path) -> dict[str, str]:
    digest = hashlib.sha256((folder / CONFIG_FILE).read_bytes()).hexdigest()
    return {"model_config_sha256": digest}
