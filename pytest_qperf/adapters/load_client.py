"""The load client: sends a workload over HTTP and keeps the clock of every read.

What costs time is done before or after the run: bodies are serialised and connections opened before
the clock, the garbage collector rests during the run, and all parsing comes after it.
"""

import asyncio
import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Protocol

import aiohttp

from pytest_qperf.core.arrivals import ArrivalPlan, arrival_plan, is_warmup
from pytest_qperf.core.artifacts import RunningEngine
from pytest_qperf.core.decode import decode_response
from pytest_qperf.core.errors import LoadError
from pytest_qperf.core.metrics import NS_PER_S, quantile
from pytest_qperf.core.recipe import WorkloadRecipe
from pytest_qperf.core.records import (
    ClientHealth,
    RawResponse,
    RequestRecord,
    RunRecord,
    SocketRead,
)

CONNECT_TIMEOUT_S = 30.0
KEEPALIVE_S = 3600.0
LAG_PROBE_PERIOD_S = 0.010
PROGRESS_PERIOD_S = 0.5

Prompts = tuple[tuple[int, ...], ...]


class ProgressSink(Protocol):
    """Where live progress goes."""

    def update(self, text: str) -> None:
        """Show what is happening now."""


class AiohttpLoadClient:
    """Sends workloads to an OpenAI-compatible ``/v1/completions`` endpoint.

    ``return_token_ids`` asks the server to stream token ids, which attributes tokens to chunks
    exactly; switch it off for a server that refuses the field.
    """

    def __init__(self, *, return_token_ids: bool = True) -> None:
        self._return_token_ids = return_token_ids

    def run(
        self,
        engine: RunningEngine,
        workload: WorkloadRecipe,
        prompts: Prompts,
        *,
        progress: ProgressSink,
    ) -> RunRecord:
        """Send every prompt once and return all requests in order, failed ones with their error.

        prompts: num_requests lists of isl_tokens token ids.
        Raises LoadError if the prompts do not fit the workload or no connection can be opened.
        """
        _check_prompts(prompts, workload)
        bodies = [self._body(engine.served_model, p, workload.osl_tokens) for p in prompts]
        sender = _Sender(
            base_url=engine.base_url.rstrip("/"),
            bodies=bodies,
            plan=arrival_plan(workload),
            read_timeout_s=workload.read_timeout_s,
        )
        started_at = datetime.now(UTC)
        asyncio.run(sender.send_all(progress))
        exchanges = sorted(sender.exchanges, key=lambda exchange: exchange.index)
        return RunRecord(
            started_at=started_at,
            duration_s=sender.duration_s,
            requests=tuple(
                decode_response(
                    exchange.raw_response(),
                    is_warmup=is_warmup(exchange.index, concurrency=workload.concurrency),
                )
                for exchange in exchanges
            ),
            client_health=_client_health(exchanges, sender.event_loop_lags_s),
        )

    def complete_once(
        self,
        base_url: str,
        *,
        model: str,
        prompt: Sequence[int],
        max_tokens: int,
        read_timeout_s: float = 120.0,
    ) -> RequestRecord:
        """Send one request for exactly max_tokens tokens and return it decoded, as warm-up.

        A failure of any kind, a refused connection included, is the record's ``error``.
        """
        sender = _Sender(
            base_url=base_url.rstrip("/"),
            bodies=[self._body(model, prompt, max_tokens)],
            plan=ArrivalPlan(waves=(range(1),), num_slots=1),
            read_timeout_s=read_timeout_s,
        )
        exchange = asyncio.run(sender.send_first())
        return decode_response(exchange.raw_response(), is_warmup=True)

    def _body(self, model: str, prompt: Sequence[int], max_tokens: int) -> bytes:
        body: dict[str, object] = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "min_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self._return_token_ids:
            body["return_token_ids"] = True
        return json.dumps(body, separators=(",", ":")).encode()


@dataclass(slots=True)
class _Exchange:
    """One request as it is being sent; plain tuples, because this is filled during the run.

    ``sent_perf_ns`` is the start of the call until the body is written, then the clock just before
    that write: in a burst the calls of all slots come first, which takes a millisecond or more.
    """

    index: int
    scheduled_perf_ns: int
    sent_perf_ns: int
    is_written: bool = False
    ended_perf_ns: int = 0
    http_status: int | None = None
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    transport_error: str | None = None

    def raw_response(self) -> RawResponse:
        """Return the finished exchange as the record the decoder reads."""
        return RawResponse(
            index=self.index,
            scheduled_perf_ns=self.scheduled_perf_ns,
            sent_perf_ns=self.sent_perf_ns,
            ended_perf_ns=self.ended_perf_ns,
            http_status=self.http_status,
            reads=tuple(SocketRead(perf_ns, data) for perf_ns, data in self.reads),
            transport_error=self.transport_error,
        )


