"""The order of runs."""

from pytest_qperf.core.schedule import run_schedule


def test_arms_alternate_who_goes_first_abba() -> None:
    order = "".join("A" if run.arm == "baseline" else "B" for run in run_schedule(4))
    assert order == "ABBAABBA"


def test_each_round_has_both_arms() -> None:
    runs = list(run_schedule(3))
    assert [run.round for run in runs] == [1, 1, 2, 2, 3, 3]
    for first, second in zip(runs[::2], runs[1::2], strict=True):
        assert {first.arm, second.arm} == {"candidate", "baseline"}
