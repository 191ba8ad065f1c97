from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

import pytest

from pytest_qperf.core.recipe import RandomTokenPrompts, WorkloadRecipe
from pytest_qperf.core.records import ClientHealth, RequestRecord, RunRecord, TokenChunk
from pytest_qperf.core.validity import peak_in_flight, run_problems

MS = 1_000_000
HEALTHY = ClientHealth(event_loop_lag_p99_s=0.001, event_loop_lag_max_s=0.002, send_lag_max_s=0.003)


def make_workload(arrival: Literal["burst", "closed"] = "burst") -> WorkloadRecipe:
    return WorkloadRecipe(
        description="test",
        isl_tokens=8,
        osl_tokens=3,
        concurrency=2,
        num_requests=4,
        arrival=arrival,
        prompts=RandomTokenPrompts(source="random_tokens", min_token_id=0, max_token_id=99),
        seed=0,
    )


def make_request(index: int) -> RequestRecord:
    """Wave n runs from n x 100 ms: TTFT 20 ms, three tokens 10 ms apart, end at 50 ms."""
    start_ns = (index // 2) * 100 * MS
    return RequestRecord(
        index=index,
        is_warmup=index < 2,
        scheduled_perf_ns=start_ns,
        sent_perf_ns=start_ns + index,
        ended_perf_ns=start_ns + 50 * MS,
        http_status=200,
        isl_tokens=8,
        osl_tokens=3,
        cached_tokens=0,
        finish_reason="length",
        chunks=tuple(TokenChunk(start_ns + at * MS, 1) for at in (20, 30, 40)),
        error=None,
    )


def make_run(
    *changed: RequestRecord, health: ClientHealth = HEALTHY, num_requests: int = 4
) -> RunRecord:
    requests = {index: make_request(index) for index in range(num_requests)}
    requests.update({request.index: request for request in changed})
    return RunRecord(
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration_s=0.15,
        requests=tuple(requests.values()),
        client_health=health,
    )


def problems_of(*changed: RequestRecord) -> list[str]:
    return list(run_problems(make_run(*changed), make_workload()))


def test_a_complete_run_has_no_problems() -> None:
    assert run_problems(make_run(), make_workload("burst")) == ()
    assert run_problems(make_run(), make_workload("closed")) == ()


def test_cached_tokens_that_the_server_does_not_report_are_no_problem() -> None:
    assert problems_of(replace(make_request(2), cached_tokens=None)) == []


def test_a_missing_request_is_a_problem() -> None:
    run = make_run(num_requests=3)
    assert run_problems(run, make_workload()) == (
        "run: expected 4 requests (num_requests), got 3",
        "wave 1: expected 2 requests in flight at the peak, got 1",
    )


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (replace(make_request(2), http_status=204), "HTTP status (first: request 2: expected 200"),
        (
            replace(make_request(2), finish_reason="stop"),
            "finish_reason (first: request 2: expected 'length', got 'stop')",
        ),
        (
            replace(make_request(2), isl_tokens=7),
            "input length (first: request 2: expected 8 tokens, got 7)",
        ),
        (
            replace(make_request(2), isl_tokens=None),
            "input length (first: request 2: expected 8 tokens, got None)",
        ),
        (
            replace(make_request(2), osl_tokens=2),
            "output length (first: request 2: expected 3 tokens, got 2)",
        ),
        (
            replace(make_request(2), chunks=make_request(2).chunks[:2]),
            "streamed tokens (first: request 2: expected 3 in chunks, got 2)",
        ),
        (
            replace(make_request(2), cached_tokens=16),
            "cached tokens (first: request 2: expected 0, got 16; "
            "switch the server's prefix cache off)",
        ),
        (
            replace(make_request(2), chunks=(TokenChunk(120 * MS, 3),)),
            "too few chunks (first: request 2: expected 2 or more, got 1)",
        ),
        (
            replace(make_request(2), chunks=(TokenChunk(130 * MS, 1), TokenChunk(120 * MS, 2))),
            "chunk times (first: request 2: expected increasing times, "
            "got 130000000 first and 120000000 last (ns))",
        ),
        (
            replace(make_request(2), sent_perf_ns=120 * MS),
            "TTFT (first: request 2: expected > 0 s, got 0.0 s)",
        ),
    ],
)
def test_each_defect_of_one_request_is_one_problem(changed: RequestRecord, problem: str) -> None:
    (found,) = problems_of(changed)
    assert found.startswith(f"1 of 4 requests: {problem}")


def test_chunks_that_all_came_in_one_read_give_no_rate() -> None:
    chunks = (TokenChunk(120 * MS, 1), TokenChunk(120 * MS, 2))
    (found,) = problems_of(replace(make_request(2), chunks=chunks))
    assert found.startswith("1 of 4 requests: chunk times")


