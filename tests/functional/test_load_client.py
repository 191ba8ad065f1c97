import gc
import signal
import socket
import statistics
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import aiohttp
import pytest
from fakes.scripted_server import Fault, RequestTruth, Script, ScriptedServer

from pytest_qperf.adapters.load_client import AiohttpLoadClient
from pytest_qperf.core.artifacts import RunningEngine
from pytest_qperf.core.errors import LoadError
from pytest_qperf.core.metrics import request_metrics
from pytest_qperf.core.recipe import RandomTokenPrompts, WorkloadRecipe
from pytest_qperf.core.records import RunRecord
from pytest_qperf.core.validity import run_problems
from pytest_qperf.ports import LoadClient

ISL_TOKENS = 8
# Wide, so that a busy host does not fail the test; a clock read in the wrong place is off by more.
TOLERANCE_S = 0.025
SCRIPT_TTFT_S = 0.05
SCRIPT_ITL_S = 0.005


@dataclass
class RecordedProgress:
    updates: list[str] = field(default_factory=list)
    gc_states: list[bool] = field(default_factory=list)
    interrupts: bool = False

    def update(self, text: str) -> None:
        self.updates.append(text)
        self.gc_states.append(gc.isenabled())
        if self.interrupts:
            signal.raise_signal(signal.SIGINT)

    def note(self, text: str) -> None:
        self.updates.append(text)


def make_workload(
    *,
    arrival: Literal["burst", "closed"] = "burst",
    concurrency: int = 4,
    num_requests: int = 8,
    osl_tokens: int = 20,
    read_timeout_s: float = 30.0,
) -> WorkloadRecipe:
    return WorkloadRecipe(
        description="test",
        isl_tokens=ISL_TOKENS,
        osl_tokens=osl_tokens,
        concurrency=concurrency,
        num_requests=num_requests,
        arrival=arrival,
        prompts=RandomTokenPrompts(source="random_tokens", min_token_id=0, max_token_id=999),
        seed=0,
        read_timeout_s=read_timeout_s,
    )


def make_prompts(num_requests: int) -> tuple[tuple[int, ...], ...]:
    """The first id of a prompt is its request's index."""
    return tuple((index, *range(100, 100 + ISL_TOKENS - 1)) for index in range(num_requests))


def engine_at(base_url: str) -> RunningEngine:
    return RunningEngine(
        base_url=base_url, served_model="scripted", facts={}, start_s=0.1, log_path=None, pid=None
    )


def run_load(
    server: ScriptedServer,
    workload: WorkloadRecipe,
    *,
    client: LoadClient | None = None,
    progress: RecordedProgress | None = None,
) -> RunRecord:
    return (client or AiohttpLoadClient()).run(
        engine_at(server.base_url),
        workload,
        make_prompts(workload.num_requests),
        progress=progress or RecordedProgress(),
    )


def script(fault: Fault, **changed: object) -> Script:
    base = Script(fault=fault, ttft_s=SCRIPT_TTFT_S, itl_s=SCRIPT_ITL_S)
    return Script(**{**vars(base), **changed})


def problems_of(run: RunRecord, workload: WorkloadRecipe) -> list[str]:
    """The problems that do not depend on how busy the host of the test is."""
    of_a_busy_host = ("client:", "coalesced reads")
    return [p for p in run_problems(run, workload) if not p.startswith(of_a_busy_host)]


def truths_of(server: ScriptedServer) -> list[RequestTruth]:
    by_index = server.log.truth_by_first_token()
    return [by_index[index] for index in range(len(by_index))]


def assert_times_are_the_servers(run: RunRecord, server: ScriptedServer) -> None:
    """Compare with the server's own clock readings, by the median over requests."""
    ttft_errors_s, decode_errors_s = [], []
    for request, truth in zip(run.requests, truths_of(server), strict=True):
        writes = truth.token_write_perf_ns
        metrics = request_metrics(request)
        true_ttft_s = (writes[0] - truth.received_perf_ns) / 1e9
        true_decode_s = (writes[-1] - writes[0]) / 1e9
        # One clock for both, so the order of events holds on any host.
        assert request.sent_perf_ns < truth.received_perf_ns
        assert request.chunks[0].perf_ns > writes[0]
        assert request.chunks[-1].perf_ns > writes[-1]
        ttft_errors_s.append(metrics.ttft_s - true_ttft_s)
        decode_errors_s.append(abs(metrics.e2e_latency_s - metrics.ttft_s - true_decode_s))
    assert statistics.median(ttft_errors_s) < TOLERANCE_S
    assert statistics.median(decode_errors_s) < TOLERANCE_S


