"""In which order the runs of a gate follow each other."""

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_qperf.core.records import Arm

ARMS: tuple[Arm, Arm] = ("candidate", "baseline")


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """One run: which round, counted from 1, and which arm."""

    round: int
    arm: Arm


def run_schedule(num_rounds: int) -> Iterator[ScheduledRun]:
    """Yield two runs a round, baseline first in odd rounds: A B, B A, A B, ...

    Alternating the order keeps a drift of the machine from favouring one arm.
    """
    for round_number in range(1, num_rounds + 1):
        for arm in reversed(ARMS) if round_number % 2 else ARMS:
            yield ScheduledRun(round_number, arm)
