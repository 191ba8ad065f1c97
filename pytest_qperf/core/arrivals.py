"""When requests are sent: waves of request indices, each worked through by equal slots."""

from dataclasses import dataclass

from pytest_qperf.core.recipe import WorkloadRecipe


@dataclass(frozen=True, slots=True)
class ArrivalPlan:
    """Waves of request indices; the next wave starts when the last request of one has ended.

    Within a wave ``num_slots`` workers share one queue: each sends its next request as soon as its
    previous one has ended. A wave of ``num_slots`` requests therefore starts all of them together.
    """

    waves: tuple[range, ...]
    num_slots: int


def arrival_plan(workload: WorkloadRecipe) -> ArrivalPlan:
    """Return the plan of a workload; every index in [0, num_requests) is in exactly one wave.

    ``burst``: waves of ``concurrency`` requests. ``closed``: one wave of all requests, so that
    ``concurrency`` are in flight until the queue is empty.
    """
    slots, total = workload.concurrency, workload.num_requests
    wave_size = slots if workload.arrival == "burst" else total
    waves = tuple(range(first, first + wave_size) for first in range(0, total, wave_size))
    return ArrivalPlan(waves=waves, num_slots=slots)


def is_warmup(index: int, *, concurrency: int) -> bool:
    """Return whether a request belongs to the first ``concurrency`` requests, which are dropped."""
    return index < concurrency