@pytest.mark.parametrize(
    "fault",
    [
        "none",
        "role_early",
        "nospace",
        "comment",
        "empty_token",
        "split",
        "empty_choices",
        "usage_null",
        "cont_usage",
        "usage_in_last",
        "nodone",
    ],
)
def test_a_complete_stream_is_measured_as_the_server_wrote_it(fault: Fault) -> None:
    workload = make_workload()
    with ScriptedServer(script(fault)) as server:
        run = run_load(server, workload)
    assert [request.error for request in run.requests] == [None] * 8
    assert problems_of(run, workload) == []
    assert_times_are_the_servers(run, server)
    assert [len(request.chunks) for request in run.requests] == [20] * 8


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("err200", "8 of 8 requests: in-band error (first: request 0: CUDA out of memory)"),
        (
            "trunc",
            "8 of 8 requests: truncated stream (first: request 0: it ended cleanly after "
            "5 chunks with content, without a finish_reason)",
        ),
        ("reset", "8 of 8 requests: connection failed (first: request 0: "),
        ("http429", "2 of 8 requests: HTTP 429 (first: request "),
        ("stall", "8 of 8 requests: no bytes for 0.3 s (first: request 0: no bytes for 0.3 s)"),
        ("short", "8 of 8 requests: output length (first: request 0: expected 20 tokens, got 19)"),
        ("cached", "8 of 8 requests: cached tokens (first: request 0: expected 0, got 16; "),
        ("coalesce", "coalesced reads: 10.0 chunks a read, 160 of 160 tokens shared a read"),
    ],
)
def test_a_fault_makes_the_run_invalid_and_is_never_retried(fault: Fault, problem: str) -> None:
    workload = make_workload(read_timeout_s=0.3 if fault == "stall" else 30.0)
    with ScriptedServer(script(fault)) as server:
        run = run_load(server, workload)
    assert any(line.startswith(problem) for line in run_problems(run, workload))
    assert len(server.log.requests) == 8
    assert [request.index for request in run.requests] == list(range(8))


def test_refusals_are_kept_with_their_body() -> None:
    with ScriptedServer(script("http429")) as server:
        run = run_load(server, make_workload())
    refused = [request for request in run.requests if request.http_status == 429]
    assert len(refused) == 2
    body = 'HTTP 429: {"error": {"message": "rate limited", "code": 429}}'
    assert {request.error for request in refused} == {body}


@pytest.mark.parametrize(("fault", "token_ids"), [("none", True), ("cont_usage", False)])
def test_bundles_of_four_tokens_count_as_four(fault: Fault, token_ids: bool) -> None:
    workload = make_workload()
    bundles = script(fault, tokens_per_chunk=4, sends_token_ids=token_ids)
    with ScriptedServer(bundles) as server:
        run = run_load(server, workload)
    assert problems_of(run, workload) == []
    assert [chunk.num_tokens for chunk in run.requests[0].chunks] == [4, 4, 4, 4, 4]
    assert_times_are_the_servers(run, server)
    # 16 tokens after the first chunk in 4 x 20 ms.
    tpot_s = statistics.median(request_metrics(request).tpot_s for request in run.requests)
    assert abs(tpot_s - SCRIPT_ITL_S) < SCRIPT_ITL_S


def test_bundles_that_the_server_does_not_count_are_not_guessed() -> None:
    workload = make_workload()
    with ScriptedServer(script("none", tokens_per_chunk=4)) as server:
        run = run_load(server, workload)
    (problem,) = problems_of(run, workload)
    assert problem.startswith("8 of 8 requests: tokens cannot be attributed to chunks (first: ")


def test_closed_arrival_keeps_concurrency_in_flight_on_as_many_connections() -> None:
    workload = make_workload(arrival="closed", num_requests=40, osl_tokens=4)
    with ScriptedServer(script("none", ttft_s=0.01, itl_s=0.002)) as server:
        run = run_load(server, workload)
    assert len(server.log.requests) == 40
    assert server.log.num_connections == 4
    assert server.log.max_in_flight == 4
    assert [request.error for request in run.requests] == [None] * 40
    assert not [problem for problem in problems_of(run, workload) if "in flight" in problem]
    # Each request is due when a slot is free, so no slot waits and none is sent before it is due.
    ended = sorted(request.ended_perf_ns for request in run.requests)
    due = sorted(request.scheduled_perf_ns for request in run.requests)
    assert due[4:] == ended[:36]
    assert all(request.sent_perf_ns >= request.scheduled_perf_ns for request in run.requests)


def test_burst_starts_a_wave_when_all_of_the_last_have_ended() -> None:
    workload = make_workload(num_requests=12, osl_tokens=4)
    with ScriptedServer(script("none")) as server:
        run = run_load(server, workload)
    assert server.log.num_connections == 4
    assert server.log.max_in_flight == 4
    waves = [run.requests[first : first + 4] for first in (0, 4, 8)]
    for wave, next_wave in pairwise(waves):
        last_end = max(request.ended_perf_ns for request in wave)
        assert all(request.sent_perf_ns > last_end for request in next_wave)
    assert [request.is_warmup for request in run.requests] == [True] * 4 + [False] * 8


def test_a_request_asks_for_exact_lengths_and_for_counts() -> None:
    with ScriptedServer(script("none", ttft_s=0.01)) as server:
        run_load(server, make_workload(osl_tokens=4))
    body = server.log.truth_by_first_token()[5].body
    assert body == {
        "model": "scripted",
        "prompt": [5, 100, 101, 102, 103, 104, 105, 106],
        "max_tokens": 4,
        "min_tokens": 4,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }


