"""GPU selection, cleanliness and release, on scripted NVML answers."""

import os
import sys
from types import ModuleType

import pytest
from fakes.fake_nvml import GIB, FakeGpu, FakeNvml, FakeTime

from pytest_qperf.adapters import nvml as nvml_module
from pytest_qperf.adapters.gpu import (
    Gpu,
    Patience,
    check_gpu_is_clean,
    gpu_state,
    list_gpus,
    select_gpu,
    wait_until_released,
)
from pytest_qperf.adapters.gpu_sampler import GpuSample, GpuSampler, summarise_samples
from pytest_qperf.adapters.nvml import NvmlUnavailableError, open_nvml, throttle_reason_names
from pytest_qperf.core.errors import EnvironmentUnfitError
from pytest_qperf.core.records import Spread

H200 = Gpu(0, "GPU-aaaa", "NVIDIA H200", 140 * GIB, "580.95.05", "13.0", False)
TWO_H200 = [FakeGpu(uuid="GPU-aaaa"), FakeGpu(uuid="GPU-bbbb")]


def no_nvml() -> FakeNvml:
    raise NvmlUnavailableError("Driver Not Loaded")


def test_a_gpu_is_described_by_what_nvml_says() -> None:
    assert list_gpus(nvml=FakeNvml()) == (H200,)


def test_a_host_without_nvml_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_qperf.adapters.gpu.open_nvml", no_nvml)
    assert list_gpus() == ()


def test_selecting_without_nvml_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_qperf.adapters.gpu.open_nvml", no_nvml)
    with pytest.raises(
        EnvironmentUnfitError,
        match=r"gpu: expected NVIDIA H200, found none \(NVML: Driver Not Loaded\); run on a host",
    ):
        select_gpu("NVIDIA H200")


