"""Continuous batching: prompts join running requests between two decode steps.

The model runs a whole prompt piece or one token of a request at a time, and where a prompt is cut
depends on that prompt alone. So a request's tokens do not depend on what else is served.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pytest_qperf.embedded.linear import Array
from pytest_qperf.embedded.model import KVCache, Qwen2Model, Segment

PREFILL_ROWS = 64
"""Prompt tokens in a forward pass, at most, and in a prompt piece."""

FinishReason = Literal["length", "stop"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A checked request: prompt and max_tokens together fit the model's positions."""

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token; ``finish_reason`` is set on a request's last one."""

    request_id: str
    token_id: int
    finish_reason: FinishReason | None


@dataclass(slots=True)
class _Sequence:
    request: GenerationRequest
    cache: KVCache
    output_ids: list[int] = field(default_factory=list)

    def next_piece(self) -> tuple[int, ...]:
        """Return the next prompt tokens to run; pieces begin at multiples of PREFILL_ROWS."""
        begin = self.cache.num_tokens
        return self.request.prompt_ids[begin : begin + PREFILL_ROWS]

    @property
    def is_prefilled(self) -> bool:
        return self.cache.num_tokens >= len(self.request.prompt_ids)


class Scheduler:
    """Runs up to ``max_batch_size`` requests together, the rest wait in order of arrival."""

    def __init__(self, model: Qwen2Model, *, max_batch_size: int) -> None:
        self._model = model
        self._max_batch_size = max_batch_size
        self._waiting: deque[GenerationRequest] = deque()
        self._active: dict[str, _Sequence] = {}

    @property
    def has_work(self) -> bool:
        """Return whether a step would do anything."""
        return bool(self._waiting or self._active)

    def add(self, request: GenerationRequest) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def cancel(self, request_id: str) -> None:
        """Drop a request, wherever it is; one that has ended already is no error."""
        self._active.pop(request_id, None)
        self._waiting = deque(r for r in self._waiting if r.request_id != request_id)

    def prefill(self) -> list[TokenEvent]:
        """Run prompt pieces that fit one forward pass; return the first tokens they end in."""
        self._admit()
        chosen: list[tuple[_Sequence, tuple[int, ...]]] = []
        free_rows = PREFILL_ROWS
        for sequence in self._active.values():
            if not sequence.is_prefilled and len(piece := sequence.next_piece()) <= free_rows:
                chosen.append((sequence, piece))
                free_rows -= len(piece)
        if not chosen:
            return []
        segments = [Segment(sequence.cache, piece) for sequence, piece in chosen]
        logits = self._model.forward(segments, padded_rows=PREFILL_ROWS)
        return [
            self._append_token(sequence, row)
            for (sequence, _), row in zip(chosen, logits, strict=True)
            if sequence.is_prefilled
        ]

    def decode(self) -> list[TokenEvent]:
        """Run one token of every request whose prompt has been run; return the next tokens."""
        running = [sequence for sequence in self._active.values() if sequence.is_prefilled]
        if not running:
            return []
        segments = [Segment(sequence.cache, (sequence.output_ids[-1],)) for sequence in running]
        logits = self._model.forward(segments, padded_rows=self._max_batch_size)
        return [
            self._append_token(sequence, row) for sequence, row in zip(running, logits, strict=True)
        ]

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self._max_batch_size:
            request = self._waiting.popleft()
            # The last token is generated, never run.
            capacity_tokens = len(request.prompt_ids) + request.max_tokens - 1
            cache = KVCache(self._model.shape, capacity_tokens)
            self._active[request.request_id] = _Sequence(request, cache)

    def _append_token(self, sequence: _Sequence, logits: Array) -> TokenEvent:
        request, eos_ids = sequence.request, self._model.shape.eos_token_ids
        may_stop = len(sequence.output_ids) >= request.min_tokens and not request.ignore_eos
        token_id = greedy_token(
            logits, barred_ids=() if may_stop or request.ignore_eos else eos_ids
        )
        sequence.output_ids.append(token_id)
        reason: FinishReason | None = None
        if may_stop and token_id in eos_ids:
            reason = "stop"
        elif len(sequence.output_ids) == request.max_tokens:
            reason = "length"
        if reason is not None:
            del self._active[request.request_id]
        return TokenEvent(request.request_id, token_id, reason)


def greedy_token(logits: Array, *, barred_ids: Sequence[int]) -> int:
    """Return the id of the largest logit, the lowest id on a tie, ``barred_ids`` left out.

    logits: (vocab_size,). Raises FloatingPointError for a NaN: the weights or a kernel are wrong.
    """
    if np.isnan(logits).any():
        raise FloatingPointError("logits: expected numbers, got NaN; weights or a kernel are wrong")
    if barred_ids:
        logits = logits.copy()
        logits[list(barred_ids)] = -np.inf
    return int(np.argmax(logits))