def test_the_token_ids_field_can_be_left_out_for_servers_that_refuse_it() -> None:
    client = AiohttpLoadClient(return_token_ids=False)
    with ScriptedServer(script("none", ttft_s=0.01, sends_token_ids=True)) as server:
        run = run_load(server, make_workload(osl_tokens=4), client=client)
    assert all("return_token_ids" not in request.body for request in server.log.requests)
    assert [request.error for request in run.requests] == [None] * 8


def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ScriptedServer(script("none", ttft_s=0.01)) as server:
        run = run_load(server, make_workload(osl_tokens=4))
    assert [request.error for request in run.requests] == [None] * 8


def test_progress_is_shown_and_the_garbage_collector_rests_only_during_the_run() -> None:
    progress = RecordedProgress()
    with ScriptedServer(script("none", ttft_s=0.4)) as server:
        run = run_load(server, make_workload(osl_tokens=4), progress=progress)
    assert progress.updates[0] == "4 of 8 requests"
    assert set(progress.gc_states) == {False}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert run.duration_s > 0.8
    assert run.started_at.utcoffset() is not None


def test_the_send_time_is_read_at_the_write_and_not_at_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called_perf_ns: list[int] = []
    post = aiohttp.ClientSession.post

    def recorded_post(session: aiohttp.ClientSession, url: str, **options: Any) -> object:
        called_perf_ns.append(time.perf_counter_ns())
        return post(session, url, **options)

    monkeypatch.setattr(aiohttp.ClientSession, "post", recorded_post)
    with ScriptedServer(script("none", ttft_s=0.01)) as server:
        run = run_load(server, make_workload(osl_tokens=4))
    sent = [request.sent_perf_ns for request in run.requests]
    assert all(at > called for at, called in zip(sent, called_perf_ns, strict=True))


def test_the_client_reports_how_late_it_was_itself() -> None:
    with ScriptedServer(script("none", ttft_s=0.01)) as server:
        health = run_load(server, make_workload(osl_tokens=4)).client_health
    assert 0 <= health.event_loop_lag_p99_s <= health.event_loop_lag_max_s
    assert health.send_lag_max_s > 0


def test_a_client_that_is_held_up_reports_the_lag() -> None:
    class BlockingProgress(RecordedProgress):
        def update(self, text: str) -> None:
            super().update(text)
            time.sleep(0.2)

    with ScriptedServer(script("none", ttft_s=0.4)) as server:
        run = run_load(server, make_workload(osl_tokens=30), progress=BlockingProgress())
    assert run.client_health.event_loop_lag_max_s > 0.15


def test_ctrl_c_ends_the_run_at_once_and_leaves_the_collector_on() -> None:
    progress = RecordedProgress(interrupts=True)
    with ScriptedServer(script("stall")) as server:
        with pytest.raises(KeyboardInterrupt):
            run_load(server, make_workload(), progress=progress)
        assert progress.updates == ["0 of 8 requests"]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def closed_port_url() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_does_not_answer_is_a_load_error() -> None:
    url, workload = closed_port_url(), make_workload()
    with pytest.raises(LoadError) as caught:
        AiohttpLoadClient().run(
            engine_at(url), workload, make_prompts(8), progress=RecordedProgress()
        )
    message = str(caught.value)
    assert message.startswith(
        f"{url}: expected 4 connections, 4 failed with ClientConnectorError: Cannot connect"
    )
    assert message.endswith("check that the server runs and is reachable")


def test_prompts_that_do_not_fit_the_workload_are_load_errors() -> None:
    engine, workload = engine_at(closed_port_url()), make_workload()
    with pytest.raises(LoadError) as caught:
        AiohttpLoadClient().run(engine, workload, make_prompts(7), progress=RecordedProgress())
    assert str(caught.value) == (
        "prompts: expected 8 (num_requests), got 7; give one for each request"
    )
    prompts = (*make_prompts(7), (1, 2, 3))
    with pytest.raises(LoadError) as caught:
        AiohttpLoadClient().run(engine, workload, prompts, progress=RecordedProgress())
    assert str(caught.value) == (
        "prompts[7]: expected 8 token ids (isl_tokens), got 3; "
        "every prompt must have the workload's length"
    )


def test_one_completion_is_returned_decoded_as_warm_up() -> None:
    with ScriptedServer(script("none", ttft_s=0.01)) as server:
        record = AiohttpLoadClient().complete_once(
            server.base_url + "/", model="scripted", prompt=(7, 8), max_tokens=3
        )
    assert record.error is None
    assert record.is_warmup
    assert (record.isl_tokens, record.osl_tokens, len(record.chunks)) == (2, 3, 3)


def test_one_completion_without_a_server_has_an_error() -> None:
    record = AiohttpLoadClient().complete_once(
        closed_port_url(), model="scripted", prompt=(7, 8), max_tokens=3
    )
    assert record.http_status is None
    assert record.error is not None
    assert record.error.startswith("connection failed: ClientConnectorError: Cannot connect")
