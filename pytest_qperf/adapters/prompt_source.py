"""Gets a workload's prompts, drawn or read from its token file."""

from pathlib import Path

from pytest_qperf.core.errors import RecipeError
from pytest_qperf.core.prompts import TokenIds, parse_token_file, random_token_prompts
from pytest_qperf.core.recipe import TokenFilePrompts, WorkloadRecipe


def workload_prompts(workload: WorkloadRecipe, *, round_number: int) -> tuple[TokenIds, ...]:
    """Return the prompts of one round: the same for both arms, fresh each round where drawn.

    Raises RecipeError if the token file is missing or its lines do not fit the workload.
    """
    prompts = workload.prompts
    if not isinstance(prompts, TokenFilePrompts):
        return random_token_prompts(workload, round_index=round_number)
    try:
        text = Path(prompts.path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            [f"{prompts.path}: expected a UTF-8 file of token-id lists, got {error}"]
        ) from error
    return parse_token_file(
        text,
        isl_tokens=workload.isl_tokens,
        num_requests=workload.num_requests,
        where=prompts.path,
    )
