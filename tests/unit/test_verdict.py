"""Verdicts on values whose bounds are known: equal rounds have bounds without width."""

import pytest

from pytest_qperf.core.recipe import Threshold
from pytest_qperf.core.verdict import MetricVerdict, Outcome, judge_metric, worst_outcome

RATE = "generation_rate_mean_tokens_per_s"
TTFT = "ttft_mean_s"


def judged(
    metric: str,
    threshold: Threshold,
    candidate: list[float],
    baseline: list[float],
) -> MetricVerdict:
    return judge_metric(metric, threshold, candidate=candidate, baseline=baseline, confidence=0.95)


@pytest.mark.parametrize(
    ("candidate", "outcome"),
    [
        ([103.0, 103.0], Outcome.PASS),
        ([102.1, 102.1], Outcome.PASS),
        ([101.0, 101.0], Outcome.FAIL),
        ([97.0, 107.0], Outcome.INCONCLUSIVE),
    ],
)
def test_a_lower_limit_on_the_ratio(candidate: list[float], outcome: Outcome) -> None:
    verdict = judged(RATE, Threshold(min_ratio_to_baseline=1.02), candidate, [100.0, 100.0])
    assert verdict.outcome is outcome


@pytest.mark.parametrize(
    ("candidate", "outcome"),
    [
        ([1.0, 1.0], Outcome.PASS),
        ([1.2, 1.2], Outcome.FAIL),
        ([0.9, 1.3], Outcome.INCONCLUSIVE),
    ],
)
def test_an_upper_limit_on_the_ratio(candidate: list[float], outcome: Outcome) -> None:
    verdict = judged(TTFT, Threshold(max_ratio_to_baseline=1.1), candidate, [1.0, 1.0])
    assert verdict.outcome is outcome


@pytest.mark.parametrize(("level", "outcome"), [(301.0, Outcome.PASS), (299.0, Outcome.FAIL)])
def test_an_absolute_limit_judges_the_candidates_own_level(level: float, outcome: Outcome) -> None:
    verdict = judged(RATE, Threshold(min_value=300.0), [level, level], [500.0, 500.0])
    assert verdict.outcome is outcome


def test_one_round_is_never_enough() -> None:
    verdict = judged(RATE, Threshold(min_ratio_to_baseline=0.5), [100.0], [100.0])
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "no bounds from one round" in verdict.reason


def test_one_broken_limit_breaks_the_metric() -> None:
    threshold = Threshold(min_ratio_to_baseline=0.9, min_value=300.0)
    verdict = judged(RATE, threshold, [200.0, 200.0], [200.0, 200.0])
    assert [limit.outcome for limit in verdict.limits] == [Outcome.PASS, Outcome.FAIL]
    assert verdict.outcome is Outcome.FAIL


def test_the_reason_gives_ratio_bounds_rounds_and_limit() -> None:
    verdict = judged(RATE, Threshold(min_ratio_to_baseline=1.02), [101.0, 101.0], [100.0, 100.0])
    assert verdict.reason == (
        "generation rate, mean: 1.0100 x baseline (1.0100 to 1.0100, each bound at 95%, "
        "2 rounds); min_ratio_to_baseline 1.02 is broken"
    )


def test_the_reason_for_an_absolute_limit_gives_the_level() -> None:
    verdict = judged(RATE, Threshold(min_value=300.0), [310.0, 310.0], [100.0, 100.0])
    assert "level 310 to 310 tokens/s" in verdict.reason
    assert "min_value 300 holds" in verdict.reason


def test_nothing_judged_is_invalid() -> None:
    assert worst_outcome([]) is Outcome.INVALID


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [
        ([Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE], Outcome.FAIL),
        ([Outcome.PASS, Outcome.INCONCLUSIVE], Outcome.INCONCLUSIVE),
        ([Outcome.FAIL, Outcome.INVALID], Outcome.INVALID),
        ([Outcome.PASS, Outcome.PASS], Outcome.PASS),
    ],
)
def test_the_worst_outcome_decides(outcomes: list[Outcome], worst: Outcome) -> None:
    assert worst_outcome(outcomes) is worst
