from itertools import pairwise

import pytest
from fakes.stream_bytes import (
    DONE,
    chat,
    counts,
    decode,
    error_of,
    ms,
    response,
    sse,
    text,
    tokens_at,
    usage_chunk,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_qperf.core.decode import decode_response
from pytest_qperf.core.metrics import request_metrics
from pytest_qperf.core.records import RequestRecord, TokenChunk


def test_a_completions_stream_is_decoded_with_its_counts() -> None:
    raw = response(
        (50, text("a")), (52, text("b", finish="length")), (52.5, usage_chunk(2)), (53, DONE)
    )
    assert decode_response(raw, is_warmup=True) == RequestRecord(
        index=3,
        is_warmup=True,
        scheduled_perf_ns=-ms(1),
        sent_perf_ns=0,
        ended_perf_ns=ms(1000),
        http_status=200,
        isl_tokens=5,
        osl_tokens=2,
        cached_tokens=None,
        finish_reason="length",
        chunks=(TokenChunk(ms(50), 1), TokenChunk(ms(52), 1)),
        error=None,
    )


@pytest.mark.parametrize("content", [None, ""])
def test_a_role_chunk_is_not_the_first_token(content: str | None) -> None:
    record = decode(
        (10, chat(role="assistant", content=content)),
        (50, chat(content="a")),
        (60, chat(content="b", finish="length")),
        (61, usage_chunk(2)),
    )
    assert tokens_at(record) == [(50, 1), (60, 1)]


def test_a_role_chunk_that_carries_content_is_a_token() -> None:
    record = decode(
        (50, chat(role="assistant", content="a")),
        (60, chat(content="b", finish="length", usage=counts(2))),
    )
    assert tokens_at(record) == [(50, 1), (60, 1)]


def test_an_empty_opening_text_is_not_the_first_token() -> None:
    record = decode(
        (10, text("")), (50, text("a")), (60, text("b", finish="length")), (61, usage_chunk(2))
    )
    assert tokens_at(record) == [(50, 1), (60, 1)]


def test_an_empty_opening_text_is_not_taken_for_a_token_without_text() -> None:
    error = error_of(
        (10, text("")), (50, text("a")), (60, text("b", finish="length")), (61, usage_chunk(3))
    )
    assert error.startswith("tokens cannot be attributed to chunks: 3 tokens came in 2 chunks")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_counts_as_generated(field: str) -> None:
    record = decode(
        (1, chat(role="assistant", content="")),
        (20, chat(**{field: "hm"})),
        (90, chat(content="a", finish="length")),
        (91, usage_chunk(2)),
    )
    assert tokens_at(record) == [(20, 1), (90, 1)]


def test_tool_calls_count_as_generated() -> None:
    record = decode(
        (20, chat(tool_calls=[{"index": 0, "function": {"name": "f"}}])),
        (30, chat(content="a", finish="length")),
        (31, usage_chunk(2)),
    )
    assert tokens_at(record) == [(20, 1), (30, 1)]


def test_a_chunk_without_choices_is_neither_an_error_nor_a_token() -> None:
    opening = sse({"choices": [], "prompt_filter_results": []})
    record = decode(
        (1, opening), (50, text("a")), (60, text("b", finish="length")), (60, usage_chunk(2))
    )
    assert tokens_at(record) == [(50, 1), (60, 1)]


def test_token_ids_give_the_tokens_of_each_chunk() -> None:
    record = decode(
        (100, text("a", ids=[1])),
        (120, text("bcde", ids=[2, 3, 4, 5])),
        (140, text("", ids=[6, 7], finish="length")),
        (141, usage_chunk(7)),
    )
    assert tokens_at(record) == [(100, 1), (120, 4), (140, 2)]


def test_a_chunk_with_an_empty_list_of_token_ids_carries_no_tokens() -> None:
    record = decode(
        (90, text("", ids=[])),
        (100, text("a", ids=[1])),
        (120, text("b", ids=[2])),
        (121, text("", ids=[], finish="length")),
        (122, usage_chunk(2)),
    )
    assert tokens_at(record) == [(100, 1), (120, 1)]


def test_token_ids_that_do_not_add_up_to_usage_are_an_error() -> None:
    error = error_of(
        (1, text("a", ids=[1])), (2, text("b", ids=[2], finish="length")), (3, usage_chunk(3))
    )
    assert error == (
        "token counts disagree: the chunks carry 2 tokens, usage.completion_tokens is 3"
    )


def test_continuous_usage_gives_the_tokens_of_each_chunk() -> None:
    record = decode(
        (100, text("a", usage=counts(1))),
        (120, text("b", usage=counts(5))),
        (140, text("c", usage=counts(9), finish="length")),
        (141, usage_chunk(9)),
    )
    assert tokens_at(record) == [(100, 1), (120, 4), (140, 4)]
    assert request_metrics(record).tpot_s == pytest.approx(0.005)
    assert set(request_metrics(record).itl_s) == {0.005}


def test_the_tokens_of_the_first_chunk_are_not_divided_by_the_decode_time() -> None:
    record = decode(
        (100, text("abcd", usage=counts(4))),
        (132, text("e", usage=counts(20), finish="length")),
    )
    assert request_metrics(record).tpot_s == pytest.approx(0.002)


def test_continuous_usage_gives_a_time_to_a_token_without_text() -> None:
    record = decode(
        (5, chat(role="assistant", content="", usage=counts(0))),
        (10, chat(content="a", usage=counts(1))),
        (12, chat(content="", usage=counts(2))),
        (14, chat(content="c", usage=counts(3))),
        (14.5, chat(content="", usage=counts(3), finish="length")),
    )
    assert tokens_at(record) == [(10, 1), (12, 1), (14, 1)]


def test_continuous_usage_that_falls_is_an_error() -> None:
    error = error_of(
        (1, text("a", usage=counts(2))), (2, text("b", usage=counts(1), finish="length"))
    )
    assert error == "token counts disagree: usage.completion_tokens fell from 2 to 1"


def test_usage_null_in_each_chunk_is_no_usage() -> None:
    record = decode(
        (1, text("a", usage=None)), (2, text("b", finish="length")), (3, usage_chunk(2))
    )
    assert tokens_at(record) == [(1, 1), (2, 1)]


def test_usage_in_the_last_tokens_chunk_is_enough_without_done() -> None:
    record = decode((1, text("a")), (2, text("b", finish="length", usage=counts(2))))
    assert tokens_at(record) == [(1, 1), (2, 1)]
    assert record.isl_tokens == 5


def test_tokens_without_text_are_one_each_if_the_chunks_add_up() -> None:
    record = decode(
        (10, text("a")),
        (12, text("")),
        (14, text("c")),
        (16, text("", finish="length")),
        (17, usage_chunk(4)),
    )
    assert tokens_at(record) == [(10, 1), (12, 1), (14, 1), (16, 1)]


def test_an_empty_role_chunk_amid_the_stream_is_not_a_token_without_text() -> None:
    error = error_of(
        (10, chat(content="a")),
        (12, chat(role="assistant", content="")),
        (14, chat(content="c", finish="length")),
        (15, usage_chunk(3)),
    )
    assert error.startswith("tokens cannot be attributed to chunks: 3 tokens came in 2 chunks")


def test_bundled_chunks_without_counts_are_an_error_and_not_guessed() -> None:
    error = error_of((1, text("abcd")), (2, text("efgh", finish="length")), (3, usage_chunk(8)))
    assert error == (
        "tokens cannot be attributed to chunks: 8 tokens came in 2 chunks with content and "
        "2 with choices, without token_ids or continuous usage"
    )


def test_more_chunks_than_tokens_are_an_error() -> None:
    error = error_of((1, text("a")), (2, text("b", finish="length")), (3, usage_chunk(1)))
    assert error.startswith("tokens cannot be attributed to chunks: 1 tokens came in 2 chunks")


def test_the_servers_count_stands_whatever_the_text_looks_like() -> None:
    record = decode(
        (1, text("one two three four", ids=[1])),
        (2, text("five six seven", ids=[2], finish="length")),
        (3, usage_chunk(2)),
    )
    assert record.osl_tokens == 2


@pytest.mark.parametrize("cached", [0, 16])
def test_cached_tokens_come_from_the_prompt_details(cached: int) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    record = decode((1, text("a")), (2, text("b", finish="length")), (3, usage_chunk(2, **details)))
    assert record.cached_tokens == cached


def test_prompt_details_of_null_mean_that_cached_tokens_are_unknown() -> None:
    record = decode(
        (1, text("a")),
        (2, text("b", finish="length")),
        (3, usage_chunk(2, prompt_tokens_details=None)),
    )
    assert record.error is None
    assert record.cached_tokens is None


def test_an_event_has_the_time_of_the_read_that_completed_it() -> None:
    first = text("a")
    record = decode(
        (10, first[:7]),
        (20, first[7:-1]),
        (30, first[-1:]),
        (40, text("b", finish="length")),
        (41, usage_chunk(2)),
    )
    assert tokens_at(record) == [(30, 1), (40, 1)]


def test_two_events_in_one_read_have_the_same_time() -> None:
    record = decode(
        (10, text("a") + text("b")), (40, text("c", finish="length") + usage_chunk(3) + DONE)
    )
    assert tokens_at(record) == [(10, 1), (10, 1), (40, 1)]


def test_the_usage_chunk_does_not_extend_the_latency() -> None:
    record = decode(
        (100, text("a")), (200, text("b", finish="length")), (260, usage_chunk(2)), (270, DONE)
    )
    metrics = request_metrics(record)
    assert metrics.e2e_latency_s == 0.2
    assert metrics.e2e_latency_s - metrics.ttft_s == pytest.approx(sum(metrics.itl_s))


def test_comments_and_missing_spaces_change_nothing() -> None:
    record = decode(
        (5, b": keep-alive\n\n"),
        (10, text("a").replace(b"data: ", b"data:")),
        (12, b": keep-alive\n\n"),
        (20, text("b", finish="length").replace(b"data: ", b"data:")),
        (21, usage_chunk(2).replace(b"data: ", b"data:")),
    )
    assert tokens_at(record) == [(10, 1), (20, 1)]


def test_an_event_of_300_kilobytes_is_read() -> None:
    record = decode((1, text("a" * 300_000)), (2, text("b", finish="length")), (3, usage_chunk(2)))
    assert tokens_at(record) == [(1, 1), (2, 1)]


@settings(deadline=None)
@given(st.sets(st.integers(0, 400), max_size=12))
def test_any_split_of_the_body_gives_the_same_tokens(cuts: set[int]) -> None:
    body = text("é", ids=[1]) + text("b", ids=[2, 3], finish="length") + usage_chunk(3) + DONE
    borders = sorted({0, len(body)} | {cut for cut in cuts if cut < len(body)})
    reads = [(float(end), body[start:end]) for start, end in pairwise(borders)]
    record = decode(*reads)
    assert [num_tokens for _, num_tokens in tokens_at(record)] == [1, 2]
    assert record.osl_tokens == 3
