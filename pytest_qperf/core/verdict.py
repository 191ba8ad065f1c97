"""From estimates to verdicts: three values where there was a measurement, INVALID where not."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_qperf.core.metrics import METRICS, Metric
from pytest_qperf.core.recipe import Threshold
from pytest_qperf.core.statistics import Estimate, mean_estimate, paired_ratio_estimate


class Outcome(StrEnum):
    """What a gate says.

    PASS: every limit holds at the stated confidence. FAIL: some limit is broken at that
    confidence. INCONCLUSIVE: the bounds straddle a limit. INVALID: there is no sound measurement.
    """

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """One limit against the estimate it concerns (the ratio, or the candidate's own level)."""

    limit: str
    required: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """The verdict on one metric, with the estimates behind it, in the metric's unit."""

    metric: str
    outcome: Outcome
    reason: str
    ratio: Estimate
    candidate: Estimate
    baseline: Estimate
    limits: tuple[LimitVerdict, ...]


def judge_metric(
    name: str,
    threshold: Threshold,
    *,
    candidate: Sequence[float],
    baseline: Sequence[float],
    confidence: float,
) -> MetricVerdict:
    """Return the verdict on one metric from its run-level values, paired by round.

    A lower limit passes if the lower bound reaches it and fails if the upper bound stays below;
    an upper limit the other way round; anything between is INCONCLUSIVE, and so is a single round.
    """
    ratio = paired_ratio_estimate(candidate, baseline, confidence=confidence)
    level = mean_estimate(candidate, confidence=confidence)
    limits = tuple(
        LimitVerdict(limit, required, _limit_outcome(limit, required, ratio, level))
        for limit, required in threshold.limits().items()
    )
    outcome = worst_outcome([limit.outcome for limit in limits])
    return MetricVerdict(
        metric=name,
        outcome=outcome,
        reason=_reason(METRICS[name], ratio, level, limits, confidence),
        ratio=ratio,
        candidate=level,
        baseline=mean_estimate(baseline, confidence=confidence),
        limits=limits,
    )


def worst_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome that decides for all: INVALID, then FAIL, INCONCLUSIVE, PASS.

    No outcome at all is INVALID: nothing was judged.
    """
    for outcome in (Outcome.INVALID, Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS):
        if outcome in outcomes:
            return outcome
    return Outcome.INVALID


def _limit_outcome(limit: str, required: float, ratio: Estimate, level: Estimate) -> Outcome:
    estimate = ratio if limit.endswith("_ratio_to_baseline") else level
    if estimate.lower is None or estimate.upper is None:
        return Outcome.INCONCLUSIVE
    if limit.startswith("min_"):
        holds, broken = estimate.lower >= required, estimate.upper < required
    else:
        holds, broken = estimate.upper <= required, estimate.lower > required
    if holds:
        return Outcome.PASS
    return Outcome.FAIL if broken else Outcome.INCONCLUSIVE


def _reason(
    metric: Metric,
    ratio: Estimate,
    level: Estimate,
    limits: tuple[LimitVerdict, ...],
    confidence: float,
) -> str:
    """Return one sentence: the measured ratio with its bounds, and each limit's outcome."""
    words = {
        Outcome.PASS: "holds",
        Outcome.FAIL: "is broken",
        Outcome.INCONCLUSIVE: "is undecided",
    }
    required = ", ".join(f"{x.limit} {x.required:g} {words[x.outcome]}" for x in limits)
    rounds = f"{ratio.num_rounds} round" + ("s" if ratio.num_rounds != 1 else "")
    measured = f"{metric.label}: {ratio.value:.4f} x baseline"
    if ratio.lower is None:
        return f"{measured} in {rounds}, no bounds from one round; {required}"
    bounds = f"{ratio.lower:.4f} to {ratio.upper:.4f}"
    if any(not x.limit.endswith("_ratio_to_baseline") for x in limits):
        bounds += f"; level {level.lower:.6g} to {level.upper:.6g} {metric.unit}"
    return f"{measured} ({bounds}, each bound at {confidence:.0%}, {rounds}); {required}"
