"""Bounds over rounds. The datum is one run's metric: requests within a run are not replicates.

A run is one fresh start of an engine. Requests of a run share server, clocks and batch schedule,
so pooling them gives intervals that are too narrow (Kalibera and Jones, ISMM 2013, on levels of
replication).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit


@dataclass(frozen=True, slots=True)
class Estimate:
    """A central value with a lower and an upper one-sided bound.

    Each bound holds with the stated confidence on its own. Both are None with fewer than two
    rounds: one value has no spread.
    """

    value: float
    lower: float | None
    upper: float | None
    num_rounds: int


def mean_estimate(values: Sequence[float], *, confidence: float) -> Estimate:
    """Return the mean of run-level values with one-sided Student t bounds.

    values: shape (n_rounds,), finite. The bounds equal
    scipy.stats.t.interval(2 * confidence - 1, n - 1, mean, standard error).
    Raises ValueError for no values and for values that are not finite.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0 or not np.isfinite(data).all():
        raise ValueError(f"values: expected one or more finite numbers, got {list(values)}")
    mean = float(data.mean())
    if data.size == 1:
        return Estimate(mean, None, None, 1)
    standard_error = float(data.std(ddof=1)) / np.sqrt(data.size)
    half_width = float(stdtrit(data.size - 1, confidence)) * standard_error
    return Estimate(mean, mean - half_width, mean + half_width, int(data.size))


def paired_ratio_estimate(
    candidate: Sequence[float], baseline: Sequence[float], *, confidence: float
) -> Estimate:
    """Return candidate / baseline as the geometric mean of the rounds' ratios, with t bounds.

    candidate, baseline: shape (n_rounds,), > 0, paired by round. The bounds are Student t bounds
    on the log ratios, exponentiated; they equal a paired t interval (scipy.stats.ttest_rel of the
    logs). Pairing removes whatever both runs of a round share, such as a warm machine.
    Raises ValueError for unequal lengths and values that are not positive.
    """
    if len(candidate) != len(baseline):
        raise ValueError(
            f"candidate: expected {len(baseline)} rounds as the baseline has, got {len(candidate)}"
        )
    for arm, values in (("candidate", candidate), ("baseline", baseline)):
        if any(not value > 0 for value in values):
            raise ValueError(f"{arm}: expected values > 0, got {list(values)}")
    log_ratios = np.log(np.asarray(candidate)) - np.log(np.asarray(baseline))
    log_estimate = mean_estimate(log_ratios.tolist(), confidence=confidence)
    return Estimate(
        float(np.exp(log_estimate.value)),
        None if log_estimate.lower is None else float(np.exp(log_estimate.lower)),
        None if log_estimate.upper is None else float(np.exp(log_estimate.upper)),
        log_estimate.num_rounds,
    )
