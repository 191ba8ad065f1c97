"""Runs an engine behind a guardian process: however this process ends, the engine's tree ends."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import psutil

from pytest_qperf.adapters.guardian import CLEANUP_TIMEOUT_S, KILL_WAIT_S
from pytest_qperf.core.errors import EngineError

GUARDIAN_PROGRAM = Path(__file__).with_name("guardian.py")
START_TIMEOUT_S = 30.0
LOG_TAIL_BYTES = 256 * 1024


class Terminated(KeyboardInterrupt):
    """SIGTERM came. A KeyboardInterrupt, so that pytest ends its session as it does on Ctrl-C."""


@contextmanager
def supervise(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log_path: Path,
    stop_grace_s: float = 10.0,
    cleanup_command: Sequence[str] = (),
) -> Iterator["EngineProcess"]:
    """Start a command in its own session; yield it; on leaving, nothing that it started is left.

    environment: the complete environment of the child. Its output is appended to ``log_path``.
    On leaving: SIGTERM to the whole tree, SIGKILL after ``stop_grace_s``, then ``cleanup_command``
    (for what is no descendant, such as a container). If this process dies instead, the same happens
    with a grace of 2 s.
    Raises EngineError if the command cannot be started or a process outlives SIGKILL.
    """
    if not command:
        raise EngineError("engine command: expected a program and its arguments, got nothing")
    guardian = _Guardian(log_path)
    try:
        pid = guardian.start_engine(command, environment, cleanup_command)
        yield EngineProcess(pid, log_path, guardian)
    except BaseException as error:
        if complaint := guardian.stop(stop_grace_s):
            error.add_note(complaint)
        raise
    if complaint := guardian.stop(stop_grace_s):
        raise EngineError(complaint)


class EngineProcess:
    """A started engine. ``pid`` is the process of the command itself."""

    def __init__(self, pid: int, log_path: Path, guardian: "_Guardian") -> None:
        self.pid = pid
        self.log_path = log_path
        self._guardian = guardian

    def exit_code(self) -> int | None:
        """Return the command's exit code (negative: the signal that ended it), None while it runs.

        Raises EngineError if the guardian died, after which the exit code cannot be known.
        """
        return self._guardian.engine_exit_code()

    def log_tail(self, num_lines: int = 40) -> str:
        """Return the last lines of the log, out of its last 256 KiB."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])

    def descendants(self) -> set[int]:
        """Return the pids of the command's process and of all that it started, as far as alive."""
        return self._guardian.engine_pids()


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free at the time of the call."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """Raise Terminated in the main thread on SIGTERM, so that contexts unwind; main thread only."""

    def raise_terminated(_number: int, _frame: FrameType | None) -> None:
        raise Terminated("SIGTERM")

    previous = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class _Guardian:
    """This process's side of a guardian: see the protocol in guardian.py."""

    def __init__(self, log_path: Path) -> None:
        self._engine_pid: int | None = None
        self._engine_started_at_s: float | None = None
        self._exit_code: int | None = None
        self._ending: dict[str, object] | None = None
        self._status_buffer = b""
        self._is_dead = False
        with _open_log(log_path) as log, contextlib.ExitStack() as on_failure:
            control_fd, write_fd = os.pipe()
            self._control = on_failure.enter_context(open(write_fd, "wb", buffering=0))  # noqa: PTH123
            child_control = on_failure.enter_context(open(control_fd, "rb", buffering=0))  # noqa: PTH123
            read_fd, status_fd = os.pipe()
            self._status = on_failure.enter_context(open(read_fd, "rb", buffering=0))  # noqa: PTH123
            child_status = on_failure.enter_context(open(status_fd, "wb", buffering=0))  # noqa: PTH123
            self._process = _start_guardian(child_control, child_status, log)
            child_control.close()
            child_status.close()
            on_failure.pop_all()

    def start_engine(
        self, command: Sequence[str], environment: Mapping[str, str], cleanup_command: Sequence[str]
    ) -> int:
        """Return the engine's pid. Raises EngineError if it cannot be started."""
        description = {
            "command": list(command),
            "environment": dict(environment),
            "cleanup_command": list(cleanup_command),
            "parent_pid": os.getpid(),
        }
        self._send(json.dumps(description))
        end_perf_s = time.perf_counter() + START_TIMEOUT_S
        while (event := self._next_event(end_perf_s - time.perf_counter())) is None:
            if self._is_dead or time.perf_counter() > end_perf_s:
                raise EngineError(
                    f"guardian of {command[0]}: expected a report within {START_TIMEOUT_S:.0f} s, "
                    "got none; see the end of the engine's log"
                )
        if event["event"] == "refused":
            raise EngineError(
                f"{command[0]}: expected a program that can be started, got {event['reason']}; "
                "check the interpreter, image or environment that the recipe names"
            )
        self._engine_pid = int(str(event["pid"]))
        with contextlib.suppress(psutil.NoSuchProcess):
            self._engine_started_at_s = psutil.Process(self._engine_pid).create_time()
        return self._engine_pid

    def engine_exit_code(self) -> int | None:
        """Return the exit code, None while the engine runs; EngineError if the guardian is dead."""
        self._read_events()
        if self._exit_code is None and self._is_dead:
            raise EngineError(
                f"guardian of process {self._engine_pid}: expected it to outlive the engine, got "
                "its death (out of memory?); run again"
            )
        return self._exit_code

    def engine_pids(self) -> set[int]:
        """Return the pids of the guardian's live descendants."""
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return set()
        return {child.pid for child in children if _is_alive(child)}

    def stop(self, grace_s: float) -> str | None:
        """End the tree; return None, or what is left of it.

        A second Ctrl-C meanwhile closes the control pipe, which shortens the grace to 2 s, and is
        raised again once the guardian is done; a third one is not waited for, the guardian is.
        """
        try:
            self._send(f"stop {grace_s}")
            self._wait_for_end(grace_s)
        except BaseException:
            self._control.close()
            self._wait_for_end(grace_s)
            raise
        finally:
            self._control.close()
            self._read_events()
            self._status.close()
        return self._complaint()

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # its death shows as a missing report
            self._control.write(line.encode() + b"\n")

    def _wait_for_end(self, grace_s: float) -> None:
        try:
            self._process.wait(timeout=grace_s + KILL_WAIT_S + CLEANUP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _complaint(self) -> str | None:
        if self._engine_pid is None:
            return None
        if self._ending is None:
            left = sorted(self._kill_session())
            return (
                f"guardian of process {self._engine_pid}: expected a report at its end, got none; "
                f"killed what was found in the engine's session: {left}"
            )
        if self._ending["left"]:
            return (
                f"engine process {self._engine_pid}: expected its tree to be gone after SIGKILL, "
                f"got live processes {self._ending['left']}; end them before measuring again"
            )
        if self._ending["cleanup"] is not None:
            return f"engine's cleanup command: expected success, got {self._ending['cleanup']}"
        return None

    def _kill_session(self) -> set[int]:
        """SIGKILL what is in the engine's session, without a guardian's help; return the pids."""
        killed = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
                # A session id is not used again while the session has members; the start time tells
                # a later session of the same number apart.
                is_ours = (
                    self._engine_started_at_s is not None
                    and os.getsid(process.pid) == self._engine_pid
                    and process.create_time() >= self._engine_started_at_s
                )
                if is_ours and _is_alive(process):
                    process.kill()
                    killed.add(process.pid)
        return killed

    def _read_events(self) -> None:
        while self._next_event(0) is not None:
            pass

    def _next_event(self, timeout_s: float) -> dict[str, object] | None:
        """Return the guardian's next report, None if none came in ``timeout_s`` or it is dead."""
        while b"\n" not in self._status_buffer:
            if self._is_dead or self._status.closed:
                return None
            if not select.select([self._status], [], [], max(0.0, timeout_s))[0]:
                return None
            data = self._status.read(65536)
            if not data:  # nobody else holds the write end, so the guardian has ended
                self._is_dead = True
                return None
            self._status_buffer += data
        line, self._status_buffer = self._status_buffer.split(b"\n", 1)
        event: dict[str, object] = json.loads(line)
        if event["event"] == "exited":
            self._exit_code = int(str(event["code"]))
        elif event["event"] == "ended":
            self._ending = event
        return event


def _start_guardian(control: BinaryIO, status: BinaryIO, log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the guardian in a session of its own, where the terminal's Ctrl-C does not reach it."""
    fds = (control.fileno(), status.fileno())
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(GUARDIAN_PROGRAM), *map(str, fds)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        pass_fds=fds,
        start_new_session=True,
    )


def _open_log(log_path: Path) -> BinaryIO:
    try:
        return log_path.open("ab")
    except OSError as error:
        raise EngineError(
            f"engine log {log_path}: expected a file that can be written, got {error.strerror}"
        ) from error


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