def test_equal_errors_are_counted_together_with_the_first_example() -> None:
    broken = [
        replace(make_request(1), error="HTTP 429: rate limited", http_status=429, chunks=()),
        replace(make_request(2), error="no bytes for 2 s", chunks=()),
        replace(make_request(3), error="HTTP 429: slow down", http_status=429, chunks=()),
    ]
    assert problems_of(*broken) == [
        "2 of 4 requests: HTTP 429 (first: request 1: rate limited)",
        "1 of 4 requests: no bytes for 2 s (first: request 2: no bytes for 2 s)",
    ]


def test_every_reason_is_listed() -> None:
    found = problems_of(
        replace(make_request(0), isl_tokens=7, cached_tokens=3),
        replace(make_request(3), error="truncated stream: x", chunks=()),
    )
    assert [line.split(" (")[0] for line in found] == [
        "1 of 4 requests: input length",
        "1 of 4 requests: cached tokens",
        "1 of 4 requests: truncated stream",
    ]


def test_peak_in_flight_does_not_count_a_request_that_ends_when_the_next_is_sent() -> None:
    first, second = make_request(0), replace(make_request(1), sent_perf_ns=50 * MS)
    assert peak_in_flight([first, second]) == 1
    assert peak_in_flight([first, replace(second, sent_perf_ns=49 * MS)]) == 2
    assert peak_in_flight([]) == 0


def test_a_wave_that_never_had_all_requests_in_flight_is_a_problem() -> None:
    late = replace(make_request(3), sent_perf_ns=151 * MS, ended_perf_ns=200 * MS)
    late = replace(late, chunks=tuple(TokenChunk(at * MS, 1) for at in (170, 180, 190)))
    assert problems_of(late) == ["wave 1: expected 2 requests in flight at the peak, got 1"]


def test_waves_that_overlap_are_a_problem() -> None:
    assert problems_of(replace(make_request(0), ended_perf_ns=150 * MS)) == [
        "run: expected at most 2 requests in flight, got 3; waves overlap"
    ]


def test_more_requests_in_flight_than_asked_for_are_a_problem_in_a_closed_run() -> None:
    run = make_run(replace(make_request(0), ended_perf_ns=150 * MS))
    assert run_problems(run, make_workload("closed")) == (
        "run: expected 2 requests in flight at the peak, got 3",
    )


def test_a_starved_client_makes_the_run_invalid() -> None:
    starved = ClientHealth(
        event_loop_lag_p99_s=0.051, event_loop_lag_max_s=0.2, send_lag_max_s=0.101
    )
    lag, send = run_problems(make_run(health=starved), make_workload())
    assert lag.startswith("client: expected an event-loop lag p99 of at most 0.05 s, got 0.0510 s;")
    assert send.startswith("client: expected a send lag of at most 0.1 s, got 0.1010 s;")
    assert send.endswith("this host is too busy to measure; free CPU cores for the client")


def test_a_client_at_its_limits_is_healthy_and_one_without_figures_is_not() -> None:
    at_limit = ClientHealth(event_loop_lag_p99_s=0.05, event_loop_lag_max_s=9.0, send_lag_max_s=0.1)
    assert run_problems(make_run(health=at_limit), make_workload()) == ()
    unknown = replace(at_limit, event_loop_lag_p99_s=float("nan"))
    assert len(run_problems(make_run(health=unknown), make_workload())) == 1


def coalesced(index: int) -> RequestRecord:
    """Two of three tokens share the first read."""
    request = make_request(index)
    first, _, last = request.chunks
    return replace(request, chunks=(first, first, last))


def test_reads_that_hold_several_chunks_for_most_tokens_are_a_problem() -> None:
    (found,) = problems_of(*(coalesced(index) for index in range(4)))
    # 12 chunks in 8 reads; 2 of 3 tokens shared a read.
    assert found == (
        "coalesced reads: 1.5 chunks a read, 8 of 12 tokens shared a read with another chunk; "
        "take the buffering proxy out of the way, or free CPU cores for the client"
    )


def test_a_minority_of_coalesced_tokens_is_no_problem() -> None:
    # 6 of 12 tokens: not more than half.
    assert problems_of(*(coalesced(index) for index in range(3))) == []


def test_a_chunk_with_several_tokens_is_not_a_coalesced_read() -> None:
    bundled = [
        replace(
            make_request(index),
            chunks=(
                replace(make_request(index).chunks[0], num_tokens=2),
                make_request(index).chunks[2],
            ),
        )
        for index in range(4)
    ]
    assert problems_of(*bundled) == []
