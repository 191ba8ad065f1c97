"""NVML with scripted answers: what the tests of everything about GPUs inject."""

from dataclasses import dataclass, field

from pytest_qperf.core.errors import EnvironmentUnfitError

GIB = 2**30


@dataclass
class FakeGpu:
    """One GPU's answers; change a field to change the next answer."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-aaaa"
    mig: bool | None = False
    total_bytes: int = 140 * GIB
    used_bytes: int = 0
    pids: frozenset[int] = frozenset()
    sm_mhz: int | None = 1980
    memory_mhz: int | None = 3201
    watts: float | None = 500.0
    celsius: int | None = 40
    reason_bits: int | None = 0


@dataclass
class FakeNvml:
    """A host with these GPUs. ``is_lost``: every question about clocks fails from then on."""

    gpus: list[FakeGpu] = field(default_factory=lambda: [FakeGpu()])
    is_lost: bool = False

    def driver_version(self) -> str:
        return "580.95.05"

    def cuda_driver_version(self) -> str:
        return "13.0"

    def num_gpus(self) -> int:
        return len(self.gpus)

    def name(self, index: int) -> str:
        return self.gpus[index].name

    def uuid(self, index: int) -> str:
        return self.gpus[index].uuid

    def is_mig_enabled(self, index: int) -> bool | None:
        return self.gpus[index].mig

    def memory_total_bytes(self, index: int) -> int:
        return self.gpus[index].total_bytes

    def memory_used_bytes(self, index: int) -> int:
        return self.gpus[index].used_bytes

    def compute_pids(self, index: int) -> frozenset[int]:
        return self.gpus[index].pids

    def sm_clock_mhz(self, index: int) -> int | None:
        if self.is_lost:
            raise EnvironmentUnfitError("gpu: expected an answer from NVML, got GPU is lost")
        return self.gpus[index].sm_mhz

    def memory_clock_mhz(self, index: int) -> int | None:
        return self.gpus[index].memory_mhz

    def power_w(self, index: int) -> float | None:
        return self.gpus[index].watts

    def temperature_celsius(self, index: int) -> int | None:
        return self.gpus[index].celsius

    def throttle_reason_bits(self, index: int) -> int | None:
        return self.gpus[index].reason_bits


@dataclass
class FakeTime:
    """A clock that only sleeping moves."""

    now_s: float = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
