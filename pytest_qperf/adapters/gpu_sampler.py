"""Samples a GPU's clocks, power and temperature while a run lasts."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from pytest_qperf.adapters.gpu import Gpu
from pytest_qperf.adapters.nvml import Nvml, open_nvml, throttle_reason_names
from pytest_qperf.core.records import GpuSummary, Spread

SAMPLE_INTERVAL_S = 0.2


@dataclass(frozen=True, slots=True)
class GpuSample:
    """A GPU at one moment of a run. None: this GPU does not report the quantity."""

    perf_ns: int
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_celsius: int | None
    throttle_reasons: tuple[str, ...] | None


class GpuSampler:
    """Samples in a thread between entering and leaving; the first and last moment included.

    An error of NVML in the thread ends the sampling and is raised on leaving.
    """

    def __init__(
        self, gpu: Gpu, *, interval_s: float = SAMPLE_INTERVAL_S, nvml: Nvml | None = None
    ) -> None:
        self._gpu = gpu
        self._interval_s = interval_s
        self._nvml = nvml or open_nvml()
        self._samples: list[GpuSample] = []
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="qperf-gpu-sampler", daemon=True)

    def __enter__(self) -> "GpuSampler":
        self._samples.append(self._sample())
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def samples(self) -> tuple[GpuSample, ...]:
        """Return the samples taken so far, in order."""
        return tuple(self._samples)

    def _run(self) -> None:
        try:
            while not self._is_over.wait(self._interval_s):
                self._samples.append(self._sample())
            self._samples.append(self._sample())
        except BaseException as error:  # noqa: BLE001 - raised again in __exit__
            self._error = error

    def _sample(self) -> GpuSample:
        index = self._gpu.index
        bits = self._nvml.throttle_reason_bits(index)
        return GpuSample(
            perf_ns=time.perf_counter_ns(),
            sm_clock_mhz=self._nvml.sm_clock_mhz(index),
            memory_clock_mhz=self._nvml.memory_clock_mhz(index),
            power_w=self._nvml.power_w(index),
            temperature_celsius=self._nvml.temperature_celsius(index),
            throttle_reasons=None if bits is None else throttle_reason_names(bits),
        )


def summarise_samples(samples: Sequence[GpuSample]) -> GpuSummary:
    """Return the spread of each quantity; raise ValueError without samples."""
    if not samples:
        raise ValueError("gpu samples: expected at least one, got none")
    return GpuSummary(
        num_samples=len(samples),
        sm_clock_mhz=_spread(samples, lambda sample: sample.sm_clock_mhz),
        memory_clock_mhz=_spread(samples, lambda sample: sample.memory_clock_mhz),
        power_w=_spread(samples, lambda sample: sample.power_w),
        temperature_celsius=_spread(samples, lambda sample: sample.temperature_celsius),
        throttle_samples=_throttle_samples(samples),
    )


def _spread(
    samples: Sequence[GpuSample], quantity: Callable[[GpuSample], float | None]
) -> Spread | None:
    values = [value for value in map(quantity, samples) if value is not None]
    if len(values) < len(samples):
        return None
    return Spread(min=min(values), mean=sum(values) / len(values), max=max(values))


def _throttle_samples(samples: Sequence[GpuSample]) -> dict[str, int] | None:
    counts: Counter[str] = Counter()
    for sample in samples:
        if sample.throttle_reasons is None:
            return None
        counts.update(sample.throttle_reasons)
    return dict(counts)
