import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_qperf.core.errors import RecipeError
from pytest_qperf.core.prompts import parse_token_file, random_token_prompts
from pytest_qperf.core.recipe import Prompts, RandomTokenPrompts, TokenFilePrompts, WorkloadRecipe


def make_workload(
    *,
    isl_tokens: int = 40,
    num_requests: int = 8,
    seed: int = 7,
    prompts: Prompts | None = None,
) -> WorkloadRecipe:
    return WorkloadRecipe(
        description="test",
        isl_tokens=isl_tokens,
        osl_tokens=4,
        concurrency=1,
        num_requests=num_requests,
        arrival="closed",
        prompts=prompts or random_ids(10, 1000),
        seed=seed,
    )


def random_ids(low: int, high: int) -> RandomTokenPrompts:
    return RandomTokenPrompts(source="random_tokens", min_token_id=low, max_token_id=high)


def test_prompts_have_the_asked_number_length_and_range() -> None:
    prompts = random_token_prompts(make_workload(), round_index=0)
    assert [len(prompt) for prompt in prompts] == [40] * 8
    ids = [token_id for prompt in prompts for token_id in prompt]
    assert min(ids) >= 10
    assert max(ids) <= 1000
    assert {type(token_id) for token_id in ids} == {int}


def test_both_ends_of_the_range_are_drawn() -> None:
    workload = make_workload(prompts=random_ids(3, 4))
    assert {i for p in random_token_prompts(workload, round_index=0) for i in p} == {3, 4}


def test_the_same_seed_and_round_give_the_same_prompts() -> None:
    first = random_token_prompts(make_workload(), round_index=2)
    assert first == random_token_prompts(make_workload(), round_index=2)


def test_another_round_and_another_seed_share_no_first_block() -> None:
    runs = [
        random_token_prompts(make_workload(seed=seed), round_index=round_index)
        for seed, round_index in [(7, 0), (7, 1), (8, 0)]
    ]
    blocks = [prompt[:16] for prompts in runs for prompt in prompts]
    assert len(set(blocks)) == 24


@settings(deadline=None)
@given(isl_tokens=st.integers(4, 20), seed=st.integers(0, 1000))
def test_no_two_prompts_of_a_run_share_their_first_block(isl_tokens: int, seed: int) -> None:
    # Two ids in 4 tokens: 16 possible blocks for 8 prompts, so drawing alone would collide.
    workload = make_workload(isl_tokens=isl_tokens, seed=seed, prompts=random_ids(0, 1))
    prompts = random_token_prompts(workload, round_index=0)
    assert len(prompts) == 8
    assert len({prompt[:16] for prompt in prompts}) == 8


def test_a_range_with_too_few_first_blocks_is_refused() -> None:
    workload = make_workload(isl_tokens=3, prompts=random_ids(0, 1))
    with pytest.raises(RecipeError) as caught:
        random_token_prompts(workload, round_index=0)
    assert str(caught.value) == (
        "prompts: expected at least 16 different first blocks, got 8 (3 tokens out of [0, 1]); "
        "widen the range of token ids"
    )


def test_random_prompts_of_a_token_file_workload_are_refused() -> None:
    workload = make_workload(prompts=TokenFilePrompts(source="token_file", path="x.jsonl"))
    with pytest.raises(ValueError, match="expected source random_tokens, got token_file"):
        random_token_prompts(workload, round_index=0)


def test_a_token_file_gives_one_prompt_a_line_and_skips_blank_lines() -> None:
    text = "[1, 2]\n\n[3, 4]\n[5, 6]\n"
    prompts = parse_token_file(text, isl_tokens=2, num_requests=2, where="p.jsonl")
    assert prompts == ((1, 2), (3, 4))


def test_a_token_file_reports_every_problem_with_its_line() -> None:
    text = '[1, 2]\n[1, 2\n{"a": 1}\n[1, -2]\n[1, true]\n[1, 2.0]\n[1, 2, 3]\n'
    with pytest.raises(RecipeError) as caught:
        parse_token_file(text, isl_tokens=2, num_requests=8, where="p.jsonl")
    assert list(caught.value.problems) == [
        "p.jsonl:2: expected a JSON list of token ids, got invalid JSON (Expecting ',' delimiter)",
        "p.jsonl:3: expected a JSON list of token ids, got dict",
        "p.jsonl:4: expected token ids that are integers >= 0, got -2",
        "p.jsonl:5: expected token ids that are integers >= 0, got True",
        "p.jsonl:6: expected token ids that are integers >= 0, got 2.0",
        "p.jsonl:7: expected 2 token ids (isl_tokens), got 3",
        "p.jsonl: expected at least 8 prompts (num_requests), got 7; "
        "add lines or lower num_requests",
    ]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 10**6), min_size=3, max_size=3), min_size=1, max_size=9))
def test_a_written_token_file_is_read_back(prompts: list[list[int]]) -> None:
    text = "\n".join(json.dumps(prompt) for prompt in prompts)
    read = parse_token_file(text, isl_tokens=3, num_requests=len(prompts), where="p.jsonl")
    assert [list(prompt) for prompt in read] == prompts
