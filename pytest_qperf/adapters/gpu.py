"""Which GPU is measured, whether it is free, and whether an engine gave its memory back.

In a container or a VM, NVML may list no processes, or pids of another PID namespace. So the memory
in use is checked as well: it is the same number whoever looks.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import psutil

from pytest_qperf.adapters.nvml import (
    Nvml,
    NvmlUnavailableError,
    open_nvml,
    throttle_reason_names,
)
from pytest_qperf.core.errors import EnvironmentUnfitError

GIB = 2**30
MAX_USED_WHEN_CLEAN_BYTES = 2 * GIB
MAX_LEFT_AFTER_RELEASE_BYTES = 1 * GIB


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``index`` is NVML's (PCI bus order); ``is_mig_enabled``: None without MIG."""

    index: int
    uuid: str
    name: str
    memory_total_bytes: int
    driver_version: str
    cuda_driver_version: str
    is_mig_enabled: bool | None


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU at one moment. None: this GPU does not report the quantity."""

    used_bytes: int
    compute_pids: frozenset[int]
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_celsius: int | None
    throttle_reasons: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, how often to look, and by which clock."""

    timeout_s: float = 60.0
    poll_s: float = 0.2
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def list_gpus(*, nvml: Nvml | None = None) -> tuple[Gpu, ...]:
    """Return every GPU of this host; empty if there is no driver or no NVML library."""
    try:
        return _gpus(nvml or open_nvml())
    except NvmlUnavailableError:
        return ()


def select_gpu(
    name: str, *, environment: Mapping[str, str] | None = None, nvml: Nvml | None = None
) -> Gpu:
    """Return the first visible GPU with exactly this name.

    environment: where CUDA_VISIBLE_DEVICES is read, os.environ if None.
    Raises EnvironmentUnfitError, saying what is here, if there is none or it is split by MIG.
    """
    try:
        gpus = _gpus(nvml or open_nvml())
    except NvmlUnavailableError as error:
        raise EnvironmentUnfitError(
            f"gpu: expected {name}, found none (NVML: {error}); "
            "run on a host with that GPU and its driver"
        ) from error
    visible = _visible(gpus, os.environ if environment is None else environment)
    matching = [gpu for gpu in visible if gpu.name == name]
    if not matching:
        here = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in gpus) or "none"
        hidden = "" if len(visible) == len(gpus) else ", some hidden by CUDA_VISIBLE_DEVICES"
        raise EnvironmentUnfitError(
            f"gpu: expected {name}, found {here}{hidden}; run on a host with that GPU"
        )
    if matching[0] != visible[0]:
        raise EnvironmentUnfitError(
            f"gpu: expected {name} as the first visible GPU, which engines use, got "
            f"{visible[0].index}: {visible[0].name}; set CUDA_VISIBLE_DEVICES={matching[0].uuid}"
        )
    if matching[0].is_mig_enabled:
        raise EnvironmentUnfitError(
            f"gpu {matching[0].index} ({name}): expected a whole GPU, got one split by MIG; "
            "a slice is other hardware: ask the host's owner to turn MIG off"
        )
    return matching[0]


def gpu_state(gpu: Gpu, *, nvml: Nvml | None = None) -> GpuState:
    """Return the GPU's state now. Raises EnvironmentUnfitError if NVML does not answer."""
    nvml = nvml or open_nvml()
    bits = nvml.throttle_reason_bits(gpu.index)
    return GpuState(
        used_bytes=nvml.memory_used_bytes(gpu.index),
        compute_pids=nvml.compute_pids(gpu.index),
        sm_clock_mhz=nvml.sm_clock_mhz(gpu.index),
        memory_clock_mhz=nvml.memory_clock_mhz(gpu.index),
        power_w=nvml.power_w(gpu.index),
        temperature_celsius=nvml.temperature_celsius(gpu.index),
        throttle_reasons=None if bits is None else throttle_reason_names(bits),
    )


