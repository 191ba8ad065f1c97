"""What the C interface and its binding refuse, with which words; and the calls that do nothing."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fakes import fp8_reference
from numpy.typing import NDArray

from pytest_qperf.core.errors import EngineError
from pytest_qperf.embedded.fp8_gemm import (
    Fp8Gemm,
    Fp8Weight,
    GemmOperands,
    GemmProblem,
    OutType,
    Status,
    load_library,
)

M, N, K = 2, 3, 32
WORKSPACE_BYTES = 1 << 20


def aligned_zeros(num_bytes: int) -> NDArray[np.uint8]:
    zeros = np.zeros((1, num_bytes), np.uint8)
    codes = Fp8Weight.from_arrays(zeros, np.ones(1, np.float32)).codes
    return codes.reshape(-1)


class Call:
    """A valid call of the C interface, to be made wrong in one place."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.memory = aligned_zeros(WORKSPACE_BYTES)
        self.address = self.memory.ctypes.data
        self.problem = GemmProblem(m=M, n=N, k=K)
        self.operands = GemmOperands(
            **dict.fromkeys(("a", "w", "scale_a", "scale_w", "out", "workspace"), self.address),
            workspace_bytes=WORKSPACE_BYTES,
        )

    def launch(self) -> tuple[Status, str]:
        """Return the status and the message of the launch."""
        message = ctypes.create_string_buffer(256)
        status = self.library.qperf_fp8_gemm_launch(self.problem, self.operands, None, message, 256)
        return Status(status), message.value.decode()


@pytest.fixture
def call(library_path: Path, gemm: Fp8Gemm) -> Call:
    return Call(load_library(library_path))


def set_problem(name: str, value: int) -> Callable[[Call], None]:
    return lambda call: setattr(call.problem, name, value)


def set_operand(name: str, value: int | None) -> Callable[[Call], None]:
    return lambda call: setattr(call.operands, name, value)


def shift_operand(name: str, num_bytes: int) -> Callable[[Call], None]:
    return lambda call: setattr(call.operands, name, call.address + num_bytes)


def ask_for_bias(call: Call) -> None:
    call.problem.has_bias = 1


def ask_for_e4m3(call: Call) -> None:
    call.problem.out_type = OutType.E4M3


REFUSALS: list[tuple[Callable[[Call], None], Status, str]] = [
    (set_problem("m", -1), Status.INVALID_SHAPE, "m: expected 0 to 2147483647, got -1"),
    (
        set_problem("n", 1 << 31),
        Status.INVALID_SHAPE,
        "n: expected 0 to 2147483647, got 2147483648",
    ),
    (set_problem("n", 0), Status.INVALID_SHAPE, "n: expected 1 or more, got 0"),
    (set_problem("k", 24), Status.INVALID_SHAPE, "k: expected a positive multiple of 16, got 24"),
    (set_problem("k", 0), Status.INVALID_SHAPE, "k: expected a positive multiple of 16, got 0"),
    (set_problem("out_type", 4), Status.INVALID_VALUE, "out_type: expected 0 to 3, got 4"),
    (set_problem("scale_a_kind", 2), Status.INVALID_VALUE, "scale_a_kind: expected 0 to 1, got 2"),
    (
        set_problem("scale_w_kind", -1),
        Status.INVALID_VALUE,
        "scale_w_kind: expected 0 to 1, got -1",
    ),
    (set_problem("has_bias", 2), Status.INVALID_VALUE, "has_bias: expected 0 to 1, got 2"),
    *(
        (set_operand(name, None), Status.NULL_POINTER, f"{name}: expected an address, got null")
        for name in ("a", "w", "scale_a", "scale_w", "out", "workspace")
    ),
    (ask_for_bias, Status.NULL_POINTER, "bias: expected an address, got null"),
    (ask_for_e4m3, Status.NULL_POINTER, "scale_out: expected an address, got null"),
    (
        shift_operand("bias", 0),
        Status.INVALID_VALUE,
        "bias: expected null for this problem, got 0x",
    ),
    (
        shift_operand("scale_out", 0),
        Status.INVALID_VALUE,
        "scale_out: expected null for this problem, got 0x",
    ),
    (
        shift_operand("a", 8),
        Status.MISALIGNED,
        "a: expected an address aligned to 16 bytes, got 0x",
    ),
    (
        shift_operand("w", 1),
        Status.MISALIGNED,
        "w: expected an address aligned to 16 bytes, got 0x",
    ),
    (shift_operand("out", 2), Status.MISALIGNED, "out: expected an address aligned to 4 bytes"),
    (shift_operand("scale_a", 1), Status.MISALIGNED, "scale_a: expected an address aligned to 4"),
    (
        set_operand("workspace_bytes", 17),
        Status.WORKSPACE_TOO_SMALL,
        "workspace_bytes: expected ",
    ),
]


@pytest.mark.parametrize(
    ("spoil", "status", "message"), REFUSALS, ids=lambda value: str(value)[:60]
)
def test_a_wrong_call_is_refused_by_a_line_naming_the_value(
    call: Call, spoil: Callable[[Call], None], status: Status, message: str
) -> None:
    spoil(call)
    got_status, got_message = call.launch()
    assert got_status is status
    assert got_message.startswith(message)


