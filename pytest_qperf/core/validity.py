"""Why a run does not count: every reason, each with how many requests it concerns."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pytest_qperf.core.arrivals import arrival_plan
from pytest_qperf.core.recipe import WorkloadRecipe
from pytest_qperf.core.records import ClientHealth, RequestRecord, RunRecord

NS_PER_S = 1_000_000_000

# Both limits are far above what a sound client shows (under 1 ms) and far below what would be
# mistaken for the server's time: they catch a starved client, and leave room for a two-core machine
# that also runs the engine.
MAX_EVENT_LOOP_LAG_P99_S = 0.050
MAX_SEND_LAG_S = 0.100
# Above half of the tokens, something between server and client holds chunks back; a few coalesced
# reads are only a client that woke up late.
MAX_COALESCED_TOKENS_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class _Fault:
    """What is wrong with one request; faults of equal ``kind`` are counted together."""

    kind: str
    detail: str


RequestCheck = Callable[[RequestRecord, WorkloadRecipe], _Fault | None]


def run_problems(run: RunRecord, workload: WorkloadRecipe) -> tuple[str, ...]:
    """Return every reason why the run is INVALID, one line each; empty for a valid run.

    A failed request is reported by its error alone: its other defects follow from it. Warm-up
    requests must be as complete as measured ones.
    """
    problems: list[str] = []
    if len(run.requests) != workload.num_requests:
        problems.append(
            f"run: expected {workload.num_requests} requests (num_requests), "
            f"got {len(run.requests)}"
        )
    problems.extend(_request_problems(run.requests, workload))
    problems.extend(_in_flight_problems(run.requests, workload))
    problems.extend(_client_problems(run.client_health))
    problems.extend(_coalescing_problems(run.requests))
    return tuple(problems)


def peak_in_flight(requests: Iterable[RequestRecord]) -> int:
    """Return the largest number of requests between their send and their end at one moment."""
    steps = [(request.sent_perf_ns, 1) for request in requests]
    steps += [(request.ended_perf_ns, -1) for request in requests]
    peak = current = 0
    for _, step in sorted(steps):
        current += step
        peak = max(peak, current)
    return peak


def _request_problems(
    requests: tuple[RequestRecord, ...], workload: WorkloadRecipe
) -> Iterator[str]:
    counts: dict[str, int] = {}
    firsts: dict[str, str] = {}
    for request in requests:
        for fault in _request_faults(request, workload):
            counts[fault.kind] = counts.get(fault.kind, 0) + 1
            firsts.setdefault(fault.kind, f"request {request.index}: {fault.detail}")
    for kind, count in counts.items():
        yield f"{count} of {len(requests)} requests: {kind} (first: {firsts[kind]})"


def _request_faults(request: RequestRecord, workload: WorkloadRecipe) -> Iterator[_Fault]:
    if request.error is not None:
        kind, _, detail = request.error.partition(": ")
        yield _Fault(kind, detail or kind)
        return
    for check in _CHECKS:
        fault = check(request, workload)
        if fault is not None:
            yield fault


def _status(request: RequestRecord, _: WorkloadRecipe) -> _Fault | None:
    if request.http_status == 200:
        return None
    return _Fault("HTTP status", f"expected 200, got {request.http_status}")


def _finish_reason(request: RequestRecord, _: WorkloadRecipe) -> _Fault | None:
    if request.finish_reason == "length":
        return None
    return _Fault("finish_reason", f"expected 'length', got {request.finish_reason!r}")


def _isl(request: RequestRecord, workload: WorkloadRecipe) -> _Fault | None:
    if request.isl_tokens == workload.isl_tokens:
        return None
    return _Fault(
        "input length", f"expected {workload.isl_tokens} tokens, got {request.isl_tokens}"
    )


def _osl(request: RequestRecord, workload: WorkloadRecipe) -> _Fault | None:
    if request.osl_tokens == workload.osl_tokens:
        return None
    return _Fault(
        "output length", f"expected {workload.osl_tokens} tokens, got {request.osl_tokens}"
    )


def _streamed_tokens(request: RequestRecord, workload: WorkloadRecipe) -> _Fault | None:
    streamed = sum(chunk.num_tokens for chunk in request.chunks)
    if streamed == workload.osl_tokens:
        return None
    return _Fault("streamed tokens", f"expected {workload.osl_tokens} in chunks, got {streamed}")


def _cached(request: RequestRecord, _: WorkloadRecipe) -> _Fault | None:
    if request.cached_tokens in (None, 0):
        return None
    return _Fault(
        "cached tokens",
        f"expected 0, got {request.cached_tokens}; switch the server's prefix cache off",
    )


def _two_chunks(request: RequestRecord, _: WorkloadRecipe) -> _Fault | None:
    if len(request.chunks) >= 2:
        return None
    return _Fault("too few chunks", f"expected 2 or more, got {len(request.chunks)}")


def _times_increase(request: RequestRecord, _: WorkloadRecipe) -> _Fault | None:
    """Chunks of one read share its time; over the whole stream time must pass."""
    times = [chunk.perf_ns for chunk in request.chunks]
    if len(times) < 2 or (times == sorted(times) and times[-1] > times[0]):
        return None
    return _Fault(
        "chunk times", f"expected increasing times, got {times[0]} first and {times[-1]} last (ns)"
    )


def _ttft(request: RequestRecord, _: WorkloadRecipe) -> _Fault | None:
    if not request.chunks or request.chunks[0].perf_ns > request.sent_perf_ns:
        return None
    ttft_s = (request.chunks[0].perf_ns - request.sent_perf_ns) / NS_PER_S
    return _Fault("TTFT", f"expected > 0 s, got {ttft_s} s")


_CHECKS: tuple[RequestCheck, ...] = (
    _status,
    _finish_reason,
    _isl,
    _osl,
    _streamed_tokens,
    _cached,
    _two_chunks,
    _times_increase,
    _ttft,
)


def _in_flight_problems(
    requests: tuple[RequestRecord, ...], workload: WorkloadRecipe
) -> Iterator[str]:
    expected = workload.concurrency
    by_index = {request.index: request for request in requests}
    for number, wave in enumerate(arrival_plan(workload).waves):
        peak = peak_in_flight([by_index[index] for index in wave if index in by_index])
        if peak != expected:
            where = f"wave {number}" if workload.arrival == "burst" else "run"
            yield f"{where}: expected {expected} requests in flight at the peak, got {peak}"
    peak = peak_in_flight(requests)
    if workload.arrival == "burst" and peak > expected:
        yield f"run: expected at most {expected} requests in flight, got {peak}; waves overlap"


def _client_problems(health: ClientHealth) -> Iterator[str]:
    advice = "this host is too busy to measure; free CPU cores for the client"
    if not health.event_loop_lag_p99_s <= MAX_EVENT_LOOP_LAG_P99_S:
        yield (
            f"client: expected an event-loop lag p99 of at most {MAX_EVENT_LOOP_LAG_P99_S} s, "
            f"got {health.event_loop_lag_p99_s:.4f} s; {advice}"
        )
    if not health.send_lag_max_s <= MAX_SEND_LAG_S:
        yield (
            f"client: expected a send lag of at most {MAX_SEND_LAG_S} s, "
            f"got {health.send_lag_max_s:.4f} s; {advice}"
        )


def _coalescing_problems(requests: tuple[RequestRecord, ...]) -> Iterator[str]:
    num_tokens = num_coalesced = num_chunks = num_reads = 0
    for request in requests:
        tokens_by_read: dict[int, list[int]] = {}
        for chunk in request.chunks:
            tokens_by_read.setdefault(chunk.perf_ns, []).append(chunk.num_tokens)
        for tokens in tokens_by_read.values():
            num_reads += 1
            num_chunks += len(tokens)
            num_tokens += sum(tokens)
            num_coalesced += sum(tokens) if len(tokens) > 1 else 0
    if num_tokens and num_coalesced / num_tokens > MAX_COALESCED_TOKENS_RATIO:
        yield (
            f"coalesced reads: {num_chunks / num_reads:.1f} chunks a read, "
            f"{num_coalesced} of {num_tokens} tokens shared a read with another chunk; "
            f"take the buffering proxy out of the way, or free CPU cores for the client"
        )
