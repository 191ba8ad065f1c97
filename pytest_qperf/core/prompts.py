"""Prompts as token ids: no tokenizer, the same bytes for both arms."""

import json

import numpy as np

from pytest_qperf.core.errors import RecipeError
from pytest_qperf.core.recipe import RandomTokenPrompts, WorkloadRecipe

# The block size of vLLM's prefix cache: a prompt with a first block of its own can hit nothing.
FIRST_BLOCK_TOKENS = 16

TokenIds = tuple[int, ...]


def random_token_prompts(workload: WorkloadRecipe, *, round_index: int) -> tuple[TokenIds, ...]:
    """Return num_requests lists of isl_tokens uniform random ids; no two share their first block.

    Equal for equal (seed, round_index), independent between rounds. The first block is the first
    16 tokens (all tokens of a shorter prompt).
    Raises RecipeError if the id range has too few different first blocks; ValueError if the
    workload's prompts are not random tokens.
    """
    prompts = workload.prompts
    if not isinstance(prompts, RandomTokenPrompts):
        raise ValueError(f"prompts: expected source random_tokens, got {prompts.source}")
    block_tokens = min(FIRST_BLOCK_TOKENS, workload.isl_tokens)
    num_blocks = (prompts.max_token_id - prompts.min_token_id + 1) ** block_tokens
    # Twice as many as needed, so that drawing until all differ ends soon.
    if num_blocks < 2 * workload.num_requests:
        raise RecipeError(
            [
                f"prompts: expected at least {2 * workload.num_requests} different first blocks, "
                f"got {num_blocks} ({block_tokens} tokens out of [{prompts.min_token_id}, "
                f"{prompts.max_token_id}]); widen the range of token ids"
            ]
        )
    generator = np.random.Generator(np.random.PCG64([workload.seed, round_index]))
    drawn: dict[TokenIds, TokenIds] = {}
    while len(drawn) < workload.num_requests:
        ids = generator.integers(
            prompts.min_token_id, prompts.max_token_id, size=workload.isl_tokens, endpoint=True
        )
        prompt = tuple(ids.tolist())
        drawn.setdefault(prompt[:block_tokens], prompt)
    return tuple(drawn.values())


def parse_token_file(
    text: str, *, isl_tokens: int, num_requests: int, where: str
) -> tuple[TokenIds, ...]:
    """Return the first num_requests prompts of a JSON Lines text, one list of ids a line.

    Blank lines are skipped. Raises RecipeError with every problem, ``where:line: message``.
    """
    prompts: list[TokenIds] = []
    problems: list[str] = []
    num_lines = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        num_lines += 1
        parsed = _parse_line(line, isl_tokens=isl_tokens)
        if isinstance(parsed, str):
            problems.append(f"{where}:{number}: {parsed}")
        else:
            prompts.append(parsed)
    if num_lines < num_requests:
        problems.append(
            f"{where}: expected at least {num_requests} prompts (num_requests), got {num_lines}; "
            f"add lines or lower num_requests"
        )
    if problems:
        raise RecipeError(problems)
    return tuple(prompts[:num_requests])


def _parse_line(line: str, *, isl_tokens: int) -> TokenIds | str:
    """Return the ids of one line, or what is wrong with it."""
    try:
        ids = json.loads(line)
    except json.JSONDecodeError as error:
        return f"expected a JSON list of token ids, got invalid JSON ({error.msg})"
    if not isinstance(ids, list):
        return f"expected a JSON list of token ids, got {type(ids).__name__}"
    for token_id in ids:
        # `type` and not `isinstance`: JSON's true is an int in Python.
        if type(token_id) is not int or token_id < 0:
            return f"expected token ids that are integers >= 0, got {token_id!r}"
    if len(ids) != isl_tokens:
        return f"expected {isl_tokens} token ids (isl_tokens), got {len(ids)}"
    return tuple(ids)
