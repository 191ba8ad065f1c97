"""The safetensors format: a streaming writer, and a reader that maps the file.

Layout: 8 bytes little-endian header length, a JSON header padded with spaces, the tensors' bytes.
Source: https://github.com/huggingface/safetensors#format
"""

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from pytest_qperf.core.errors import BuildError

Dtype = Literal["F32", "BF16", "F8_E4M3"]
NUMPY_DTYPES: dict[Dtype, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
}
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor of a file, without its bytes."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return the size of the tensor's data."""
        return prod(self.shape) * NUMPY_DTYPES[self.dtype].itemsize


Blocks = Callable[[TensorHeader], Iterable[bytes]]
"""Gives a tensor's bytes, little-endian and row-major, piece by piece."""


def write_safetensors(path: Path, headers: Sequence[TensorHeader], blocks: Blocks) -> int:
    """Write the tensors one at a time; return the file's size in bytes.

    Raises ValueError if ``blocks`` gives a tensor more or fewer bytes than its header says.
    """
    # Widest type first: every tensor is then aligned to its own item size.
    ordered = sorted(headers, key=lambda header: -NUMPY_DTYPES[header.dtype].itemsize)
    with path.open("wb") as file:
        file.write(_encode_header(ordered))
        for header in ordered:
            written = sum(file.write(block) for block in blocks(header))
            if written != header.num_bytes:
                raise ValueError(f"{header.name}: expected {header.num_bytes} bytes, got {written}")
        return file.tell()


def _encode_header(ordered: Sequence[TensorHeader]) -> bytes:
    content: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for header in ordered:
        end = begin + header.num_bytes
        content[header.name] = {
            "dtype": header.dtype,
            "shape": list(header.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


class SafetensorsFile:
    """A checked file; ``tensor`` maps its data, nothing is read before it is used."""

    def __init__(self, path: Path) -> None:
        """Read and check the header; raise BuildError for a file that is not what it says."""
        self.path = path
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                content, self._data_begin = _decode_header(path, file, size)
        except OSError as error:
            raise BuildError(
                f"{path}: expected a readable safetensors file, got {error}"
            ) from error
        self._offsets: dict[str, int] = {}
        self.headers: dict[str, TensorHeader] = {}
        for name, entry in content.items():
            if name != "__metadata__":
                self.headers[name], self._offsets[name] = _decode_entry(path, name, entry)
        self._check_offsets(size - self._data_begin)

    def _check_offsets(self, data_bytes: int) -> None:
        expected = 0
        for name, begin in sorted(self._offsets.items(), key=lambda item: item[1]):
            num_bytes = self.headers[name].num_bytes
            if begin != expected and num_bytes:
                kind = "overlapping" if begin < expected else "unused"
                raise BuildError(
                    f"{self.path}: {name}: expected data at offset {expected}, got {begin} "
                    f"({kind} bytes); write the file again"
                )
            expected += num_bytes
        if expected != data_bytes:
            kind = "truncated" if data_bytes < expected else "longer than its header says"
            raise BuildError(
                f"{self.path}: expected {expected} bytes of tensors, got {data_bytes} ({kind}); "
                f"write or download the file again"
            )

    def tensor(self, name: str) -> NDArray[Any]:
        """Return a read-only view: float32, bfloat16 as uint16, float8 e4m3 as uint8.

        Raises BuildError if the file has no such tensor.
        """
        if name not in self.headers:
            raise BuildError(f"{self.path}: expected a tensor {name}, got none of that name")
        header = self.headers[name]
        return np.memmap(
            self.path,
            dtype=NUMPY_DTYPES[header.dtype],
            mode="r",
            offset=self._data_begin + self._offsets[name],
            shape=header.shape,
        )


def _decode_header(path: Path, file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
        raise BuildError(
            f"{path}: expected a header of 2 to {_MAX_HEADER_BYTES} bytes inside the file, "
            f"got a length of {length} in a file of {size} bytes (truncated, or not safetensors)"
        )
    try:
        content = json.loads(file.read(length))
    except ValueError as error:
        raise BuildError(f"{path}: expected a JSON header, got {error}") from error
    if not isinstance(content, dict):
        raise BuildError(f"{path}: expected a JSON object as header, got {type(content).__name__}")
    return content, 8 + length


def _decode_entry(path: Path, name: str, entry: object) -> tuple[TensorHeader, int]:
    where = f"{path}: {name}"
    if not isinstance(entry, dict) or {"dtype", "shape", "data_offsets"} - entry.keys():
        raise BuildError(f"{where}: expected dtype, shape and data_offsets, got {entry!r}")
    if entry["dtype"] not in get_args(Dtype):
        known = ", ".join(get_args(Dtype))
        raise BuildError(f"{where}: expected a dtype out of {known}, got {entry['dtype']!r}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise BuildError(
            f"{where}: expected a shape and two data_offsets, got {shape!r} and {offsets!r}"
        )
    header = TensorHeader(name, cast("Dtype", entry["dtype"]), tuple(shape))
    if offsets[1] - offsets[0] != header.num_bytes:
        raise BuildError(
            f"{where}: expected {header.num_bytes} bytes for {header.dtype} {list(shape)}, "
            f"got offsets {offsets}"
        )
    return header, offsets[0]


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
