"""The OpenAI completions API, as far as it is served: request checks and response bodies."""

import time
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pytest_qperf.checkpoint.shapes import Qwen2Shape
from pytest_qperf.checkpoint.tokenizer_file import ByteTokenizer
from pytest_qperf.embedded.scheduler import FinishReason, GenerationRequest


class ApiError(Exception):
    """A request that is refused: HTTP status and the message of the error body."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def body(self) -> dict[str, Any]:
        """Return the error in the shape OpenAI clients read."""
        return error_body(self.status, str(self))


class _Strict(BaseModel):
    """Refuses unknown keys: a parameter that has no effect must not look as if it had one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(_Strict):
    """Where a stream tells its token counts: in a last chunk, in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class CompletionBody(_Strict):
    """A request body; ``seed`` is taken and has no effect, because generation is greedy."""

    prompt: str | list[int] | list[list[int]]
    model: str | None = None
    max_tokens: int = Field(default=16, ge=1)
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    temperature: float | None = None
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False

    @field_validator("temperature")
    @classmethod
    def _greedy(cls, value: float | None) -> float | None:
        if value not in (None, 0):
            raise ValueError(f"expected 0 (this engine is greedy), got {value}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "CompletionBody":
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens: expected at most max_tokens {self.max_tokens}, got {self.min_tokens}"
            )
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: expected 'stream': true with it, got a whole answer")
        return self


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What requests are checked against and answered with."""

    name: str
    shape: Qwen2Shape
    tokenizer: ByteTokenizer

    def parse(self, data: bytes) -> CompletionBody:
        """Return the checked body; raise ApiError with every problem of it."""
        try:
            body = CompletionBody.model_validate_json(data)
        except ValidationError as error:
            raise ApiError(400, "; ".join(_problem(dict(e)) for e in error.errors())) from error
        if body.model not in (None, self.name):
            raise ApiError(404, f"model: expected {self.name!r}, got {body.model!r}")
        return body

    def generation_request(self, request_id: str, body: CompletionBody) -> GenerationRequest:
        """Return what the scheduler runs; raise ApiError for a prompt that cannot be run."""
        prompt_ids = self._prompt_ids(body.prompt)
        num_positions = self.shape.max_position_embeddings
        if len(prompt_ids) + body.max_tokens > num_positions:
            raise ApiError(
                400,
                f"prompt: expected at most {num_positions} tokens with max_tokens, got "
                f"{len(prompt_ids)} and max_tokens {body.max_tokens}; shorten one of them",
            )
        return GenerationRequest(
            request_id=request_id,
            prompt_ids=tuple(prompt_ids),
            max_tokens=body.max_tokens,
            min_tokens=body.min_tokens,
            ignore_eos=body.ignore_eos,
        )

    def _prompt_ids(self, prompt: str | list[int] | list[list[int]]) -> list[int]:
        ids: list[int] = []
        if isinstance(prompt, str):
            ids = self._encode(prompt)
        elif prompt and isinstance(prompt[0], list):
            if len(prompt) > 1:
                raise ApiError(400, f"prompt: expected one prompt a request, got {len(prompt)}")
            ids = prompt[0]
        else:
            ids = [id_ for id_ in prompt if isinstance(id_, int)]
        if not ids:
            raise ApiError(400, "prompt: expected at least one token, got none")
        highest = self.shape.vocab_size - 1
        outside = next((id_ for id_ in ids if not 0 <= id_ <= highest), None)
        if outside is not None:
            raise ApiError(400, f"prompt: expected token ids from 0 to {highest}, got {outside}")
        return ids

    def _encode(self, text: str) -> list[int]:
        try:
            return self.tokenizer.encode(text)
        except ValueError as error:
            raise ApiError(400, f"prompt: {error}") from error


def _problem(error: dict[str, Any]) -> str:
    location = [str(part) for part in error["loc"]]
    if location[:1] == ["prompt"] and error["type"] != "missing":
        return (
            "prompt: expected text, a list of token ids or a list of one such list, got "
            f"a wrong type at {'.'.join(location)}"
        )
    where = f"{'.'.join(location)}: " if location else ""
    if error["type"] == "extra_forbidden":
        return f"{where}expected no such parameter; this engine does not support it"
    return f"{where}{error['msg'].removeprefix('Value error, ')}"


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return an error in the shape OpenAI clients read."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Return the token counts; nothing is ever cached across requests."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def choice(
    text: str, *, finish_reason: FinishReason | None, token_ids: list[int] | None
) -> dict[str, Any]:
    """Return the only choice of an answer or chunk; ``token_ids`` None leaves the key out."""
    content = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return content if token_ids is None else {**content, "token_ids": token_ids}


def completion(
    request_id: str, model: str, *, choices: list[dict[str, Any]], counts: dict[str, Any] | None
) -> dict[str, Any]:
    """Return an answer or chunk; ``counts`` None leaves ``usage`` out."""
    content = {
        "id": request_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
    }
    return content if counts is None else {**content, "usage": counts}
