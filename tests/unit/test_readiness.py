"""Ready means one generated token."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fakes.named_engines import RecordedProgress
from fakes.reply_server import serve_replies

from pytest_qperf.adapters.http_exchange import fetch
from pytest_qperf.adapters.readiness import (
    Clock,
    Ready,
    ReadyTarget,
    WatchedProcess,
    shortened,
    wait_until_generating,
)
from pytest_qperf.core.errors import EngineError

REFUSED_URL = "http://127.0.0.1:1"
MODELS = "/v1/models"
COMPLETIONS = "/v1/completions"
ONE_MODEL: tuple[int, object] = (200, {"data": [{"id": "qperf"}]})
TWO_TOKENS: tuple[int, object] = (200, {"usage": {"completion_tokens": 2}})


@dataclass
class FakeTime:
    """A clock that only a pause moves."""

    now_s: float = 100.0

    def clock(self) -> Clock:
        return Clock(now_s=lambda: self.now_s, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class FakeProcess:
    """A process that exits with ``code`` at its ``exits_at_look``-th look, if that is given."""

    lines: list[str] = field(default_factory=list)
    exits_at_look: int | None = None
    code: int = 7
    num_looks: int = 0
    log_path: Path = Path("/logs/engine.log")

    def exit_code(self) -> int | None:
        self.num_looks += 1
        gone = self.exits_at_look is not None and self.num_looks >= self.exits_at_look
        return self.code if gone else None

    def log_tail(self, num_lines: int = 40) -> str:
        return "\n".join(self.lines[-num_lines:])


def wait(
    base_url: str,
    *,
    process: WatchedProcess | None = None,
    timeout_s: float = 10.0,
    progress: RecordedProgress | None = None,
    **target: object,
) -> Ready:
    values: dict[str, object] = {"name": "engine a", "base_url": base_url, "timeout_s": timeout_s}
    return wait_until_generating(
        process,
        ReadyTarget(**(values | target)),  # type: ignore[arg-type]
        progress=progress or RecordedProgress(),
        clock=FakeTime().clock(),
    )


def failure(base_url: str, **arguments: object) -> str:
    with pytest.raises(EngineError) as caught:
        wait(base_url, **arguments)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_server_that_returns_a_token_is_ready_under_its_own_model_name() -> None:
    with serve_replies({MODELS: [ONE_MODEL], COMPLETIONS: [TWO_TOKENS]}) as server:
        ready = wait(server.base_url, process=FakeProcess())
    assert ready == Ready(served_model="qperf", start_s=0.0)
    (request,) = server.posted
    assert request["model"] == "qperf"
    assert request["prompt"] == [11, 12, 13, 14]
    assert (request["max_tokens"], request["ignore_eos"]) == (2, True)


def test_start_time_counts_the_wait_while_the_server_loads() -> None:
    loading: list[tuple[int, object]] = [(503, "loading"), (503, "loading"), ONE_MODEL]
    with serve_replies({MODELS: loading, COMPLETIONS: [(503, ""), TWO_TOKENS]}) as server:
        assert wait(server.base_url).start_s == 0.75


def test_a_server_that_never_listens_is_an_error_at_the_timeout() -> None:
    process = FakeProcess(lines=[f"line {number}" for number in range(1, 61)])
    message = failure(REFUSED_URL, process=process)
    head, *tail = message.splitlines()
    assert head.startswith(
        "engine a: expected a generated token within 10 s, got none (ConnectionRefusedError: "
    )
    assert head.endswith(" after 10.2 s; last 40 lines of /logs/engine.log:")
    assert tail == [f"line {number}" for number in range(21, 61)]


def test_a_process_that_exits_is_an_error_at_once_with_its_exit_code() -> None:
    message = failure(REFUSED_URL, process=FakeProcess(lines=["boom"], exits_at_look=3))
    assert message == (
        "engine a: expected a generated token within 10 s, got exit code 7 after 0.5 s; "
        "last 40 lines of /logs/engine.log:\nboom"
    )


def test_a_process_that_exits_during_the_first_completion_is_an_error() -> None:
    with serve_replies({MODELS: [ONE_MODEL], COMPLETIONS: [(-1, "")]}) as server:
        message = failure(server.base_url, process=FakeProcess(exits_at_look=4, code=-9))
    assert "got exit code -9" in message


def test_a_dropped_connection_is_tried_again() -> None:
    replies = {MODELS: [(0, ""), ONE_MODEL], COMPLETIONS: [(0, ""), TWO_TOKENS]}
    with serve_replies(replies) as server:
        assert wait(server.base_url).served_model == "qperf"


def test_health_without_completions_is_not_ready() -> None:
    replies: dict[str, list[tuple[int, object]]] = {
        "/health": [(200, "")],
        MODELS: [ONE_MODEL],
        COMPLETIONS: [(500, "engine is dead")],
    }
    with serve_replies(replies) as server:
        message = failure(server.base_url)
    assert "got POST /v1/completions answered HTTP 500: 'engine is dead' after 0.0 s" in message
    assert message.endswith(f"; asked {server.base_url}")


def test_a_completion_without_a_token_is_an_error() -> None:
    empty: tuple[int, object] = (200, {"usage": {"completion_tokens": 0}})
    with serve_replies({MODELS: [ONE_MODEL], COMPLETIONS: [empty]}) as server:
        assert "answered without usage.completion_tokens >= 1: '{" in failure(server.base_url)


@pytest.mark.parametrize("body", ["not json", "[]", {"data": []}, {"data": [{"name": "x"}]}])
def test_a_model_list_without_a_model_is_an_error(body: object) -> None:
    with serve_replies({MODELS: [(200, body)]}) as server:
        assert "which names no model" in failure(server.base_url)


def test_one_of_several_models_must_be_named() -> None:
    two: tuple[int, object] = (200, {"data": [{"id": "a"}, {"id": "b"}]})
    with serve_replies({MODELS: [two], COMPLETIONS: [TWO_TOKENS]}) as server:
        assert "expected exactly one model at http" in failure(server.base_url)
        assert wait(server.base_url, model="b").served_model == "b"


def test_a_model_that_is_not_served_is_an_error_with_those_that_are() -> None:
    with serve_replies({MODELS: [ONE_MODEL]}) as server:
        message = failure(server.base_url, model="other")
    assert message == (
        f"engine a: expected 'other' at {server.base_url}, got 'qperf'; "
        f"name one of them in the recipe's 'model'"
    )


def test_nobody_waits_for_a_server_that_should_serve_already() -> None:
    message = failure(REFUSED_URL, is_already_serving=True)
    assert message.startswith(f"engine a: expected a server at {REFUSED_URL}, got ConnectionRef")
    assert message.endswith("; start it, or give the recipe a restart_command")


def test_progress_shows_elapsed_time_and_the_last_log_line_every_three_seconds() -> None:
    progress = RecordedProgress()
    process = FakeProcess(lines=["first", "INFO   loading " + "x" * 100])
    failure(REFUSED_URL, process=process, progress=progress)
    assert [update.split(" s: ")[0] for update in progress.updates] == [
        f"engine a: starting, {elapsed_s}" for elapsed_s in (0, 3, 6, 9)
    ]
    assert progress.updates[0].endswith("s: INFO loading " + "x" * 66 + "…")


def test_a_short_line_is_shown_whole() -> None:
    assert shortened("  a \t b\n") == "a b"


def test_silence_after_a_request_is_a_timeout() -> None:
    with (
        serve_replies({"/version": [(-1, "")]}) as server,
        pytest.raises(TimeoutError, match=r"no answer from .*/version within 0\.05 s"),
    ):
        fetch(f"{server.base_url}/version", timeout_s=0.05)


def test_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", REFUSED_URL)
    with serve_replies({"/version": [(200, "{}")]}) as server:
        assert fetch(f"{server.base_url}/version").status == 200