def test_the_call_that_the_refusals_spoil_is_accepted(call: Call) -> None:
    assert call.launch() == (Status.OK, "")


def test_the_workspace_refusal_names_both_sizes(call: Call) -> None:
    needed_bytes = ctypes.c_size_t()
    call.library.qperf_fp8_gemm_workspace_bytes(call.problem, needed_bytes, None, 0)
    call.operands.workspace_bytes = 17
    expected = f"workspace_bytes: expected {needed_bytes.value} or more, got 17"
    assert call.launch() == (Status.WORKSPACE_TOO_SMALL, expected)


def test_a_null_problem_is_refused(call: Call) -> None:
    message = ctypes.create_string_buffer(256)
    assert call.library.qperf_fp8_gemm_validate(None, message, 256) == Status.NULL_POINTER
    assert message.value == b"problem: expected an address, got null"


def test_validate_looks_at_the_problem_alone(call: Call) -> None:
    assert call.library.qperf_fp8_gemm_validate(call.problem, None, 0) == Status.OK
    call.problem.k = 24
    assert call.library.qperf_fp8_gemm_validate(call.problem, None, 0) == Status.INVALID_SHAPE


def test_a_short_message_buffer_gets_the_start_of_the_line(call: Call) -> None:
    call.problem.k = 24
    message = ctypes.create_string_buffer(b"x" * 15)
    call.library.qperf_fp8_gemm_validate(call.problem, message, 12)
    assert message.value == b"k: expected"


def test_no_rows_is_a_call_that_touches_no_operand(call: Call) -> None:
    call.problem.m = 0
    call.operands = GemmOperands()
    assert call.launch() == (Status.OK, "")


def test_no_rows_needs_no_workspace(call: Call) -> None:
    call.problem.m = 0
    needed_bytes = ctypes.c_size_t(1)
    call.library.qperf_fp8_gemm_workspace_bytes(call.problem, needed_bytes, None, 0)
    assert needed_bytes.value == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, -1, 4, 1, 1), "m: expected 0 to 2147483647, got -1"),
        ((1, 1, 0, 1, 1), "k: expected 1 or more, got 0"),
        ((None, 1, 4, 1, 1), "x: expected an address, got null"),
        ((1, 1, 4, None, 1), "codes: expected an address, got null"),
        ((1, 1, 4, 1, None), "scales: expected an address, got null"),
    ],
)
def test_quantising_refuses_by_a_line_naming_the_value(
    call: Call, arguments: tuple[int | None, ...], message: str
) -> None:
    buffer = ctypes.create_string_buffer(256)
    status = call.library.qperf_fp8_quantize_per_token(*arguments, None, buffer, 256)
    assert (status != Status.OK, buffer.value.decode()) == (True, message)


@pytest.mark.parametrize("function", ["qperf_e4m3_encode", "qperf_e4m3_decode"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, -1, 1), "count: expected 0 to 2147483647, got -1"),
        ((None, 1, 1), "source: expected an address, got null"),
        ((1, 1, None), "destination: expected an address, got null"),
    ],
)
def test_converting_refuses_by_a_line_naming_the_value(
    call: Call, function: str, arguments: tuple[int | None, ...], message: str
) -> None:
    buffer = ctypes.create_string_buffer(256)
    status = getattr(call.library, function)(*arguments, None, buffer, 256)
    assert (status != Status.OK, buffer.value.decode()) == (True, message)


@pytest.mark.parametrize("num_threads", [0, -1, 1025])
def test_a_thread_count_out_of_range_is_refused(library_path: Path, num_threads: int) -> None:
    with pytest.raises(ValueError, match=f"^num_threads: expected 1 to 1024, got {num_threads}$"):
        Fp8Gemm(library_path, num_threads)


def test_an_instruction_set_nobody_has_is_refused(gemm: Fp8Gemm) -> None:
    before = gemm.isa
    with pytest.raises(EngineError, match=r"^isa: expected auto, portable, .* got 'sse9'$"):
        gemm.set_isa("sse9")
    assert gemm.isa == before


def test_the_instruction_set_in_use_is_named(gemm_on_isa: Fp8Gemm) -> None:
    assert gemm_on_isa.isa in ("avx512", "avx2", "portable")
    gemm_on_isa.set_isa("portable")
    assert gemm_on_isa.isa == "portable"


def test_a_host_build_says_so(library_path: Path) -> None:
    library = load_library(library_path)
    library.qperf_fp8_gemm_backend.restype = ctypes.c_char_p
    assert library.qperf_fp8_gemm_backend() == b"host"


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libfp8_gemm.so"
    path.write_text("not a library")
    with pytest.raises(EngineError, match=r"libfp8_gemm\.so: expected an FP8 GEMM library, got: "):
        Fp8Gemm(path, num_threads=1)


def _compile_stub(tmp_path: Path, source: str) -> Path:
    source_path, path = tmp_path / "stub.cpp", tmp_path / "libstub.so"
    source_path.write_text(source)
    subprocess.run(["g++", "-shared", "-fPIC", str(source_path), "-o", str(path)], check=True)
    return path


