"""The few questions this project asks of NVML, as a protocol, and their answers by nvidia-ml-py."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from pytest_qperf.core.errors import EnvironmentUnfitError

Answer = TypeVar("Answer")

# Bits of nvmlDeviceGetCurrentClocksEventReasons (driver 535 or later), nvml.h.
THROTTLE_REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


class NvmlUnavailableError(EnvironmentUnfitError):
    """There is no NVML here; the message is NVML's own reason, such as 'Driver Not Loaded'."""


class Nvml(Protocol):
    """NVML by GPU index (PCI bus order). None: this GPU does not report the quantity.

    Any method raises EnvironmentUnfitError when NVML fails (GPU lost, no permission).
    """

    def driver_version(self) -> str:
        """Return the driver's version, such as '580.95.05'."""

    def cuda_driver_version(self) -> str:
        """Return the newest CUDA version the driver supports, such as '13.0'."""

    def num_gpus(self) -> int:
        """Return the number of GPUs NVML lists."""

    def name(self, index: int) -> str:
        """Return the product name, such as 'NVIDIA H200'."""

    def uuid(self, index: int) -> str:
        """Return the UUID, such as 'GPU-1c2d...'."""

    def is_mig_enabled(self, index: int) -> bool | None:
        """Return whether the GPU is split into MIG instances."""

    def memory_total_bytes(self, index: int) -> int:
        """Return the size of the GPU's memory."""

    def memory_used_bytes(self, index: int) -> int:
        """Return the memory in use by anybody."""

    def compute_pids(self, index: int) -> frozenset[int]:
        """Return the pids with a compute context, in the PID namespace NVML sees."""

    def sm_clock_mhz(self, index: int) -> int | None:
        """Return the streaming multiprocessors' clock."""

    def memory_clock_mhz(self, index: int) -> int | None:
        """Return the memory clock."""

    def power_w(self, index: int) -> float | None:
        """Return the board's power draw."""

    def temperature_celsius(self, index: int) -> int | None:
        """Return the GPU's core temperature."""

    def throttle_reason_bits(self, index: int) -> int | None:
        """Return the mask of reasons for the current clocks."""


def throttle_reason_names(bits: int) -> tuple[str, ...]:
    """Return the names of a mask's bits; a bit NVML did not define yet is ``unknown_0x...``."""
    names = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    if unknown := bits & ~sum(THROTTLE_REASONS):
        names.append(f"unknown_{unknown:#x}")
    return tuple(names)


def open_nvml() -> Nvml:
    """Return an initialised NVML. Raises NvmlUnavailableError without a driver or library."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(str(error)) from error
    return _Pynvml(pynvml)


class _Pynvml:
    """Nvml by nvidia-ml-py, whose functions carry no types."""

    def __init__(self, pynvml: Any) -> None:
        self._pynvml = pynvml

    def driver_version(self) -> str:
        with self._errors():
            return str(self._pynvml.nvmlSystemGetDriverVersion())

    def cuda_driver_version(self) -> str:
        with self._errors():
            version = int(self._pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return f"{version // 1000}.{version % 1000 // 10}"

    def num_gpus(self) -> int:
        with self._errors():
            return int(self._pynvml.nvmlDeviceGetCount())

    def name(self, index: int) -> str:
        with self._errors():
            return str(self._pynvml.nvmlDeviceGetName(self._handle(index)))

    def uuid(self, index: int) -> str:
        with self._errors():
            return str(self._pynvml.nvmlDeviceGetUUID(self._handle(index)))

    def is_mig_enabled(self, index: int) -> bool | None:
        mode = self._if_supported(lambda nvml: nvml.nvmlDeviceGetMigMode(self._handle(index))[0])
        return None if mode is None else bool(mode)

    def memory_total_bytes(self, index: int) -> int:
        with self._errors():
            return int(self._pynvml.nvmlDeviceGetMemoryInfo(self._handle(index)).total)

    def memory_used_bytes(self, index: int) -> int:
        with self._errors():
            return int(self._pynvml.nvmlDeviceGetMemoryInfo(self._handle(index)).used)

    def compute_pids(self, index: int) -> frozenset[int]:
        with self._errors():
            rows = self._pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle(index))
        return frozenset(int(row.pid) for row in rows)

    def sm_clock_mhz(self, index: int) -> int | None:
        return self._clock_mhz(index, self._pynvml.NVML_CLOCK_SM)

    def memory_clock_mhz(self, index: int) -> int | None:
        return self._clock_mhz(index, self._pynvml.NVML_CLOCK_MEM)

    def power_w(self, index: int) -> float | None:
        milliwatts = self._if_supported(
            lambda nvml: nvml.nvmlDeviceGetPowerUsage(self._handle(index))
        )
        return None if milliwatts is None else milliwatts / 1000

    def temperature_celsius(self, index: int) -> int | None:
        return self._if_supported(
            lambda nvml: nvml.nvmlDeviceGetTemperature(
                self._handle(index), nvml.NVML_TEMPERATURE_GPU
            )
        )

    def throttle_reason_bits(self, index: int) -> int | None:
        return self._if_supported(
            lambda nvml: nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle(index))
        )

    def _clock_mhz(self, index: int, clock: int) -> int | None:
        return self._if_supported(
            lambda nvml: nvml.nvmlDeviceGetClockInfo(self._handle(index), clock)
        )

    def _handle(self, index: int) -> Any:
        return self._pynvml.nvmlDeviceGetHandleByIndex(index)

    def _if_supported(self, ask: Callable[[Any], Answer]) -> Answer | None:
        with self._errors():
            try:
                return ask(self._pynvml)
            except self._pynvml.NVMLError_NotSupported:
                return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._pynvml.NVMLError as error:
            raise EnvironmentUnfitError(
                f"gpu: expected an answer from NVML, got {error}; check `nvidia-smi`"
            ) from error
