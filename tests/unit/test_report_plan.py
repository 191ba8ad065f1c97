"""What a dry run says."""

from collections.abc import Callable

from fakes.small_gates import VLLM, small_gate

from pytest_qperf.report.plan import render_plan


def test_a_plan_reads_as_in_its_golden_file(check_golden: Callable[[str, str], None]) -> None:
    check_golden(render_plan(small_gate(candidate=VLLM), None), "plan.txt")


def test_a_plan_takes_the_recipes_rounds_unless_told_otherwise() -> None:
    assert "2 rounds, a fresh engine for each of 4 runs: A B B A (" in render_plan(
        small_gate(), None
    )
    assert "3 rounds, a fresh engine for each of 6 runs: A B B A A B (" in render_plan(
        small_gate(), 3
    )


def test_a_plan_of_one_round_speaks_of_one_round() -> None:
    assert "  1 round, a fresh engine for each of 2 runs: A B (" in render_plan(small_gate(), 1)


def test_a_plan_names_every_limit() -> None:
    plan = render_plan(small_gate(min_rate_ratio=1.25, max_ttft_ratio=1.5), None)
    assert "requires generation_rate_mean_tokens_per_s: min_ratio_to_baseline 1.25\n" in plan
    assert "requires ttft_mean_s: max_ratio_to_baseline 1.5\n" in plan