def test_another_library_is_refused(tmp_path: Path) -> None:
    path = _compile_stub(tmp_path, "int something_else;")
    with pytest.raises(EngineError, match=r"expected an FP8 GEMM library, got: .*abi_version"):
        Fp8Gemm(path, num_threads=1)


def test_another_interface_version_is_refused(tmp_path: Path) -> None:
    path = _compile_stub(tmp_path, 'extern "C" int qperf_fp8_gemm_abi_version() { return 2; }')
    with pytest.raises(EngineError, match="expected FP8 GEMM interface version 1, got 2; build it"):
        Fp8Gemm(path, num_threads=1)


def test_the_header_is_plain_c(source_dir: Path) -> None:
    header = source_dir / "include" / "qperf" / "fp8_gemm.h"
    flags = ["-x", "c", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
    subprocess.run(["g++", *flags, str(header)], check=True)


def make_weight(scale: NDArray[np.float32]) -> Fp8Weight:
    codes = np.arange(N * K, dtype=np.uint8).reshape(N, K) % 0x60
    return Fp8Weight.from_arrays(codes, scale)


def test_linear_is_the_product_of_the_quantised_input(gemm: Fp8Gemm) -> None:
    weight = make_weight(np.array([0.5, 1, 2], np.float32))
    bias = np.array([1, 2, 3], np.float32)
    x = np.random.default_rng(0).standard_normal((M, K), dtype=np.float32)
    codes, scales = gemm.quantize_per_token(x)
    sums = fp8_reference.gemm_in_lanes(codes, weight.codes)
    expected = (sums * scales[:, None]) * weight.scale + bias
    np.testing.assert_array_equal(gemm.linear(x, weight, bias), expected)
    np.testing.assert_allclose(
        expected - bias,
        x @ (fp8_reference.DECODED[weight.codes] * weight.scale[:, None]).T,
        atol=0.05 * np.abs(expected).max(),
    )


def test_linear_takes_one_scale_for_the_whole_weight(gemm: Fp8Gemm) -> None:
    x = np.ones((M, K), np.float32)
    single = gemm.linear(x, make_weight(np.array([0.5], np.float32)))
    each = gemm.linear(x, make_weight(np.full(N, 0.5, np.float32)))
    np.testing.assert_array_equal(single, each)


def test_linear_of_no_rows_is_no_rows(gemm: Fp8Gemm) -> None:
    weight = make_weight(np.ones(1, np.float32))
    assert gemm.linear(np.empty((0, K), np.float32), weight).shape == (0, N)


@pytest.mark.parametrize(
    ("x", "bias", "message"),
    [
        (
            np.zeros((M, K - 16), np.float32),
            None,
            "x: size mismatch for K: expected 32 (from weight)",
        ),
        (np.zeros((M, K)), None, "x: expected 2-dimensional float32, got 2-dimensional float64"),
        (np.zeros(K, np.float32), None, "x: expected 2-dimensional float32, got 1-dimensional"),
        (np.zeros((K, M), np.float32).T, None, "x: expected a C-contiguous array, got strides"),
        (
            np.zeros((M, K), np.float32),
            np.zeros(N + 1, np.float32),
            "bias: size mismatch for N: expected 3 (from weight), got 4",
        ),
        (
            np.zeros((M, K), np.float32),
            np.zeros(N),
            "bias: expected 1-dimensional float32, got 1-dimensional float64",
        ),
    ],
)
def test_linear_names_the_array_that_does_not_fit(
    gemm: Fp8Gemm, x: NDArray[np.float32], bias: NDArray[np.float32] | None, message: str
) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the message is compared below
        gemm.linear(x, make_weight(np.ones(1, np.float32)), bias)
    assert str(refusal.value).startswith(message)


def test_a_weight_whose_k_is_no_multiple_of_16_is_refused(gemm: Fp8Gemm) -> None:
    weight = Fp8Weight.from_arrays(np.zeros((3, 24), np.uint8), np.ones(1, np.float32))
    with pytest.raises(ValueError, match=r"^k: expected a positive multiple of 16, got 24$"):
        gemm.linear(np.zeros((1, 24), np.float32), weight)


def test_a_scale_that_is_not_one_per_channel_is_refused() -> None:
    codes = aligned_zeros(128 * 16).reshape(128, 16)
    message = r"^scale: size mismatch for N: expected 128 \(from codes\) or 1, got 127$"
    with pytest.raises(ValueError, match=message):
        Fp8Weight(codes, np.ones(127, np.float32))


def test_misaligned_codes_are_refused_and_from_arrays_copies_them() -> None:
    memory = aligned_zeros(16 * 16 + 8)[8:].reshape(16, 16)
    memory[3, 3] = 7
    scale = np.ones(1, np.float32)
    with pytest.raises(ValueError, match=r"^codes: expected an address aligned to 16 bytes, got 8"):
        Fp8Weight(memory, scale)
    np.testing.assert_array_equal(Fp8Weight.from_arrays(memory, scale).codes, memory)
