"""Prompts of a round, drawn or read."""

from pathlib import Path

import pytest
from fakes.small_gates import WORKLOAD

from pytest_qperf.adapters.prompt_source import workload_prompts
from pytest_qperf.core.errors import RecipeError
from pytest_qperf.core.recipe import TokenFilePrompts, WorkloadRecipe

SMALLEST = WORKLOAD.model_copy(update={"isl_tokens": 2, "concurrency": 1, "num_requests": 2})


def from_file(path: Path) -> WorkloadRecipe:
    prompts = TokenFilePrompts(source="token_file", path=str(path))
    return SMALLEST.model_copy(update={"prompts": prompts})


def test_drawn_prompts_are_the_same_for_both_arms_and_new_each_round() -> None:
    first = workload_prompts(WORKLOAD, round_number=1)
    assert first == workload_prompts(WORKLOAD, round_number=1)
    assert not set(first) & set(workload_prompts(WORKLOAD, round_number=2))
    assert [len(prompt) for prompt in first] == [8, 8, 8, 8]


def test_a_token_file_gives_its_prompts_in_order_every_round(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text("[1, 2]\n\n[3, 4]\n[5, 6]\n")
    for round_number in (0, 1):
        assert workload_prompts(from_file(path), round_number=round_number) == ((1, 2), (3, 4))


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone.jsonl"
    with pytest.raises(RecipeError) as caught:
        workload_prompts(from_file(path), round_number=1)
    assert str(caught.value).startswith(f"{path}: expected a UTF-8 file of token-id lists, got ")
    assert "No such file or directory" in str(caught.value)


def test_a_token_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_bytes(b"\xff\xfe[1, 2]")
    with pytest.raises(RecipeError, match="expected a UTF-8 file of token-id lists, got 'utf-8'"):
        workload_prompts(from_file(path), round_number=1)


def test_every_wrong_line_of_a_token_file_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text("[1, 2, 3]\n[4, true]\n")
    with pytest.raises(RecipeError) as caught:
        workload_prompts(from_file(path), round_number=1)
    assert caught.value.problems == (
        f"{path}:1: expected 2 token ids (isl_tokens), got 3",
        f"{path}:2: expected token ids that are integers >= 0, got True",
    )
