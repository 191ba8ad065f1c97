"""The HTTP side: `/v1/completions`, `/v1/models`, `/health`, `/version`.

One write a token, so that a client's clock sees each one. A client that goes away cancels its
request. When the engine fails, every request gets an error and the server ends.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from aiohttp import web

from pytest_qperf import __version__
from pytest_qperf.checkpoint.tokenizer_file import StreamDecoder
from pytest_qperf.core.errors import EngineError
from pytest_qperf.embedded.api import (
    ApiError,
    CompletionBody,
    ServedModel,
    choice,
    completion,
    error_body,
    usage,
)
from pytest_qperf.embedded.engine_loop import EngineLoop
from pytest_qperf.embedded.scheduler import FinishReason, GenerationRequest, Scheduler, TokenEvent

_CLOSING_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where to listen and what `/version` confirms."""

    host: str
    port: int
    linear_backend: str
    num_threads: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one token adds to an answer."""

    text: str
    token_id: int
    finish_reason: FinishReason | None


class CompletionServer:
    """Answers requests with what the engine's thread generates."""

    def __init__(
        self, served: ServedModel, scheduler: Scheduler, *, settings: ServerSettings
    ) -> None:
        self._served = served
        self._settings = settings
        self._request_numbers = count()
        self._streams: dict[str, asyncio.Queue[TokenEvent | ApiError]] = {}
        self._event_loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[BaseException] = self._event_loop.create_future()
        self._engine = EngineLoop(
            scheduler, on_tokens=self._tokens_from_engine, on_failure=self._failure_from_engine
        )

    async def serve(self) -> None:
        """Serve until the engine fails; raise EngineError then, or if the port is taken."""
        runner = web.AppRunner(
            self._application(),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=_CLOSING_TIMEOUT_S,
        )
        await runner.setup()
        try:
            await self._listen(runner)
            self._engine.start()
            sys.stderr.write(f"embedded engine: serving {self._served.name}, {self._settings}\n")
            failure = await self._failure
        finally:
            await runner.cleanup()
        raise EngineError(f"engine: failed while generating: {failure!r}") from failure

    async def _listen(self, runner: web.AppRunner) -> None:
        host, port = self._settings.host, self._settings.port
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise EngineError(
                f"{host}:{port}: expected a free port, got {error.strerror}; choose another --port"
            ) from error

    def _application(self) -> web.Application:
        application = web.Application()
        application.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/version", self._version),
            ]
        )
        return application

    def _tokens_from_engine(self, events: list[TokenEvent]) -> None:
        self._event_loop.call_soon_threadsafe(self._dispatch, events)

    def _failure_from_engine(self, failure: BaseException) -> None:
        self._event_loop.call_soon_threadsafe(self._fail, failure)

    def _dispatch(self, events: list[TokenEvent]) -> None:
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is not None:  # else its client went away a moment ago
                stream.put_nowait(event)

    def _fail(self, failure: BaseException) -> None:
        for stream in self._streams.values():
            stream.put_nowait(ApiError(500, f"engine: {failure!r}"))
        self._failure.set_result(failure)

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _version(self, _: web.Request) -> web.Response:
        settings = self._settings
        content = {
            "version": __version__,
            "linear_backend": settings.linear_backend,
            "num_threads": settings.num_threads,
        }
        return web.json_response(content)

    async def _models(self, _: web.Request) -> web.Response:
        model = {
            "id": self._served.name,
            "object": "model",
            "owned_by": "pytest-qperf",
            "max_model_len": self._served.shape.max_position_embeddings,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _completions(self, http_request: web.Request) -> web.StreamResponse:
        request_id = f"cmpl-{next(self._request_numbers)}"
        try:
            body = self._served.parse(await http_request.read())
            request = self._served.generation_request(request_id, body)
        except ApiError as error:
            return web.json_response(error.body(), status=error.status)
        if self._failure.done():
            return web.json_response(error_body(500, "engine: has failed"), status=500)
        self._streams[request_id] = asyncio.Queue()
        self._engine.submit(request)
        try:
            if body.stream:
                return await self._answer_in_chunks(http_request, body, request)
            return await self._answer_at_once(body, request)
        finally:
            del self._streams[request_id]
            self._engine.cancel(request_id)

    async def _pieces(self, request_id: str) -> AsyncIterator[_Piece]:
        """Give a request's tokens; raise ApiError if the engine fails meanwhile."""
        decoder = StreamDecoder(self._served.tokenizer)
        while True:
            event = await self._streams[request_id].get()
            if isinstance(event, ApiError):
                raise event
            # As elsewhere, a token that ends the answer is counted and has no text.
            text = "" if event.finish_reason == "stop" else decoder.feed(event.token_id)
            if event.finish_reason is not None:
                text += decoder.finish()
            yield _Piece(text, event.token_id, event.finish_reason)
            if event.finish_reason is not None:
                return

    async def _answer_at_once(
        self, body: CompletionBody, request: GenerationRequest
    ) -> web.Response:
        try:
            pieces = [piece async for piece in self._pieces(request.request_id)]
        except ApiError as error:
            return web.json_response(error.body(), status=error.status)
        only_choice = choice(
            "".join(piece.text for piece in pieces),
            finish_reason=pieces[-1].finish_reason,
            token_ids=[piece.token_id for piece in pieces] if body.return_token_ids else None,
        )
        counts = usage(len(request.prompt_ids), len(pieces))
        return web.json_response(
            completion(request.request_id, self._served.name, choices=[only_choice], counts=counts)
        )

    async def _answer_in_chunks(
        self, http_request: web.Request, body: CompletionBody, request: GenerationRequest
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(http_request)
        try:
            async for data in self._chunks(body, request):
                await response.write(data)
        except ApiError as error:
            await response.write(_event(error.body()))
        await response.write_eof()
        return response

    async def _chunks(
        self, body: CompletionBody, request: GenerationRequest
    ) -> AsyncIterator[bytes]:
        """Give the events of a stream: one a token, the usage if asked for, the end mark."""
        options = body.stream_options
        in_every_chunk = options is not None and options.continuous_usage_stats
        request_id, name, num_tokens = request.request_id, self._served.name, 0
        async for piece in self._pieces(request_id):
            num_tokens += 1
            token_ids = [piece.token_id] if body.return_token_ids else None
            only_choice = choice(piece.text, finish_reason=piece.finish_reason, token_ids=token_ids)
            counts = usage(len(request.prompt_ids), num_tokens) if in_every_chunk else None
            yield _event(completion(request_id, name, choices=[only_choice], counts=counts))
        if options is not None and options.include_usage:
            counts = usage(len(request.prompt_ids), num_tokens)
            yield _event(completion(request_id, name, choices=[], counts=counts))
        yield b"data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