def check_gpu_is_clean(gpu: Gpu, *, own_pids: Collection[int], nvml: Nvml | None = None) -> None:
    """Raise EnvironmentUnfitError if strangers compute on the GPU or its memory is in use.

    While one of ``own_pids`` is on the GPU its memory is ours to use and is not judged.
    """
    nvml = nvml or open_nvml()
    pids = nvml.compute_pids(gpu.index)
    strangers = sorted(pids.difference(own_pids))
    if strangers:
        raise EnvironmentUnfitError(
            f"{_label(gpu)}: expected no other process on it, got {_described(strangers)}; "
            "wait for them to end or choose another GPU with CUDA_VISIBLE_DEVICES"
        )
    used_bytes = nvml.memory_used_bytes(gpu.index)
    if not pids and used_bytes > MAX_USED_WHEN_CLEAN_BYTES:
        raise EnvironmentUnfitError(
            f"{_label(gpu)}: expected at most {_gib(MAX_USED_WHEN_CLEAN_BYTES)} of its memory in "
            f"use, got {_gib(used_bytes)} and no process listed (another container or virtual "
            "machine?); free it or choose another GPU with CUDA_VISIBLE_DEVICES"
        )


def wait_until_released(
    gpu: Gpu,
    *,
    own_pids: Collection[int],
    used_before_bytes: int,
    patience: Patience | None = None,
    nvml: Nvml | None = None,
) -> None:
    """Return once no own pid is on the GPU and its memory is within 1 GiB of what was used before.

    Raises EnvironmentUnfitError after the patience's timeout. Strangers are never ended.
    """
    patience = patience or Patience()
    nvml = nvml or open_nvml()
    allowed_bytes = used_before_bytes + MAX_LEFT_AFTER_RELEASE_BYTES
    end_s = patience.clock() + patience.timeout_s
    while True:
        left = sorted(nvml.compute_pids(gpu.index).intersection(own_pids))
        used_bytes = nvml.memory_used_bytes(gpu.index)
        if not left and used_bytes <= allowed_bytes:
            return
        if patience.clock() >= end_s:
            raise EnvironmentUnfitError(
                f"{_label(gpu)}: expected the engine's memory back within "
                f"{patience.timeout_s:.0f} s, got {_gib(used_bytes)} in use, "
                f"{_gib(used_before_bytes)} before, and {_described(left)} on it; "
                "end what holds it and run again"
            )
        patience.sleep(patience.poll_s)


def _gpus(nvml: Nvml) -> tuple[Gpu, ...]:
    driver_version, cuda_driver_version = nvml.driver_version(), nvml.cuda_driver_version()
    return tuple(
        Gpu(
            index=index,
            uuid=nvml.uuid(index),
            name=nvml.name(index),
            memory_total_bytes=nvml.memory_total_bytes(index),
            driver_version=driver_version,
            cuda_driver_version=cuda_driver_version,
            is_mig_enabled=nvml.is_mig_enabled(index),
        )
        for index in range(nvml.num_gpus())
    )


def _visible(gpus: tuple[Gpu, ...], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES shows, in its order.

    Source: CUDA C++ programming guide, environment variables: a list of indices or (abbreviated)
    UUIDs; nothing at and after -1 is visible, nor is anything if the list is empty.
    """
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return gpus
    visible: list[Gpu] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry in ("", "-1"):
            break
        visible.append(_named_by(entry, gpus, environment))
    return tuple(visible)


def _named_by(entry: str, gpus: tuple[Gpu, ...], environment: Mapping[str, str]) -> Gpu:
    if entry.isdecimal():
        # CUDA numbers GPUs by speed unless told otherwise; among unequal ones NVML's order differs.
        is_same_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if not is_same_order and len({gpu.name for gpu in gpus}) > 1:
            raise EnvironmentUnfitError(
                f"CUDA_VISIBLE_DEVICES: expected UUIDs on a host with different GPUs, got index "
                f"{entry}; use the UUID or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
        found = [gpu for gpu in gpus if gpu.index == int(entry)]
    else:
        found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    if len(found) != 1:
        here = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
        raise EnvironmentUnfitError(
            f"CUDA_VISIBLE_DEVICES: expected the index or UUID of one GPU, got {entry!r}; "
            f"here are: {here}"
        )
    return found[0]


def _label(gpu: Gpu) -> str:
    return f"gpu {gpu.index} ({gpu.name})"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def _described(pids: list[int]) -> str:
    return ", ".join(f"pid {pid} ({_command_name(pid)})" for pid in pids) or "no process of it"


def _command_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "unknown here, perhaps of another PID namespace"
