"""Estimates against values computable in the head and against scipy as the oracle."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_qperf.core.statistics import mean_estimate, paired_ratio_estimate

LEVELS = st.floats(min_value=0.01, max_value=1000.0, allow_nan=False)


def test_the_mean_of_equal_values_has_no_width() -> None:
    estimate = mean_estimate([2.0, 2.0, 2.0], confidence=0.95)
    assert (estimate.value, estimate.lower, estimate.upper) == (2.0, 2.0, 2.0)


def test_one_value_has_no_bounds() -> None:
    estimate = mean_estimate([2.0], confidence=0.95)
    assert (estimate.value, estimate.lower, estimate.upper) == (2.0, None, None)


@given(st.lists(LEVELS, min_size=2, max_size=20), st.sampled_from([0.9, 0.95, 0.99]))
def test_mean_bounds_equal_scipys_t_interval(values: list[float], confidence: float) -> None:
    estimate = mean_estimate(values, confidence=confidence)
    standard_error = stats.sem(values)
    if standard_error == 0:
        return
    lower, upper = stats.t.interval(
        2 * confidence - 1, len(values) - 1, loc=np.mean(values), scale=standard_error
    )
    assert estimate.lower == pytest.approx(lower, rel=1e-9, abs=1e-9)
    assert estimate.upper == pytest.approx(upper, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_values_that_are_missing_or_not_finite_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="values: expected one or more finite numbers, got"):
        mean_estimate(values, confidence=0.95)


def test_a_candidate_twice_as_fast_in_every_round_has_ratio_two() -> None:
    estimate = paired_ratio_estimate([2.0, 20.0, 6.0], [1.0, 10.0, 3.0], confidence=0.95)
    assert estimate.value == pytest.approx(2.0)
    assert estimate.lower == pytest.approx(2.0)
    assert estimate.num_rounds == 3


def test_the_ratio_is_the_geometric_mean_of_the_rounds() -> None:
    estimate = paired_ratio_estimate([1.0, 4.0], [1.0, 1.0], confidence=0.95)
    assert estimate.value == pytest.approx(2.0)


def test_a_drift_that_both_arms_share_does_not_widen_the_bounds() -> None:
    drift = [1.0, 0.5, 2.0, 4.0]
    paired = paired_ratio_estimate([1.1 * x for x in drift], drift, confidence=0.95)
    assert paired.upper is not None
    assert paired.lower is not None
    assert paired.upper - paired.lower < 1e-12


@given(st.lists(st.tuples(LEVELS, LEVELS), min_size=2, max_size=12))
def test_ratio_bounds_equal_a_paired_t_interval_of_the_logs(
    pairs: list[tuple[float, float]],
) -> None:
    candidate = [pair[0] for pair in pairs]
    baseline = [pair[1] for pair in pairs]
    differences = np.log(candidate) - np.log(baseline)
    if np.std(differences) < 1e-9:
        return
    interval = stats.ttest_rel(np.log(candidate), np.log(baseline)).confidence_interval(0.9)
    estimate = paired_ratio_estimate(candidate, baseline, confidence=0.95)
    assert estimate.lower == pytest.approx(math.exp(interval.low), rel=1e-6)
    assert estimate.upper == pytest.approx(math.exp(interval.high), rel=1e-6)


def test_arms_with_unequal_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="candidate: expected 2 rounds as the baseline has, got 1"):
        paired_ratio_estimate([1.0], [1.0, 2.0], confidence=0.95)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_a_level_that_is_not_positive_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="baseline: expected values > 0"):
        paired_ratio_estimate([1.0, 1.0], [1.0, bad], confidence=0.95)


def test_a_one_sided_bound_misses_an_unchanged_ratio_as_rarely_as_it_says() -> None:
    # 5,000 A/A comparisons of 4 rounds at 1 % noise: at 95 % a bound is wrong in 5 % of them.
    rng = np.random.default_rng(20261201)
    num_trials, wrong = 5_000, 0
    for candidate, baseline in np.exp(rng.normal(0.0, 0.01, size=(num_trials, 2, 4))):
        estimate = paired_ratio_estimate(candidate.tolist(), baseline.tolist(), confidence=0.95)
        assert estimate.upper is not None
        wrong += estimate.upper < 1.0
    assert 0.04 < wrong / num_trials < 0.06
