"""Holds the hardware a gate measures on: the host lock, a clean GPU, and its memory back after."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_qperf.adapters.gpu import (
    Gpu,
    check_gpu_is_clean,
    gpu_state,
    list_gpus,
    select_gpu,
    wait_until_released,
)
from pytest_qperf.adapters.gpu_sampler import GpuSampler, summarise_samples
from pytest_qperf.adapters.host_lock import hold_host_lock
from pytest_qperf.core.errors import EnvironmentUnfitError
from pytest_qperf.core.recipe import Hardware
from pytest_qperf.core.records import GpuSummary

CPU_LOCK = "cpu"


class HeldHardware:
    """The hardware of one gate while its lock is held; ``gpu`` is None for a CPU gate."""

    def __init__(self, gpu: Gpu | None) -> None:
        self.gpu = gpu

    @contextmanager
    def engine_slot(self) -> Iterator[None]:
        """Surround one engine's life: the GPU is clean before, and its memory is back after.

        Raises EnvironmentUnfitError naming strangers, or what holds the memory.
        """
        if self.gpu is None:
            yield
            return
        check_gpu_is_clean(self.gpu, own_pids=())
        used_before_bytes = gpu_state(self.gpu).used_bytes
        yield
        wait_until_released(self.gpu, own_pids=(), used_before_bytes=used_before_bytes)

    @contextmanager
    def sampling(self) -> Iterator[Callable[[], GpuSummary | None]]:
        """Sample the GPU while inside; after leaving, the yielded function returns the summary."""
        if self.gpu is None:
            yield lambda: None
            return
        with GpuSampler(self.gpu) as sampler:
            yield lambda: summarise_samples(sampler.samples())


@contextmanager
def hold_hardware(
    hardware: Hardware | None, *, lock_timeout_s: float, note: Callable[[str], None]
) -> Iterator[HeldHardware]:
    """Hold the host-wide lock on a gate's hardware; None is this machine's CPU.

    Raises EnvironmentUnfitError if there is no such GPU here or the lock stays taken.
    """
    gpu = None if hardware is None else select_gpu(hardware.gpu)
    resource = CPU_LOCK if gpu is None else gpu.uuid
    with hold_host_lock(resource, timeout_s=lock_timeout_s, note=note):
        yield HeldHardware(gpu)


def missing_hardware(hardware: Hardware | None) -> str | None:
    """Return why a gate cannot run on this host, or None if its hardware is here."""
    if hardware is None:
        return None
    try:
        select_gpu(hardware.gpu)
    except EnvironmentUnfitError as error:
        return str(error)
    return None


def num_gpus() -> int:
    """Return how many GPUs this host has."""
    return len(list_gpus())