def test_selecting_takes_the_first_visible_gpu_if_it_has_exactly_that_name() -> None:
    nvml = FakeNvml([FakeGpu(name="NVIDIA H200 NVL"), *TWO_H200])
    shown = {"CUDA_VISIBLE_DEVICES": "1,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert select_gpu("NVIDIA H200", environment=shown, nvml=nvml).index == 1


def test_a_gpu_that_engines_would_not_use_is_refused_with_the_setting_that_helps() -> None:
    nvml = FakeNvml([FakeGpu(name="NVIDIA H200 NVL"), *TWO_H200])
    with pytest.raises(
        EnvironmentUnfitError,
        match="expected NVIDIA H200 as the first visible GPU, which engines use, got "
        "0: NVIDIA H200 NVL; set CUDA_VISIBLE_DEVICES=",
    ):
        select_gpu("NVIDIA H200", environment={}, nvml=nvml)


def test_selecting_an_absent_gpu_lists_what_is_here() -> None:
    with pytest.raises(
        EnvironmentUnfitError, match="expected NVIDIA B200, found 0: NVIDIA H200; run on a host"
    ):
        select_gpu("NVIDIA B200", environment={}, nvml=FakeNvml())


def test_a_gpu_split_by_mig_is_refused() -> None:
    with pytest.raises(EnvironmentUnfitError, match="expected a whole GPU, got one split by MIG"):
        select_gpu("NVIDIA H200", environment={}, nvml=FakeNvml([FakeGpu(mig=True)]))


@pytest.mark.parametrize("value", ["1", "GPU-bbbb", "GPU-b", " 1 , 0 ", "1,-1,0"])
def test_cuda_visible_devices_is_honoured(value: str) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": value}
    gpu = select_gpu("NVIDIA H200", environment=environment, nvml=FakeNvml(TWO_H200))
    assert gpu.uuid == "GPU-bbbb"


def test_cuda_visible_devices_is_read_from_the_process_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert select_gpu("NVIDIA H200", nvml=FakeNvml(TWO_H200)).index == 1


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus_are_not_selected(value: str) -> None:
    with pytest.raises(EnvironmentUnfitError, match="some hidden by CUDA_VISIBLE_DEVICES"):
        select_gpu(
            "NVIDIA H200", environment={"CUDA_VISIBLE_DEVICES": value}, nvml=FakeNvml(TWO_H200)
        )


@pytest.mark.parametrize("value", ["7", "GPU-cccc", "GPU-", "MIG-1234"])
def test_an_entry_that_names_no_single_gpu_is_refused(value: str) -> None:
    with pytest.raises(
        EnvironmentUnfitError,
        match=f"expected the index or UUID of one GPU, got '{value}'; here are: 0 \\(GPU-aaaa\\)",
    ):
        select_gpu(
            "NVIDIA H200", environment={"CUDA_VISIBLE_DEVICES": value}, nvml=FakeNvml(TWO_H200)
        )


def test_an_index_among_different_gpus_needs_a_device_order() -> None:
    nvml = FakeNvml([FakeGpu(name="NVIDIA L4", uuid="GPU-cccc"), FakeGpu()])
    environment = {"CUDA_VISIBLE_DEVICES": "1"}
    with pytest.raises(EnvironmentUnfitError, match="expected UUIDs on a host with different GPUs"):
        select_gpu("NVIDIA H200", environment=environment, nvml=nvml)
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert select_gpu("NVIDIA H200", environment=environment, nvml=nvml).index == 1


def test_state_names_throttle_reasons_and_keeps_absence_apart_from_zero() -> None:
    fake = FakeGpu(used_bytes=3 * GIB, pids=frozenset({7}), reason_bits=0x4, watts=None)
    state = gpu_state(H200, nvml=FakeNvml([fake]))
    assert state.throttle_reasons == ("sw_power_cap",)
    assert state.power_w is None
    assert (state.used_bytes, state.compute_pids) == (3 * GIB, frozenset({7}))
    fake.reason_bits = None
    assert gpu_state(H200, nvml=FakeNvml([fake])).throttle_reasons is None


def test_several_and_unknown_throttle_bits_are_named() -> None:
    assert throttle_reason_names(0) == ()
    assert throttle_reason_names(0x48) == ("hw_slowdown", "hw_thermal_slowdown")
    assert throttle_reason_names(0x201) == ("gpu_idle", "unknown_0x200")


def test_an_idle_gpu_is_clean() -> None:
    check_gpu_is_clean(H200, own_pids=set(), nvml=FakeNvml([FakeGpu(used_bytes=2 * GIB)]))


def test_a_stranger_on_the_gpu_is_named_by_pid_and_command() -> None:
    import psutil

    name = psutil.Process().name()
    nvml = FakeNvml([FakeGpu(pids=frozenset({os.getpid(), 7}))])
    with pytest.raises(EnvironmentUnfitError) as caught:
        check_gpu_is_clean(H200, own_pids={7}, nvml=nvml)
    assert f"got pid {os.getpid()} ({name}); wait for them" in str(caught.value)


def test_a_stranger_of_another_namespace_is_still_named() -> None:
    nvml = FakeNvml([FakeGpu(pids=frozenset({2**22 + 1}))])
    with pytest.raises(EnvironmentUnfitError, match=r"pid 4194305 \(unknown here, perhaps"):
        check_gpu_is_clean(H200, own_pids=(), nvml=nvml)


def test_memory_in_use_without_any_process_is_not_clean() -> None:
    nvml = FakeNvml([FakeGpu(used_bytes=37 * GIB)])
    with pytest.raises(
        EnvironmentUnfitError, match=r"at most 2.0 GiB of its memory in use, got 37.0 GiB"
    ):
        check_gpu_is_clean(H200, own_pids=(), nvml=nvml)


def test_memory_of_our_own_engine_is_clean() -> None:
    nvml = FakeNvml([FakeGpu(used_bytes=120 * GIB, pids=frozenset({7}))])
    check_gpu_is_clean(H200, own_pids={7}, nvml=nvml)


def test_waiting_ends_when_pids_have_left_and_memory_is_back() -> None:
    fake = FakeGpu(used_bytes=100 * GIB, pids=frozenset({7}))
    time = FakeTime()

    def sleep(duration_s: float) -> None:
        time.sleep(duration_s)
        if time.now_s >= 1.0:
            fake.pids = frozenset()
        if time.now_s >= 2.0:
            fake.used_bytes = 2 * GIB

    wait_until_released(
        H200,
        own_pids={7},
        used_before_bytes=1 * GIB,
        patience=Patience(clock=time.clock, sleep=sleep, poll_s=0.5),
        nvml=FakeNvml([fake]),
    )
    assert time.now_s == 2.0


def test_a_stranger_is_not_waited_for() -> None:
    time = FakeTime()
    wait_until_released(
        H200,
        own_pids={7},
        used_before_bytes=0,
        patience=Patience(clock=time.clock, sleep=time.sleep),
        nvml=FakeNvml([FakeGpu(pids=frozenset({8}))]),
    )
    assert time.now_s == 0.0


@pytest.mark.parametrize(
    ("pids", "holder"), [(frozenset({4194305}), "pid 4194305"), (frozenset(), "no process of it")]
)
def test_memory_that_does_not_come_back_is_an_error(pids: frozenset[int], holder: str) -> None:
    time = FakeTime()
    with pytest.raises(EnvironmentUnfitError) as caught:
        wait_until_released(
            H200,
            own_pids={4194305},
            used_before_bytes=GIB,
            patience=Patience(timeout_s=60, clock=time.clock, sleep=time.sleep, poll_s=1),
            nvml=FakeNvml([FakeGpu(used_bytes=9 * GIB, pids=pids)]),
        )
    assert time.now_s == 60.0
    assert "back within 60 s, got 9.0 GiB in use, 1.0 GiB before, and " + holder in str(
        caught.value
    )


def test_the_sampler_has_the_first_and_the_last_moment() -> None:
    with GpuSampler(H200, interval_s=3600, nvml=FakeNvml()) as sampler:
        pass
    first, last = sampler.samples()
    assert first.perf_ns < last.perf_ns
    assert (last.sm_clock_mhz, last.power_w, last.throttle_reasons) == (1980, 500.0, ())


def test_an_nvml_failure_while_sampling_is_raised_on_leaving() -> None:
    nvml = FakeNvml()
    with (
        pytest.raises(EnvironmentUnfitError, match="GPU is lost"),
        GpuSampler(H200, interval_s=3600, nvml=nvml),
    ):
        nvml.is_lost = True


def test_an_error_of_the_run_is_not_hidden_by_one_of_the_sampler() -> None:
    nvml = FakeNvml()

    def run() -> None:
        with GpuSampler(H200, interval_s=3600, nvml=nvml):
            nvml.is_lost = True
            raise RuntimeError("the run's")

    with pytest.raises(RuntimeError, match="the run's"):
        run()


def sample(sm_clock_mhz: int, reasons: tuple[str, ...], power_w: float | None) -> GpuSample:
    return GpuSample(0, sm_clock_mhz, 3201, power_w, 40, reasons)


def test_samples_are_summarised_by_min_mean_max() -> None:
    summary = summarise_samples(
        [sample(1000, (), 1.0), sample(2000, ("sw_power_cap",), None), sample(1800, (), 3.0)]
    )
    assert summary.sm_clock_mhz == Spread(min=1000, mean=1600, max=2000)
    assert summary.power_w is None
    assert summary.throttle_samples == {"sw_power_cap": 1}
    assert summary.num_samples == 3


def test_a_summary_of_no_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one, got none"):
        summarise_samples([])


class ScriptedPynvml(ModuleType):
    """The module `pynvml` with a failing driver, or with one GPU that supports little."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
        pass

    def __init__(self, *, init_error: str | None = None) -> None:
        super().__init__("pynvml")
        self.init_error = init_error

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_error is not None:
            raise self.NVMLError(self.init_error)

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 12080

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"handle {index}"

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 512_345

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        raise self.NVMLError_NotSupported

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        raise self.NVMLError("GPU is lost")


def test_nvml_without_a_driver_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", ScriptedPynvml(init_error="Driver Not Loaded"))
    with pytest.raises(NvmlUnavailableError, match="Driver Not Loaded"):
        open_nvml()


def test_nvml_units_are_converted_and_unsupported_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", ScriptedPynvml())
    nvml = open_nvml()
    assert nvml.power_w(0) == 512.345
    assert nvml.cuda_driver_version() == "12.8"
    assert nvml.is_mig_enabled(0) is None


def test_an_nvml_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", ScriptedPynvml())
    with pytest.raises(EnvironmentUnfitError, match="from NVML, got GPU is lost; check `nvidia-"):
        open_nvml().name(0)


def test_every_question_of_the_real_library_exists() -> None:
    import inspect

    import pynvml

    source = inspect.getsource(nvml_module)
    asked = {word for word in source.replace("(", " ").split() if "nvmlDevice" in word}
    names = {word.split(".")[-1] for word in asked if "." in word}
    assert len(names) >= 9
    assert [name for name in names if not hasattr(pynvml, name)] == []
