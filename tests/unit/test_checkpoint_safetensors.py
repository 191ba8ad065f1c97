import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_qperf.checkpoint.safetensors_file import (
    SafetensorsFile,
    TensorHeader,
    write_safetensors,
)
from pytest_qperf.core.errors import BuildError

CODES = TensorHeader("codes", "F8_E4M3", (3, 5))
SCALE = TensorHeader("scale", "F32", ())
HALF = TensorHeader("half", "BF16", (2,))
CONTENTS = {
    "codes": bytes(range(15)),
    "scale": struct.pack("<f", 0.5),
    "half": struct.pack("<HH", 0x3F80, 0x4000),
}


def _write(path: Path) -> Path:
    write_safetensors(path, [CODES, SCALE, HALF], lambda header: [CONTENTS[header.name]])
    return path


def _write_raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def _entry(**changes: object) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = SafetensorsFile(_write(tmp_path / "a.safetensors"))
    np.testing.assert_array_equal(file.tensor("codes"), np.arange(15).reshape(3, 5))
    assert file.tensor("scale") == np.float32(0.5)
    np.testing.assert_array_equal(file.tensor("half"), [0x3F80, 0x4000])


def test_data_begins_at_a_multiple_of_eight_and_the_widest_type_comes_first(
    tmp_path: Path,
) -> None:
    data = _write(tmp_path / "a.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    assert length % 8 == 0
    assert data[8 + length :] == CONTENTS["scale"] + CONTENTS["half"] + CONTENTS["codes"]


def test_the_metadata_says_pt_which_transformers_requires(tmp_path: Path) -> None:
    data = _write(tmp_path / "a.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    assert header["__metadata__"] == {"format": "pt"}


def test_writing_too_few_bytes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="codes: expected 15 bytes, got 2"):
        write_safetensors(tmp_path / "a", [CODES], lambda _header: [b"ab"])


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    file = SafetensorsFile(_write(tmp_path / "a.safetensors"))
    with pytest.raises(BuildError, match="expected a tensor nope, got none of that name"):
        file.tensor("nope")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="expected a readable safetensors file"):
        SafetensorsFile(tmp_path / "none.safetensors")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BuildError, match=r"expected 23 bytes of tensors, got 22 \(truncated\)"):
        SafetensorsFile(path)


def test_a_file_longer_than_its_header_says_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.safetensors")
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(BuildError, match="longer than its header says"):
        SafetensorsFile(path)


@pytest.mark.parametrize("data", [b"", b"\x00" * 8, struct.pack("<Q", 1000) + b"{}"])
def test_a_header_that_does_not_fit_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(BuildError, match="expected a header of 2 to"):
        SafetensorsFile(path)


def test_a_header_that_is_not_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2) + b"{!")
    with pytest.raises(BuildError, match="expected a JSON header"):
        SafetensorsFile(path)


def test_a_header_that_is_not_an_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="expected a JSON object as header, got list"):
        SafetensorsFile(_write_raw(tmp_path / "a", [1]))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32"}, "x: expected dtype, shape and data_offsets"),
        (_entry(dtype="I4"), "x: expected a dtype out of F32, BF16, F8_E4M3, got 'I4'"),
        (_entry(shape=[-1]), "x: expected a shape and two data_offsets"),
        (_entry(data_offsets=[0]), "x: expected a shape and two data_offsets"),
        (_entry(data_offsets=[0, 3]), r"x: expected 4 bytes for F32 \[1\], got offsets \[0, 3\]"),
    ],
)
def test_a_wrong_entry_is_refused(tmp_path: Path, entry: object, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        SafetensorsFile(_write_raw(tmp_path / "a", {"x": entry}, b"1234"))


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    header = {"x": _entry(), "y": _entry(data_offsets=[2, 6])}
    with pytest.raises(BuildError, match=r"y: expected data at offset 4, got 2 \(overlapping"):
        SafetensorsFile(_write_raw(tmp_path / "a", header, b"123456"))


def test_a_hole_between_tensors_is_refused(tmp_path: Path) -> None:
    header = {"x": _entry(), "y": _entry(data_offsets=[5, 9])}
    with pytest.raises(BuildError, match=r"y: expected data at offset 4, got 5 \(unused"):
        SafetensorsFile(_write_raw(tmp_path / "a", header, b"123456789"))


@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_file_or_a_build_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(data)
    try:
        file = SafetensorsFile(path)
    except BuildError:
        return
    assert all(file.tensor(name).size >= 0 for name in file.headers)
