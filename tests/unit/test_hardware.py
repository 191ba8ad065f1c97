"""Holding a gate's hardware, on scripted NVML answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fakes.fake_nvml import GIB, FakeGpu, FakeNvml, FakeTime

from pytest_qperf.adapters import hardware as hardware_module
from pytest_qperf.adapters.gpu import Patience
from pytest_qperf.adapters.hardware import hold_hardware, missing_hardware, num_gpus
from pytest_qperf.adapters.nvml import NvmlUnavailableError
from pytest_qperf.core.errors import EngineError, EnvironmentUnfitError
from pytest_qperf.core.recipe import Hardware

H200 = Hardware(gpu="NVIDIA H200")


def ignore(_note: str) -> None:
    """Take a progress note."""


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the host's lock by a log of who locked what."""
    log: list[str] = []

    @contextmanager
    def hold(resource: str, *, timeout_s: float, note: Callable[[str], None]) -> Iterator[None]:
        log.append(f"lock {resource} within {timeout_s:g} s")
        try:
            yield
        finally:
            log.append(f"unlock {resource}")

    monkeypatch.setattr(hardware_module, "hold_host_lock", hold)
    return log


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Put one H200 into this host."""
    fake = FakeNvml()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for module in ("gpu", "gpu_sampler"):
        monkeypatch.setattr(f"pytest_qperf.adapters.{module}.open_nvml", lambda: fake)
    return fake


def test_a_gate_without_hardware_locks_the_cpu_and_asks_no_gpu(
    locks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_nvml() -> FakeNvml:
        raise NvmlUnavailableError("Driver Not Loaded")

    monkeypatch.setattr("pytest_qperf.adapters.gpu.open_nvml", no_nvml)
    with hold_hardware(None, lock_timeout_s=5, note=ignore) as held:
        assert held.gpu is None
        with held.engine_slot(), held.sampling() as summary:
            assert locks == ["lock cpu within 5 s"]
        assert summary() is None
    assert locks == ["lock cpu within 5 s", "unlock cpu"]


def test_a_gate_with_a_gpu_locks_that_gpu_by_its_uuid(locks: list[str], nvml: FakeNvml) -> None:
    nvml.gpus = [FakeGpu(uuid="GPU-aaaa"), FakeGpu(uuid="GPU-bbbb")]
    with hold_hardware(H200, lock_timeout_s=5, note=ignore) as held:
        assert held.gpu is not None
        assert held.gpu.uuid == "GPU-aaaa"
    assert locks == ["lock GPU-aaaa within 5 s", "unlock GPU-aaaa"]


def test_a_gpu_that_is_not_here_is_never_locked(locks: list[str], nvml: FakeNvml) -> None:
    nvml.gpus = [FakeGpu(name="Other GPU")]
    with (
        pytest.raises(EnvironmentUnfitError, match="expected NVIDIA H200, found 0: Other GPU"),
        hold_hardware(H200, lock_timeout_s=5, note=ignore),
    ):
        raise AssertionError("held what is not here")
    assert locks == []


def test_an_error_inside_releases_the_lock(locks: list[str], nvml: FakeNvml) -> None:
    with (
        pytest.raises(EngineError, match="died"),
        hold_hardware(H200, lock_timeout_s=5, note=ignore),
    ):
        raise EngineError("died")
    assert locks[-1] == "unlock GPU-aaaa"


def test_a_stranger_on_the_gpu_keeps_the_engine_from_starting(
    locks: list[str], nvml: FakeNvml
) -> None:
    nvml.gpus[0].pids = frozenset({2**22 + 1})  # above the largest pid Linux gives
    started = []
    with (
        hold_hardware(H200, lock_timeout_s=5, note=ignore) as held,
        pytest.raises(EnvironmentUnfitError, match="expected no other process on it, got pid"),
        held.engine_slot(),
    ):
        started.append("engine")
    assert started == []


def test_an_engine_slot_ends_once_the_memory_is_back(
    locks: list[str], nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = FakeTime()

    def sleep(duration_s: float) -> None:
        time.sleep(duration_s)
        if time.now_s >= 3:
            nvml.gpus[0].used_bytes = 0

    monkeypatch.setattr(
        "pytest_qperf.adapters.gpu.Patience",
        lambda: Patience(timeout_s=60, poll_s=1, clock=time.clock, sleep=sleep),
    )
    with hold_hardware(H200, lock_timeout_s=5, note=ignore) as held, held.engine_slot():
        nvml.gpus[0].used_bytes = 130 * GIB
    assert time.now_s == 3


def test_memory_that_does_not_come_back_makes_the_host_unfit(
    locks: list[str], nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = FakeTime()
    monkeypatch.setattr(
        "pytest_qperf.adapters.gpu.Patience",
        lambda: Patience(timeout_s=60, poll_s=1, clock=time.clock, sleep=time.sleep),
    )
    with (
        hold_hardware(H200, lock_timeout_s=5, note=ignore) as held,
        pytest.raises(EnvironmentUnfitError, match=r"memory back within 60 s, got 130\.0 GiB"),
        held.engine_slot(),
    ):
        nvml.gpus[0].used_bytes = 130 * GIB
    assert time.now_s == 60


def die(gpu: FakeGpu) -> None:
    gpu.used_bytes = 130 * GIB
    raise EngineError("died")


def test_an_engines_own_error_is_not_hidden_by_the_memory_it_left(
    locks: list[str], nvml: FakeNvml
) -> None:
    with (
        pytest.raises(EngineError, match="died"),
        hold_hardware(H200, lock_timeout_s=5, note=ignore) as held,
        held.engine_slot(),
    ):
        die(nvml.gpus[0])


def test_sampling_sums_up_what_the_gpu_did(locks: list[str], nvml: FakeNvml) -> None:
    with hold_hardware(H200, lock_timeout_s=5, note=ignore) as held:
        with held.sampling() as summary:
            nvml.gpus[0].sm_mhz = 1000
        gpu = summary()
    assert gpu is not None
    assert gpu.sm_clock_mhz is not None
    # The first sample is taken on entering, the last on leaving.
    assert (gpu.sm_clock_mhz.min, gpu.sm_clock_mhz.max) == (1000, 1980)


def test_hardware_that_is_here_is_not_missing(nvml: FakeNvml) -> None:
    assert missing_hardware(H200) is None
    assert missing_hardware(None) is None


def test_missing_hardware_is_named_with_what_is_here(nvml: FakeNvml) -> None:
    nvml.gpus = []
    reason = missing_hardware(H200)
    assert reason == "gpu: expected NVIDIA H200, found none; run on a host with that GPU"


def test_gpus_are_counted_whatever_their_name(nvml: FakeNvml) -> None:
    nvml.gpus = [FakeGpu(), FakeGpu(name="Other GPU")]
    assert num_gpus() == 2
