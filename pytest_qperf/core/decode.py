"""From raw reads to a decoded request: which tokens came when, and whether the stream is complete.

An event's time is the clock of the read that completed it. Tokens are the server's count, never the
number of chunks and never re-tokenised text. Formulas and sources: docs/metrics.md.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_qperf.core.records import RawResponse, RequestRecord, TokenChunk
from pytest_qperf.core.sse import SseDecoder, SseEvent

HTTP_OK = 200
MAX_BODY_CHARACTERS = 200
_END_OF_STREAM = "[DONE]"
_CONTENT_FIELDS = ("content", "reasoning", "reasoning_content", "tool_calls")

JsonObject = Mapping[str, object]


class _StreamError(Exception):
    """Why a response is not a complete stream; the text becomes the request's ``error``."""


@dataclass(frozen=True, slots=True)
class _Usage:
    """The server's own counts, cumulative up to the chunk that carried them."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class _ChoicesChunk:
    """A chunk with choices; ``num_token_ids`` is None if it streamed no token ids."""

    perf_ns: int
    has_content: bool
    has_role: bool
    num_token_ids: int | None
    completion_tokens: int | None


@dataclass(slots=True)
class _Stream:
    """What the events of one response said so far."""

    chunks: list[_ChoicesChunk] = field(default_factory=list)
    usage: _Usage | None = None
    finish_reason: str | None = None
    num_events: int = 0
    ended_inside_event: bool = False


def decode_response(raw: RawResponse, *, is_warmup: bool) -> RequestRecord:
    """Return the decoded request; anything short of a complete stream becomes its ``error``.

    Reads ``/v1/completions`` and chat chunks. A request with an error has no chunks: its tokens
    count nowhere. Errors start with their kind, followed by ": " where there is detail.
    """
    stream = _Stream()
    chunks: tuple[TokenChunk, ...] = ()
    error: str | None = None
    try:
        _check_transport(raw)
        _read_events(raw, stream)
        _check_complete(raw, stream)
        chunks = _attribute_tokens(stream)
    except _StreamError as problem:
        error = str(problem)
    usage = stream.usage
    return RequestRecord(
        index=raw.index,
        is_warmup=is_warmup,
        scheduled_perf_ns=raw.scheduled_perf_ns,
        sent_perf_ns=raw.sent_perf_ns,
        ended_perf_ns=raw.ended_perf_ns,
        http_status=raw.http_status,
        isl_tokens=usage.prompt_tokens if usage else None,
        osl_tokens=usage.completion_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        finish_reason=stream.finish_reason,
        chunks=chunks,
        error=error,
    )


def _check_transport(raw: RawResponse) -> None:
    if raw.http_status not in (None, HTTP_OK):
        raise _StreamError(f"HTTP {raw.http_status}: {_body_start(raw)}")
    if raw.transport_error is not None:
        raise _StreamError(raw.transport_error)
    if raw.http_status is None:
        raise _StreamError("no HTTP status line came")


def _body_start(raw: RawResponse) -> str:
    body = b"".join(read.data for read in raw.reads).decode("utf-8", errors="replace")
    return " ".join(body.split())[:MAX_BODY_CHARACTERS] or "empty body"


def _read_events(raw: RawResponse, stream: _Stream) -> None:
    decoder = SseDecoder()
    for read in raw.reads:
        for event in decoder.feed(read.data):
            stream.num_events += 1
            _read_event(event, read.perf_ns, stream)
    stream.ended_inside_event = decoder.close()


def _read_event(event: SseEvent, perf_ns: int, stream: _Stream) -> None:
    if event.event == "error":
        raise _StreamError(f"in-band error: {event.data[:MAX_BODY_CHARACTERS]}")
    if event.data in ("", _END_OF_STREAM):
        return
    payload = _parse_payload(event.data)
    if payload.get("error") is not None or payload.get("object") == "error":
        raise _StreamError(f"in-band error: {_error_text(payload)}")
    usage = _parse_usage(payload)
    stream.usage = usage or stream.usage
    choices = _parse_choices(payload)
    if choices:
        stream.chunks.append(_choices_chunk(choices, usage, perf_ns))
    for choice in choices:
        reason = choice.get("finish_reason")
        stream.finish_reason = reason if isinstance(reason, str) else stream.finish_reason


def _parse_payload(data: str) -> JsonObject:
    try:
        payload = json.loads(data)
    except json.JSONDecodeError as error:
        shown = data[:MAX_BODY_CHARACTERS]
        raise _StreamError(f"invalid JSON in an event: {error.msg}: {shown!r}") from error
    if not isinstance(payload, dict):
        raise _StreamError(f"event is not a JSON object: {data[:MAX_BODY_CHARACTERS]!r}")
    return payload


def _error_text(payload: JsonObject) -> str:
    """Return the server's message; the JSON of the error where it has none."""
    error = payload.get("error") or payload
    message = error.get("message") if isinstance(error, dict) else error
    text = message if isinstance(message, str) else json.dumps(error)
    return text[:MAX_BODY_CHARACTERS]


