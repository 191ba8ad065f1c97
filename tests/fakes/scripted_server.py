"""A scripted OpenAI-compatible SSE server that logs the clock of its own writes: a run's truth.

It runs in a thread of the test's process, so client and truth share one monotonic clock.
"""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import TracebackType
from typing import Literal

Fault = Literal[
    "none",
    "role_early",  # an empty opening chunk 10 ms after the request
    "err200",  # after a quarter of the tokens an error event in the HTTP 200 stream, then [DONE]
    "trunc",  # after a quarter of the tokens a clean end of the body, nothing else
    "reset",  # after a quarter of the tokens a TCP reset
    "http429",  # every fourth request refused
    "nospace",  # `data:{` without the space
    "comment",  # four comments before the first token, each a write of its own
    "empty_token",  # every second token has no text
    "split",  # each event cut in the middle, in two writes
    "coalesce",  # ten events held back, then written together
    "empty_choices",  # an opening chunk with `choices: []`
    "usage_null",  # `usage: null` in every token chunk
    "cont_usage",  # cumulative usage in every token chunk
    "usage_in_last",  # usage in the last token's chunk
    "nodone",  # no [DONE]
    "stall",  # silence after a quarter of the tokens
    "short",  # one token fewer than asked for
    "cached",  # usage says that 16 prompt tokens came from a cache
]


@dataclass(frozen=True)
class Script:
    """The schedule: the first chunk ttft_s after the request, then one every itl_s x tokens."""

    fault: Fault = "none"
    ttft_s: float = 0.05
    itl_s: float = 0.002
    tokens_per_chunk: int = 1
    sends_token_ids: bool = False


@dataclass
class RequestTruth:
    """What the server saw and did for one request."""

    body: dict[str, object]
    received_perf_ns: int
    token_write_perf_ns: list[int] = field(default_factory=list)


@dataclass
class ServerLog:
    """Everything that happened since the server started."""

    requests: list[RequestTruth] = field(default_factory=list)
    num_connections: int = 0
    in_flight: int = 0
    max_in_flight: int = 0

    def truth_by_first_token(self) -> dict[object, RequestTruth]:
        """Return the requests by the first token id of their prompt, which tests make unique."""
        truths = {}
        for request in self.requests:
            prompt = request.body["prompt"]
            if isinstance(prompt, list):
                truths[prompt[0]] = request
        return truths


class _ConnectionDroppedError(Exception):
    """The script cut the connection: nothing more may be written."""


