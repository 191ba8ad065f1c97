"""Waiting until a server has generated a token: an open port or a healthy answer does not do."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytest_qperf.adapters.http_exchange import HttpReply, fetch, send
from pytest_qperf.core.errors import EngineError

POLL_EVERY_S = 0.25
UPDATE_EVERY_S = 3.0
LOG_TAIL_LINES = 40
LOG_LINE_SHOWN_CHARS = 80
# A proxy in front of a server, or a server that still loads, answers these; all others are final.
NOT_READY_STATUSES = (429, 502, 503, 504)
# Ids that every vocabulary of this field holds; the prompt's meaning does not matter.
PROMPT_TOKEN_IDS = (11, 12, 13, 14)


class ProgressLine(Protocol):
    """Where live progress goes."""

    def update(self, text: str) -> None:
        """Show what is happening now."""

    def note(self, text: str) -> None:
        """Show a line that stays."""


class WatchedProcess(Protocol):
    """What is asked of a server's process while it starts."""

    log_path: Path

    def exit_code(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def log_tail(self, num_lines: int = 40) -> str:
        """Return the last lines of its output."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The monotonic clock and the pause between two looks; replaced in tests."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


SYSTEM_CLOCK = Clock()


@dataclass(frozen=True, slots=True)
class ReadyTarget:
    """Which server is waited for, and how long.

    ``name`` opens every message. ``model``: the id to use, or "" for the only one served.
    ``is_already_serving``: nobody is starting it, so a connection that fails is final.
    """

    name: str
    base_url: str
    timeout_s: float
    model: str = ""
    is_already_serving: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """The served model's id, and seconds from the call to the first generated token."""

    served_model: str
    start_s: float


def wait_until_generating(
    process: WatchedProcess | None,
    target: ReadyTarget,
    *,
    progress: ProgressLine,
    clock: Clock = SYSTEM_CLOCK,
) -> Ready:
    """Return once the server has answered a completion with at least one token.

    Raises EngineError at once if the process ends or an answer is wrong, and after
    ``target.timeout_s`` otherwise; with exit code, elapsed seconds, last log lines and log path.
    """
    watch = _Watch(process, target, progress, clock, started_s=clock.now_s())
    model = watch.wait_for_model()
    watch.wait_for_token(model)
    return Ready(served_model=model, start_s=watch.elapsed_s())


@dataclass(slots=True)
class _Watch:
    process: WatchedProcess | None
    target: ReadyTarget
    progress: ProgressLine
    clock: Clock
    started_s: float
    last_problem: str = "no answer yet"
    next_update_s: float = field(default=0.0)

    def elapsed_s(self) -> float:
        return self.clock.now_s() - self.started_s

    def wait_for_model(self) -> str:
        """Return the id of the model to ask for, once /v1/models names it."""
        while True:
            reply = self._try_fetch_models()
            if reply is not None:
                return self._choose_model(reply)
            self._pause()

    def wait_for_token(self, model: str) -> None:
        """Return once a completion came back with a token."""
        while not self._try_completion(model):
            self._pause()

    def _try_fetch_models(self) -> HttpReply | None:
        self._look()
        try:
            reply = fetch(f"{self.target.base_url}/v1/models", timeout_s=POLL_EVERY_S * 20)
        except OSError as error:
            self._connection_failed(error)
            return None
        return reply if self._is_final(reply, "GET /v1/models") else None

    def _choose_model(self, reply: HttpReply) -> str:
        served = _model_ids(reply)
        if not served:
            raise self._error(f"GET /v1/models answered {reply.body[:200]!r}, which names no model")
        if not self.target.model and len(served) == 1:
            return served[0]
        if self.target.model in served:
            return self.target.model
        wanted = f"{self.target.model!r}" if self.target.model else "exactly one model"
        raise EngineError(
            f"{self.target.name}: expected {wanted} at {self.target.base_url}, "
            f"got {', '.join(map(repr, served))}; name one of them in the recipe's 'model'"
        )

    def _try_completion(self, model: str) -> bool:
        self._look()
        payload = {
            "model": model,
            "prompt": list(PROMPT_TOKEN_IDS),
            "max_tokens": 2,
            "min_tokens": 1,
            "ignore_eos": True,
            "temperature": 0.0,
        }
        try:
            exchange = send(f"{self.target.base_url}/v1/completions", payload=payload)
            try:
                while not exchange.wait_for_answer(POLL_EVERY_S):
                    self._look()
                reply = exchange.read()
            finally:
                exchange.close()
        except OSError as error:
            self._connection_failed(error)
            return False
        if not self._is_final(reply, "POST /v1/completions"):
            return False
        if _num_generated_tokens(reply) < 1:
            raise self._error(
                f"POST /v1/completions answered without usage.completion_tokens >= 1: "
                f"{reply.body[:200]!r}"
            )
        return True

    def _look(self) -> None:
        """Raise if the process ended or time is up; show progress when it is due."""
        code = None if self.process is None else self.process.exit_code()
        if code is not None:
            raise self._error(f"exit code {code}")
        if self.elapsed_s() > self.target.timeout_s:
            raise self._error(f"none ({self.last_problem})")
        if self.clock.now_s() >= self.next_update_s:
            self.next_update_s = self.clock.now_s() + UPDATE_EVERY_S
            last_line = "" if self.process is None else self.process.log_tail(1)
            shown = shortened(last_line or self.last_problem)
            self.progress.update(f"{self.target.name}: starting, {self.elapsed_s():.0f} s: {shown}")

    def _pause(self) -> None:
        self.clock.sleep(POLL_EVERY_S)

    def _is_final(self, reply: HttpReply, what: str) -> bool:
        """Return True for an answer to use, False for one to ask again; raise for the rest."""
        if reply.status == 200:
            return True
        self.last_problem = f"{what} answered HTTP {reply.status}"
        if reply.status in NOT_READY_STATUSES:
            return False
        raise self._error(f"{self.last_problem}: {reply.body[:200]!r}")

    def _connection_failed(self, error: OSError) -> None:
        self.last_problem = f"{type(error).__name__}: {error}"
        if self.target.is_already_serving:
            raise EngineError(
                f"{self.target.name}: expected a server at {self.target.base_url}, "
                f"got {self.last_problem}; start it, or give the recipe a restart_command"
            ) from error

    def _error(self, got: str) -> EngineError:
        head = (
            f"{self.target.name}: expected a generated token within {self.target.timeout_s:g} s, "
            f"got {got} after {self.elapsed_s():.1f} s"
        )
        if self.process is None:
            return EngineError(f"{head}; asked {self.target.base_url}")
        return EngineError(
            f"{head}; last {LOG_TAIL_LINES} lines of {self.process.log_path}:\n"
            f"{self.process.log_tail(LOG_TAIL_LINES)}"
        )


def shortened(line: str) -> str:
    """Return a log line cut to what fits on one line of a terminal."""
    line = " ".join(line.split())
    return line if len(line) <= LOG_LINE_SHOWN_CHARS else line[: LOG_LINE_SHOWN_CHARS - 1] + "…"


def _model_ids(reply: HttpReply) -> list[str]:
    """Return the ids of an OpenAI model list; empty if the body is not one."""
    data = (reply.json_object() or {}).get("data")
    if not isinstance(data, list):
        return []
    ids = [entry.get("id") for entry in data if isinstance(entry, dict)]
    return [model_id for model_id in ids if isinstance(model_id, str)]


def _num_generated_tokens(reply: HttpReply) -> int:
    """Return usage.completion_tokens; 0 if the answer states none."""
    usage = (reply.json_object() or {}).get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else 0