def _parse_usage(payload: JsonObject) -> _Usage | None:
    usage = payload.get("usage")
    if usage is None:
        return None
    if not isinstance(usage, dict):
        raise _StreamError(f"usage is not a JSON object: {usage!r}")
    details = usage.get("prompt_tokens_details")
    return _Usage(
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        cached_tokens=_count(details, "cached_tokens") if isinstance(details, dict) else None,
    )


def _count(counts: JsonObject, name: str) -> int | None:
    value = counts.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise _StreamError(f"usage.{name} is not an integer >= 0: {value!r}")
    return value


def _parse_choices(payload: JsonObject) -> list[JsonObject]:
    choices = payload.get("choices")
    if choices is None:
        return []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise _StreamError(f"choices is not a list of JSON objects: {choices!r}")
    return choices


def _choices_chunk(choices: list[JsonObject], usage: _Usage | None, perf_ns: int) -> _ChoicesChunk:
    counts = [len(ids) for choice in choices if isinstance(ids := choice.get("token_ids"), list)]
    return _ChoicesChunk(
        perf_ns=perf_ns,
        has_content=any(_has_content(choice) for choice in choices),
        has_role=any(_delta(choice).get("role") is not None for choice in choices),
        num_token_ids=sum(counts) if counts else None,
        completion_tokens=usage.completion_tokens if usage else None,
    )


def _has_content(choice: JsonObject) -> bool:
    delta = _delta(choice)
    return bool(choice.get("text")) or any(delta.get(name) for name in _CONTENT_FIELDS)


def _delta(choice: JsonObject) -> JsonObject:
    """Return a chat choice's delta; a completions choice has none."""
    delta = choice.get("delta")
    return delta if isinstance(delta, dict) else {}


def _check_complete(raw: RawResponse, stream: _Stream) -> None:
    if stream.num_events == 0:
        raise _StreamError(f"no events in the response: {_body_start(raw)}")
    if stream.finish_reason is None:
        num_content = sum(chunk.has_content for chunk in stream.chunks)
        place = "inside an event" if stream.ended_inside_event else "cleanly"
        raise _StreamError(
            f"truncated stream: it ended {place} after {num_content} chunks with content, "
            f"without a finish_reason"
        )
    if stream.usage is None or stream.usage.completion_tokens is None:
        raise _StreamError("no usage.completion_tokens in the stream")


def _attribute_tokens(stream: _Stream) -> tuple[TokenChunk, ...]:
    """Return the chunks that carried tokens, by the best source the server offers."""
    content_chunks = [chunk for chunk in stream.chunks if chunk.has_content]
    if any(chunk.num_token_ids for chunk in stream.chunks):
        tokens = _from_token_ids(stream.chunks)
    elif content_chunks and all(c.completion_tokens is not None for c in content_chunks):
        tokens = _from_continuous_usage(stream.chunks)
    else:
        return _one_token_each(stream, content_chunks)
    total, expected = sum(chunk.num_tokens for chunk in tokens), _completion_tokens(stream)
    if total != expected:
        raise _StreamError(
            f"token counts disagree: the chunks carry {total} tokens, "
            f"usage.completion_tokens is {expected}"
        )
    return tokens


def _from_token_ids(chunks: list[_ChoicesChunk]) -> tuple[TokenChunk, ...]:
    return tuple(
        TokenChunk(perf_ns=chunk.perf_ns, num_tokens=chunk.num_token_ids)
        for chunk in chunks
        if chunk.num_token_ids
    )


def _from_continuous_usage(chunks: list[_ChoicesChunk]) -> tuple[TokenChunk, ...]:
    tokens: list[TokenChunk] = []
    seen = 0
    for chunk in chunks:
        if chunk.completion_tokens is None:
            continue
        if chunk.completion_tokens < seen:
            raise _StreamError(
                f"token counts disagree: usage.completion_tokens fell from {seen} "
                f"to {chunk.completion_tokens}"
            )
        if chunk.completion_tokens > seen:
            tokens.append(TokenChunk(chunk.perf_ns, chunk.completion_tokens - seen))
            seen = chunk.completion_tokens
    return tuple(tokens)


def _one_token_each(stream: _Stream, content_chunks: list[_ChoicesChunk]) -> tuple[TokenChunk, ...]:
    """Return one token for each chunk where the counts prove it.

    A token may have no text (half a character), so chunks without content are tried too, but none
    before the first content: a role or an empty opening chunk must not become the first token.
    """
    expected = _completion_tokens(stream)
    chosen = content_chunks
    if content_chunks and len(content_chunks) < expected:
        first = stream.chunks.index(content_chunks[0])
        chosen = [c for c in stream.chunks[first:] if c.has_content or not c.has_role]
    if len(chosen) != expected:
        raise _StreamError(
            f"tokens cannot be attributed to chunks: {expected} tokens came in "
            f"{len(content_chunks)} chunks with content and {len(stream.chunks)} with choices, "
            f"without token_ids or continuous usage"
        )
    return tuple(TokenChunk(perf_ns=chunk.perf_ns, num_tokens=1) for chunk in chosen)


def _completion_tokens(stream: _Stream) -> int:
    if stream.usage is None or stream.usage.completion_tokens is None:
        raise _StreamError("no usage.completion_tokens in the stream")
    return stream.usage.completion_tokens
