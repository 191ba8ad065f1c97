from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fakes.tiny_checkpoint import TINY, write_tiny

from pytest_qperf.checkpoint.reading import read_checkpoint
from pytest_qperf.embedded.linear import Array, LinearFactory
from pytest_qperf.embedded.model import Qwen2Model, Segment
from pytest_qperf.embedded.scheduler import (
    PREFILL_ROWS,
    GenerationRequest,
    Scheduler,
    TokenEvent,
    greedy_token,
)

EOS = TINY.eos_token_ids[0]


class ScriptedModel(Qwen2Model):
    """Always finds one token the likeliest and another second; remembers each pass's pieces."""

    def __init__(self, folder: Path, *, likeliest: int, second: int = 5) -> None:
        checkpoint = read_checkpoint(write_tiny(folder))
        factory = LinearFactory(checkpoint, None, num_threads=1)
        super().__init__(checkpoint, factory, max_segments=8)
        self._logits = np.zeros(TINY.vocab_size, np.float32)
        self._logits[[likeliest, second]] = (2, 1)
        self.passes: list[list[int]] = []

    def forward(self, segments: Sequence[Segment], *, padded_rows: int) -> Array:
        self.passes.append([len(segment.token_ids) for segment in segments])
        assert sum(self.passes[-1]) <= padded_rows
        for segment in segments:
            segment.cache.num_tokens += len(segment.token_ids)
        return np.tile(self._logits, (len(segments), 1))


def _request(
    name: str = "a",
    *,
    num_prompt: int = 3,
    max_tokens: int = 4,
    min_tokens: int = 0,
    ignore_eos: bool = False,
) -> GenerationRequest:
    return GenerationRequest(name, (1,) * num_prompt, max_tokens, min_tokens, ignore_eos)


def _run(scheduler: Scheduler) -> list[TokenEvent]:
    events = []
    while scheduler.has_work:
        events += scheduler.prefill() + scheduler.decode()
    return events


def test_a_request_ends_at_max_tokens_with_reason_length(tmp_path: Path) -> None:
    scheduler = Scheduler(ScriptedModel(tmp_path / "m", likeliest=9), max_batch_size=1)
    scheduler.add(_request(max_tokens=3))
    assert _run(scheduler) == [
        TokenEvent("a", 9, None),
        TokenEvent("a", 9, None),
        TokenEvent("a", 9, "length"),
    ]


def test_an_end_token_ends_a_request_with_reason_stop(tmp_path: Path) -> None:
    scheduler = Scheduler(ScriptedModel(tmp_path / "m", likeliest=EOS), max_batch_size=1)
    scheduler.add(_request())
    assert _run(scheduler) == [TokenEvent("a", EOS, "stop")]


def test_ignore_eos_goes_on_after_an_end_token(tmp_path: Path) -> None:
    scheduler = Scheduler(ScriptedModel(tmp_path / "m", likeliest=EOS), max_batch_size=1)
    scheduler.add(_request(max_tokens=2, ignore_eos=True))
    assert _run(scheduler) == [TokenEvent("a", EOS, None), TokenEvent("a", EOS, "length")]


def test_no_end_token_comes_before_min_tokens(tmp_path: Path) -> None:
    scheduler = Scheduler(ScriptedModel(tmp_path / "m", likeliest=EOS, second=5), max_batch_size=1)
    scheduler.add(_request(min_tokens=2))
    assert [event.token_id for event in _run(scheduler)] == [5, 5, EOS]


def test_prompts_share_a_pass_until_its_rows_are_full(tmp_path: Path) -> None:
    model = ScriptedModel(tmp_path / "m", likeliest=9)
    scheduler = Scheduler(model, max_batch_size=8)
    for name in "abc":
        scheduler.add(_request(name, num_prompt=30, max_tokens=1))
    _run(scheduler)
    assert model.passes == [[30, 30], [30]]


def test_a_long_prompt_is_cut_at_the_same_places_whatever_runs_beside_it(tmp_path: Path) -> None:
    model = ScriptedModel(tmp_path / "m", likeliest=9)
    scheduler = Scheduler(model, max_batch_size=8)
    scheduler.add(_request("short", num_prompt=10, max_tokens=1))
    scheduler.add(_request("long", num_prompt=PREFILL_ROWS + 6, max_tokens=1))
    _run(scheduler)
    assert model.passes == [[10], [PREFILL_ROWS], [6]]


def test_requests_beyond_the_batch_wait_for_a_place(tmp_path: Path) -> None:
    scheduler = Scheduler(ScriptedModel(tmp_path / "m", likeliest=9), max_batch_size=2)
    for name in "abc":
        scheduler.add(_request(name, max_tokens=2))
    assert [event.request_id for event in _run(scheduler)] == ["a", "b", "a", "b", "c", "c"]


@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_cancelled_request_gives_no_more_tokens(tmp_path: Path, num_steps: int) -> None:
    scheduler = Scheduler(ScriptedModel(tmp_path / "m", likeliest=9), max_batch_size=1)
    scheduler.add(_request())
    for _ in range(num_steps):
        scheduler.prefill()
    scheduler.cancel("a")
    assert not scheduler.has_work
    assert scheduler.prefill() + scheduler.decode() == []


def test_cancelling_a_request_that_has_ended_changes_nothing(tmp_path: Path) -> None:
    scheduler = Scheduler(ScriptedModel(tmp_path / "m", likeliest=9), max_batch_size=1)
    scheduler.add(_request())
    events = _run(scheduler)
    scheduler.cancel("a")
    assert len(events) == 4
    assert not scheduler.has_work


def test_the_lowest_id_wins_a_tie() -> None:
    assert greedy_token(np.array([0, 3, 3], np.float32), barred_ids=()) == 1


def test_a_nan_logit_is_an_error() -> None:
    with pytest.raises(FloatingPointError, match="logits: expected numbers, got NaN"):
        greedy_token(np.array([0, np.nan], np.float32), barred_ids=())
