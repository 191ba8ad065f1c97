"""The FP8 GEMM plugin's host library, called through ctypes.

The C interface and its numerical contract: plugins/fp8_gemm/include/qperf/fp8_gemm.h.
"""

import ctypes
import threading
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pytest_qperf.core.errors import EngineError

ABI_VERSION = 1
CODES_ALIGNMENT_BYTES = 16

_CACHE_LINE_BYTES = 64
_MESSAGE_BYTES = 256


class Status(IntEnum):
    """``QperfStatus`` of the C interface."""

    OK = 0
    NULL_POINTER = 1
    INVALID_SHAPE = 2
    INVALID_VALUE = 3
    MISALIGNED = 4
    WORKSPACE_TOO_SMALL = 5
    UNSUPPORTED = 6
    FAILED = 7


class OutType(IntEnum):
    """``QperfOutType`` of the C interface."""

    FP32 = 0
    BF16 = 1
    FP16 = 2
    E4M3 = 3


class ScaleKind(IntEnum):
    """``QperfScaleKind`` of the C interface."""

    PER_TENSOR = 0
    PER_ROW = 1


class GemmProblem(ctypes.Structure):
    """``QperfFp8GemmProblem`` of the C interface."""

    _fields_ = (
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("out_type", ctypes.c_int32),
        ("scale_a_kind", ctypes.c_int32),
        ("scale_w_kind", ctypes.c_int32),
        ("has_bias", ctypes.c_int32),
    )


