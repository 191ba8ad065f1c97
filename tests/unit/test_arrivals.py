from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_qperf.core.arrivals import arrival_plan, is_warmup
from pytest_qperf.core.recipe import RandomTokenPrompts, WorkloadRecipe


def make_workload(
    arrival: Literal["burst", "closed"], *, concurrency: int, num_requests: int
) -> WorkloadRecipe:
    return WorkloadRecipe(
        description="test",
        isl_tokens=8,
        osl_tokens=4,
        concurrency=concurrency,
        num_requests=num_requests,
        arrival=arrival,
        prompts=RandomTokenPrompts(source="random_tokens", min_token_id=0, max_token_id=99),
        seed=0,
    )


def test_burst_sends_waves_of_concurrency_requests() -> None:
    plan = arrival_plan(make_workload("burst", concurrency=2, num_requests=6))
    assert [list(wave) for wave in plan.waves] == [[0, 1], [2, 3], [4, 5]]
    assert plan.num_slots == 2


def test_closed_sends_one_wave_from_a_shared_queue() -> None:
    plan = arrival_plan(make_workload("closed", concurrency=2, num_requests=5))
    assert [list(wave) for wave in plan.waves] == [[0, 1, 2, 3, 4]]
    assert plan.num_slots == 2


@settings(deadline=None)
@given(st.sampled_from(["burst", "closed"]), st.integers(1, 40), st.integers(2, 5))
def test_every_request_is_in_exactly_one_wave_in_order(
    arrival: Literal["burst", "closed"], concurrency: int, num_waves: int
) -> None:
    total = concurrency * num_waves
    plan = arrival_plan(make_workload(arrival, concurrency=concurrency, num_requests=total))
    assert [index for wave in plan.waves for index in wave] == list(range(total))


def test_the_first_concurrency_requests_are_warm_up() -> None:
    assert [is_warmup(index, concurrency=2) for index in range(4)] == [True, True, False, False]
