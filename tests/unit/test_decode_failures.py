from collections.abc import Sequence

import pytest
from fakes.stream_bytes import (
    DONE,
    counts,
    decode,
    error_of,
    response,
    sse,
    text,
    tokens_at,
    usage_chunk,
)

from pytest_qperf.core.decode import decode_response


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (sse({"error": {"message": "OOM", "code": 500}}), "in-band error: OOM"),
        (sse({"error": "text"}), "in-band error: text"),
        (sse({"error": {"code": 7}}), 'in-band error: {"code": 7}'),
        (sse({"object": "error", "message": "bad", "code": 400}), "in-band error: bad"),
        (b"event: error\ndata: gone\n\n", "in-band error: gone"),
    ],
)
def test_an_error_inside_http_200_fails_the_request(event: bytes, message: str) -> None:
    assert error_of((1, text("a")), (2, text("b")), (3, event), (4, DONE)) == message


def test_an_in_band_error_after_a_complete_stream_fails_the_request_too() -> None:
    ending = text("b", finish="length", usage=counts(2))
    assert error_of((1, text("a")), (2, ending), (3, sse({"error": "late"}))).endswith("late")


def test_error_null_is_no_error() -> None:
    fine = sse({"error": None, "choices": [{"text": "a", "finish_reason": None}]})
    record = decode((1, fine), (2, text("b", finish="length")), (3, usage_chunk(2)))
    assert tokens_at(record) == [(1, 1), (2, 1)]


def test_a_clean_end_without_finish_reason_is_a_truncated_stream() -> None:
    assert error_of((1, text("a")), (2, text("b")), (3, usage_chunk(2))) == (
        "truncated stream: it ended cleanly after 2 chunks with content, without a finish_reason"
    )


def test_an_end_inside_an_event_is_a_truncated_stream() -> None:
    assert error_of((1, text("a")), (2, text("b", finish="length")[:-1])) == (
        "truncated stream: it ended inside an event after 1 chunks with content, "
        "without a finish_reason"
    )


def test_a_stream_without_usage_is_an_error() -> None:
    assert error_of((1, text("a")), (2, text("b", finish="length")), (3, DONE)) == (
        "no usage.completion_tokens in the stream"
    )


def test_a_response_without_content_is_an_error() -> None:
    assert error_of((1, text("", finish="length")), (2, usage_chunk(2))).startswith(
        "tokens cannot be attributed"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'data: {"choices"\n\n', "invalid JSON in an event: Expecting ':' delimiter: '{\"choice"),
        (b"data: [1]\n\n", "event is not a JSON object: '[1]'"),
        (sse({"choices": [1]}), "choices is not a list of JSON objects: [1]"),
        (sse({"usage": 5}), "usage is not a JSON object: 5"),
        (sse({"usage": {"completion_tokens": True}}), "usage.completion_tokens is not an integer"),
        (sse({"usage": {"prompt_tokens": -1}}), "usage.prompt_tokens is not an integer >= 0: -1"),
    ],
)
def test_an_event_that_makes_no_sense_fails_the_request(data: bytes, message: str) -> None:
    assert error_of((1, data)).startswith(message)


def test_a_body_that_is_no_event_stream_is_shown() -> None:
    assert error_of((1, b'{"choices": []}')) == 'no events in the response: {"choices": []}'
    assert error_of() == "no events in the response: empty body"


def failed(reads: Sequence[tuple[float, bytes]], status: int | None, error: str | None) -> str:
    raw = response(*reads, status=status, transport_error=error)
    record = decode_response(raw, is_warmup=False)
    assert record.chunks == ()
    assert record.error is not None
    return record.error


def test_a_refusal_keeps_the_first_200_characters_of_its_body() -> None:
    body = b"rate\n limited " + b"x" * 500
    expected = "HTTP 429: rate limited " + "x" * 187
    assert failed([(1, body[:100]), (2, body[100:])], 429, None) == expected
    assert failed([], 503, "connection failed: reset") == "HTTP 503: empty body"


def test_a_transport_error_fails_the_request_even_after_a_complete_stream() -> None:
    reads = [(1.0, text("a")), (2.0, text("b", finish="length", usage=counts(2)))]
    assert failed(reads, 200, "no bytes for 2 s") == "no bytes for 2 s"


def test_a_missing_status_line_is_an_error() -> None:
    assert failed([], None, None) == "no HTTP status line came"
