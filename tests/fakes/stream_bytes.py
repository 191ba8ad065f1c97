"""Response bodies written by hand, as (time in ms, bytes) reads, and their decoded records."""

import json

from pytest_qperf.core.decode import decode_response
from pytest_qperf.core.records import RawResponse, RequestRecord, SocketRead

NS_PER_MS = 1_000_000
DONE = b"data: [DONE]\n\n"


def ms(value: float) -> int:
    return round(value * NS_PER_MS)


def sse(payload: object) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


def chat(finish: str | None = None, usage: object = None, **delta: object) -> bytes:
    payload: dict[str, object] = {
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]
    }
    return sse(payload if usage is None else {**payload, "usage": usage})


def text(
    value: str, *, finish: str | None = None, ids: list[int] | None = None, usage: object = None
) -> bytes:
    choice: dict[str, object] = {"index": 0, "text": value, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = ids
    return sse({"choices": [choice], "usage": usage})


def counts(completion_tokens: int, **more: object) -> dict[str, object]:
    return {"prompt_tokens": 5, "completion_tokens": completion_tokens, **more}


def usage_chunk(completion_tokens: int, **more: object) -> bytes:
    return sse({"choices": [], "usage": counts(completion_tokens, **more)})


def response(
    *reads: tuple[float, bytes], status: int | None = 200, transport_error: str | None = None
) -> RawResponse:
    """A response sent at 0 ms: (time in ms, bytes) per read."""
    return RawResponse(
        index=3,
        scheduled_perf_ns=-ms(1),
        sent_perf_ns=0,
        ended_perf_ns=ms(1000),
        http_status=status,
        reads=tuple(SocketRead(ms(at), data) for at, data in reads),
        transport_error=transport_error,
    )


def decode(*reads: tuple[float, bytes]) -> RequestRecord:
    return decode_response(response(*reads), is_warmup=False)


def tokens_at(record: RequestRecord) -> list[tuple[float, int]]:
    assert record.error is None, record.error
    return [(chunk.perf_ns / NS_PER_MS, chunk.num_tokens) for chunk in record.chunks]


def error_of(*reads: tuple[float, bytes]) -> str:
    record = decode(*reads)
    assert record.chunks == ()
    assert record.error is not None
    return record.error