class _Sender:
    """One run: what is sent, and what came back."""

    def __init__(
        self, *, base_url: str, bodies: list[bytes], plan: ArrivalPlan, read_timeout_s: float
    ) -> None:
        self.exchanges: list[_Exchange] = []
        self.event_loop_lags_s: list[float] = []
        self.duration_s = 0.0
        self._base_url = base_url
        self._url = f"{base_url}/v1/completions"
        self._bodies = bodies
        self._plan = plan
        self._read_timeout_s = read_timeout_s
        self._is_done = False

    async def send_all(self, progress: ProgressSink) -> None:
        """Open the connections, then send every wave; fills ``exchanges`` and the lags."""
        async with self._session() as session:
            await self._open_connections(session)
            with _garbage_collector_resting():
                started_perf_ns = perf_counter_ns()
                async with asyncio.TaskGroup() as watch:
                    watch.create_task(self._watch_event_loop(progress))
                    await self._send_waves(session)
                    self.duration_s = (perf_counter_ns() - started_perf_ns) / NS_PER_S
                    self._is_done = True

    async def send_first(self) -> _Exchange:
        """Send the first body on a new connection."""
        async with self._session() as session:
            return await self._send(session, 0, perf_counter_ns())

    def _session(self) -> aiohttp.ClientSession:
        """Return a session that ignores proxies and cookies and never closes an idle connection."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._plan.num_slots, keepalive_timeout=KEEPALIVE_S
            ),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=self._read_timeout_s
            ),
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[_send_stamps()],
            auto_decompress=False,
            trust_env=False,
        )

    async def _open_connections(self, session: aiohttp.ClientSession) -> None:
        """Open one connection for each slot; any HTTP answer proves a connection."""

        async def get() -> None:
            async with session.get(f"{self._base_url}/health") as response:
                await response.read()

        slots = self._plan.num_slots
        results = await asyncio.gather(*(get() for _ in range(slots)), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise LoadError(
                f"{self._base_url}: expected {slots} connections, {len(failures)} failed with "
                f"{_describe(failures[0])}; check that the server runs and is reachable"
            ) from failures[0]

    async def _send_waves(self, session: aiohttp.ClientSession) -> None:
        for wave in self._plan.waves:
            queue = iter(wave)
            scheduled_perf_ns = perf_counter_ns()
            async with asyncio.TaskGroup() as slots:
                for _ in range(self._plan.num_slots):
                    slots.create_task(self._work(session, queue, scheduled_perf_ns))

    async def _work(
        self, session: aiohttp.ClientSession, queue: Iterator[int], scheduled_perf_ns: int
    ) -> None:
        """Send requests from the shared queue; each is due when this slot's previous one ended."""
        for index in queue:
            exchange = await self._send(session, index, scheduled_perf_ns)
            self.exchanges.append(exchange)
            scheduled_perf_ns = exchange.ended_perf_ns

    async def _send(
        self, session: aiohttp.ClientSession, index: int, scheduled_perf_ns: int
    ) -> _Exchange:
        exchange = _Exchange(
            index=index, scheduled_perf_ns=scheduled_perf_ns, sent_perf_ns=perf_counter_ns()
        )
        reads = exchange.reads
        try:
            async with session.post(
                self._url,
                data=self._bodies[index],
                allow_redirects=False,
                trace_request_ctx=exchange,
            ) as response:
                exchange.http_status = response.status
                while data := await response.content.readany():
                    reads.append((perf_counter_ns(), data))
        except aiohttp.SocketTimeoutError:
            exchange.transport_error = f"no bytes for {self._read_timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            exchange.transport_error = f"connection failed: {_describe(error)}"
        exchange.ended_perf_ns = perf_counter_ns()
        return exchange

    async def _watch_event_loop(self, progress: ProgressSink) -> None:
        """Record how late the event loop wakes a sleeper, and show progress now and then."""
        period_ns = int(LAG_PROBE_PERIOD_S * NS_PER_S)
        woken_perf_ns = shown_perf_ns = perf_counter_ns()
        while not self._is_done:
            # Due from the last wake-up, so that a slow progress sink counts as lag too.
            due_perf_ns = woken_perf_ns + period_ns
            await asyncio.sleep(LAG_PROBE_PERIOD_S)
            woken_perf_ns = perf_counter_ns()
            self.event_loop_lags_s.append(max(0, woken_perf_ns - due_perf_ns) / NS_PER_S)
            if woken_perf_ns - shown_perf_ns > PROGRESS_PERIOD_S * NS_PER_S:
                shown_perf_ns = woken_perf_ns
                progress.update(f"{len(self.exchanges)} of {len(self._bodies)} requests")


def _send_stamps() -> aiohttp.TraceConfig:
    """Return a trace that stamps an exchange right before its headers and body are written."""

    async def stamp(
        session: aiohttp.ClientSession,
        context: SimpleNamespace,
        params: aiohttp.TraceRequestChunkSentParams,
    ) -> None:
        exchange = context.trace_request_ctx
        if isinstance(exchange, _Exchange) and not exchange.is_written:
            exchange.sent_perf_ns = perf_counter_ns()
            exchange.is_written = True

    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(stamp)
    return trace


@contextmanager
def _garbage_collector_resting() -> Iterator[None]:
    """Keep the garbage collector from stopping the client in the middle of a run."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _client_health(exchanges: list[_Exchange], lags_s: list[float]) -> ClientHealth:
    send_lags_ns = [exchange.sent_perf_ns - exchange.scheduled_perf_ns for exchange in exchanges]
    return ClientHealth(
        event_loop_lag_p99_s=quantile(lags_s, 0.99),
        event_loop_lag_max_s=max(lags_s),
        send_lag_max_s=max(send_lags_ns) / NS_PER_S,
    )


def _check_prompts(prompts: Prompts, workload: WorkloadRecipe) -> None:
    if len(prompts) != workload.num_requests:
        raise LoadError(
            f"prompts: expected {workload.num_requests} (num_requests), got {len(prompts)}; "
            f"give one for each request"
        )
    for index, prompt in enumerate(prompts):
        if len(prompt) != workload.isl_tokens:
            raise LoadError(
                f"prompts[{index}]: expected {workload.isl_tokens} token ids (isl_tokens), "
                f"got {len(prompt)}; every prompt must have the workload's length"
            )


def _describe(error: BaseException) -> str:
    """Return one line: some network errors have no text of their own."""
    return f"{type(error).__name__}: {error}".rstrip(": ").replace("\n", " ")