class ScriptedServer:
    """Context manager: listens on a free port of 127.0.0.1 while it is entered."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.log = ServerLog()
        self.base_url = ""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._is_listening = threading.Event()
        self._thread = threading.Thread(target=self._serve_in_thread, daemon=True)

    def __enter__(self) -> "ScriptedServer":
        """Start the thread and return once the port is open."""
        self._thread.start()
        if not self._is_listening.wait(timeout=10):
            raise RuntimeError("scripted server: expected to listen within 10 s")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the thread; open connections are closed."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=10)

    def _serve_in_thread(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        handlers: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                handlers.add(task)
                task.add_done_callback(handlers.discard)
            await self._handle_connection(reader, writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=1024)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._is_listening.set()
        await self._stop.wait()
        server.close()
        for task in tuple(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    async def _handle_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.log.num_connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, _ConnectionDroppedError):
                while True:
                    await self._handle_request(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    async def _handle_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        received_perf_ns = perf_counter_ns()
        request_line, *header_lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in header_lines if line)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if request_line.startswith("GET"):
            _write_plain(writer, "200 OK", {})
            return
        truth = RequestTruth(body=json.loads(body), received_perf_ns=received_perf_ns)
        self.log.requests.append(truth)
        self.log.in_flight += 1
        self.log.max_in_flight = max(self.log.max_in_flight, self.log.in_flight)
        try:
            if self.script.fault == "http429" and len(self.log.requests) % 4 == 0:
                await asyncio.sleep(self.script.ttft_s)
                error = {"message": "rate limited", "code": 429}
                _write_plain(writer, "429 Too Many Requests", {"error": error})
            else:
                await _Response(self.script, truth, writer).stream()
        finally:
            self.log.in_flight -= 1


class _Response:
    """One streamed completion, with the script's fault."""

    def __init__(self, script: Script, truth: RequestTruth, writer: asyncio.StreamWriter) -> None:
        self.script = script
        self.truth = truth
        self.writer = writer
        max_tokens, prompt = truth.body["max_tokens"], truth.body["prompt"]
        if not isinstance(max_tokens, int) or not isinstance(prompt, list):
            raise TypeError("scripted server: expected max_tokens and a list of token ids")
        self.num_tokens = max_tokens - 1 if script.fault == "short" else max_tokens
        self.isl_tokens = len(prompt)
        self.held_back = b""

    async def stream(self) -> None:
        self.writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        await self._write_opening()
        async for num_sent, num_new in self._due_chunks():
            if await self._has_cut_off(num_sent):
                break
            await self._write_tokens(num_sent, num_new)
        else:
            self._write_ending()
        self._write(b"", is_last=True)

    async def _due_chunks(self) -> AsyncIterator[tuple[int, int]]:
        """Yield (tokens sent before, tokens now) at each chunk's time."""
        num_sent = 0
        while num_sent < self.num_tokens:
            await self._sleep_until(self.script.ttft_s + num_sent * self.script.itl_s)
            num_new = min(self.script.tokens_per_chunk, self.num_tokens - num_sent)
            yield num_sent, num_new
            num_sent += num_new

    async def _write_opening(self) -> None:
        fault = self.script.fault
        if fault == "role_early":
            await self._sleep_until(0.010)
            self._write_event(self._choices("", []))
        elif fault == "empty_choices":
            self._write_event({"choices": [], "prompt_filter_results": []})
        elif fault == "comment":
            for number in range(1, 5):
                await self._sleep_until(0.010 * number)
                self._write(b": keep-alive\n\n")

    async def _has_cut_off(self, num_sent: int) -> bool:
        """Do what the fault does after a quarter of the tokens; return whether the stream ends."""
        if num_sent < self.num_tokens // 4:
            return False
        fault = self.script.fault
        if fault == "err200":
            self._write_event({"error": {"message": "CUDA out of memory", "code": 500}})
            self._write(b"data: [DONE]\n\n")
        elif fault == "reset":
            self._reset()
        elif fault == "stall":
            await asyncio.sleep(3600)
        return fault in ("err200", "trunc")

    def _reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        raise _ConnectionDroppedError

    async def _write_tokens(self, num_sent: int, num_new: int) -> None:
        fault, total = self.script.fault, num_sent + num_new
        is_last = total == self.num_tokens
        text = "" if fault == "empty_token" and num_sent % 2 else " word" * num_new
        payload = self._choices(
            text, list(range(num_sent, total)), finish_reason="length" if is_last else None
        )
        if fault == "cont_usage" or (fault == "usage_in_last" and is_last):
            payload["usage"] = self._usage(total)
        elif fault == "usage_null":
            payload["usage"] = None
        event = self._encode(payload)
        self.truth.token_write_perf_ns.append(perf_counter_ns())
        if fault == "split":
            self._write(event[: len(event) // 2])
            await asyncio.sleep(0.0004)
            self.truth.token_write_perf_ns[-1] = perf_counter_ns()
            self._write(event[len(event) // 2 :])
        elif fault == "coalesce":
            self.held_back += event
            if total % 10 == 0 or is_last:
                self._write(self.held_back)
                self.held_back = b""
        else:
            self._write(event)

    def _write_ending(self) -> None:
        if self.script.fault != "usage_in_last":
            self._write_event({"choices": [], "usage": self._usage(self.num_tokens)})
        if self.script.fault != "nodone":
            self._write(b"data: [DONE]\n\n")

    def _choices(
        self, text: str, token_ids: list[int], *, finish_reason: str | None = None
    ) -> dict[str, object]:
        choice: dict[str, object] = {"index": 0, "text": text, "finish_reason": finish_reason}
        if self.script.sends_token_ids and self.truth.body.get("return_token_ids"):
            choice["token_ids"] = token_ids
        return {"object": "text_completion", "choices": [choice]}

    def _usage(self, num_tokens: int) -> dict[str, object]:
        cached = 16 if self.script.fault == "cached" else 0
        return {
            "prompt_tokens": self.isl_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": self.isl_tokens + num_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _encode(self, payload: dict[str, object]) -> bytes:
        space = "" if self.script.fault == "nospace" else " "
        return f"data:{space}{json.dumps(payload)}\n\n".encode()

    def _write_event(self, payload: dict[str, object]) -> None:
        self._write(self._encode(payload))

    def _write(self, data: bytes, *, is_last: bool = False) -> None:
        """Write one chunk of the chunked body."""
        if is_last or data:
            self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def _sleep_until(self, offset_s: float) -> None:
        elapsed_s = (perf_counter_ns() - self.truth.received_perf_ns) / 1e9
        await asyncio.sleep(max(0.0, offset_s - elapsed_s))


def _write_plain(writer: asyncio.StreamWriter, status: str, payload: dict[str, object]) -> None:
    body = json.dumps(payload).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