class GemmOperands(ctypes.Structure):
    """``QperfFp8GemmOperands`` of the C interface: addresses, and the workspace's size."""

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("w", ctypes.c_void_p),
        ("scale_a", ctypes.c_void_p),
        ("scale_w", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("scale_out", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
    )


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A linear layer's weight: value[n, k] = e4m3(codes[n, k]) * scale[n or 0].

    codes: (N, K) uint8, e4m3fn bytes, C-contiguous, 16-byte aligned, K a multiple of 16.
    scale: (1,) per tensor or (N,) per output channel, float32. Raises ValueError for anything else.
    """

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]

    def __post_init__(self) -> None:
        _check_array("codes", self.codes, np.uint8, num_dimensions=2)
        _check_array("scale", self.scale, np.float32, num_dimensions=1)
        rest = _address(self.codes) % CODES_ALIGNMENT_BYTES
        if rest != 0:
            raise ValueError(
                f"codes: expected an address aligned to {CODES_ALIGNMENT_BYTES} bytes, got "
                f"{rest} past; use Fp8Weight.from_arrays, which copies where it must"
            )
        if self.scale.shape[0] not in (1, self.num_outputs):
            raise ValueError(
                f"scale: size mismatch for N: expected {self.num_outputs} (from codes) or 1, "
                f"got {self.scale.shape[0]}"
            )

    @classmethod
    def from_arrays(cls, codes: NDArray[np.uint8], scale: NDArray[np.float32]) -> "Fp8Weight":
        """Return a weight of these values; copies codes that are not contiguous or not aligned."""
        if not codes.flags.c_contiguous or _address(codes) % CODES_ALIGNMENT_BYTES != 0:
            aligned = _aligned_empty(codes.shape, codes.dtype)
            aligned[...] = codes
            codes = aligned
        return cls(codes, np.ascontiguousarray(scale))

    @property
    def num_outputs(self) -> int:
        """N."""
        return int(self.codes.shape[0])

    @property
    def num_inputs(self) -> int:
        """K."""
        return int(self.codes.shape[1])


class Fp8Gemm:
    """Linear layers with FP8 weights and activations, on the library's own threads.

    The thread count and the instruction set hold for all users of the library in the process.
    Do not use one in a process forked after it was made. Raises EngineError if the library does
    not load or is of another interface version.
    """

    def __init__(self, library_path: Path, num_threads: int) -> None:
        self._library = load_library(library_path)
        self._workspace = _aligned_empty((0,), np.uint8)
        self._lock = threading.Lock()
        self._call("set_num_threads", num_threads)

    def linear(
        self, x: NDArray[np.float32], weight: Fp8Weight, bias: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Return x @ weight.T + bias, (M, N) float32, with x quantised to e4m3 per row.

        x: (M, K) float32, M >= 0. bias: (N,) float32 or None. A row of the result is bitwise the
        same whatever rows are beside it. Raises ValueError for other shapes or types.
        """
        _check_array("x", x, np.float32, num_dimensions=2)
        _check_size("x", "K", (x.shape[1], weight.num_inputs), source="weight")
        if bias is not None:
            _check_array("bias", bias, np.float32, num_dimensions=1)
            _check_size("bias", "N", (bias.shape[0], weight.num_outputs), source="weight")
        codes, scales = self.quantize_per_token(x)
        out = np.empty((x.shape[0], weight.num_outputs), np.float32)
        is_per_channel = weight.scale.shape[0] > 1
        problem = GemmProblem(
            m=x.shape[0],
            n=weight.num_outputs,
            k=weight.num_inputs,
            out_type=OutType.FP32,
            scale_a_kind=ScaleKind.PER_ROW,
            scale_w_kind=ScaleKind.PER_ROW if is_per_channel else ScaleKind.PER_TENSOR,
            has_bias=bias is not None,
        )
        operands = GemmOperands(
            a=_address(codes),
            w=_address(weight.codes),
            scale_a=_address(scales),
            scale_w=_address(weight.scale),
            bias=None if bias is None else _address(bias),
            out=_address(out),
        )
        self.launch(problem, operands)
        return out

    def quantize_per_token(
        self, x: NDArray[np.float32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Return codes (M, K) uint8 and scales (M,) float32 with x[m] ~ e4m3(codes[m]) * scales[m].

        scale = max(max |x[m]| / 448, 2^-126).
        """
        _check_array("x", x, np.float32, num_dimensions=2)
        codes: NDArray[np.uint8] = _aligned_empty(x.shape, np.uint8)
        scales = np.empty(x.shape[0], np.float32)
        arguments = (_address(x), *x.shape, _address(codes), _address(scales), None)
        self._call("quantize_per_token", *arguments)
        return codes, scales

    def encode_e4m3(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Return the e4m3fn bytes of float32 values: nearest even, saturating at +-448."""
        contiguous = np.ascontiguousarray(values, np.float32)
        codes = np.empty(values.shape, np.uint8)
        self._call("encode", _address(contiguous), contiguous.size, _address(codes), None)
        return codes

    def decode_e4m3(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the float32 values of e4m3fn bytes, exactly."""
        contiguous = np.ascontiguousarray(codes, np.uint8)
        values = np.empty(codes.shape, np.float32)
        self._call("decode", _address(contiguous), contiguous.size, _address(values), None)
        return values

    @property
    def isa(self) -> str:
        """The instruction set in use: avx512, avx2 or portable."""
        name: bytes = self._library.qperf_fp8_gemm_isa()
        return name.decode()

    def set_isa(self, name: str) -> None:
        """Use another instruction set; "auto" is the widest. Raises EngineError if there is none.

        No result changes.
        """
        self._call("set_isa", name.encode())

    def launch(self, problem: GemmProblem, operands: GemmOperands) -> None:
        """Run one GEMM of the C interface; sets the operands' workspace to this object's own.

        Raises ValueError with the library's line for what it refuses.
        """
        needed_bytes = ctypes.c_size_t()
        with self._lock:
            self._call("workspace_bytes", problem, ctypes.byref(needed_bytes))
            if self._workspace.nbytes < needed_bytes.value:
                self._workspace = _aligned_empty((needed_bytes.value,), np.uint8)
            operands.workspace = _address(self._workspace)
            operands.workspace_bytes = self._workspace.nbytes
            self._call("launch", problem, operands, None)

    def _call(self, name: str, *arguments: object) -> None:
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        function = getattr(self._library, _FUNCTIONS[name].symbol)
        status = Status(function(*arguments, message, _MESSAGE_BYTES))
        if status is Status.OK:
            return
        text = message.value.decode()
        if status in (Status.UNSUPPORTED, Status.FAILED):
            raise EngineError(text)
        raise ValueError(text)


@dataclass(frozen=True, slots=True)
class _Function:
    symbol: str
    argument_types: tuple[Any, ...]


_PROBLEM = ctypes.POINTER(GemmProblem)
_OPERANDS = ctypes.POINTER(GemmOperands)
_POINTER = ctypes.c_void_p
_FUNCTIONS = {
    "set_num_threads": _Function("qperf_fp8_gemm_set_num_threads", (ctypes.c_int32,)),
    "set_isa": _Function("qperf_fp8_gemm_set_isa", (ctypes.c_char_p,)),
    "validate": _Function("qperf_fp8_gemm_validate", (_PROBLEM,)),
    "workspace_bytes": _Function(
        "qperf_fp8_gemm_workspace_bytes", (_PROBLEM, ctypes.POINTER(ctypes.c_size_t))
    ),
    "launch": _Function("qperf_fp8_gemm_launch", (_PROBLEM, _OPERANDS, _POINTER)),
    "quantize_per_token": _Function(
        "qperf_fp8_quantize_per_token",
        (_POINTER, ctypes.c_int64, ctypes.c_int64, _POINTER, _POINTER, _POINTER),
    ),
    "encode": _Function("qperf_e4m3_encode", (_POINTER, ctypes.c_int64, _POINTER, _POINTER)),
    "decode": _Function("qperf_e4m3_decode", (_POINTER, ctypes.c_int64, _POINTER, _POINTER)),
}


def load_library(path: Path) -> ctypes.CDLL:
    """Return the library with every function's types declared.

    Raises EngineError if it does not load or is of another interface version.
    """
    try:
        library = ctypes.CDLL(str(path))
        version = library.qperf_fp8_gemm_abi_version()
    except (OSError, AttributeError) as error:
        raise EngineError(f"{path}: expected an FP8 GEMM library, got: {error}") from error
    if version != ABI_VERSION:
        raise EngineError(
            f"{path}: expected FP8 GEMM interface version {ABI_VERSION}, got {version}; "
            "build it from the sources of this release"
        )
    library.qperf_fp8_gemm_isa.restype = ctypes.c_char_p
    for function in _FUNCTIONS.values():
        symbol = getattr(library, function.symbol)
        symbol.argtypes = (*function.argument_types, ctypes.c_char_p, ctypes.c_size_t)
        symbol.restype = ctypes.c_int
    return library


def _check_array(name: str, array: NDArray[Any], dtype: DTypeLike, *, num_dimensions: int) -> None:
    if array.dtype != dtype or array.ndim != num_dimensions:
        raise ValueError(
            f"{name}: expected {num_dimensions}-dimensional {np.dtype(dtype)}, "
            f"got {array.ndim}-dimensional {array.dtype}"
        )
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{name}: expected a C-contiguous array, got strides {array.strides}; "
            "use numpy.ascontiguousarray"
        )


def _check_size(name: str, dimension: str, sizes: tuple[int, int], *, source: str) -> None:
    got, expected = sizes
    if got != expected:
        raise ValueError(
            f"{name}: size mismatch for {dimension}: expected {expected} (from {source}), got {got}"
        )


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(num_bytes + _CACHE_LINE_BYTES, np.uint8)
    start = -_address(raw) % _CACHE_LINE_BYTES
    return raw[start : start + num_bytes].view(dtype).reshape(shape)
