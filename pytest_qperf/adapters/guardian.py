"""Stands between a measuring process and an engine, and ends the engine's whole process tree.

A program of its own: `python -I -S guardian.py CONTROL_FD STATUS_FD`, standard library only. Only
the parent holds the write end of the control pipe, so the pipe closes however the parent dies.

Control (parent to guardian): a line of JSON {"command", "environment", "cleanup_command",
"parent_pid"}, then any number of lines "stop GRACE_S". A closed pipe, or a parent with another
pid, is a stop with ORPHAN_GRACE_S; a later order can only shorten the grace.
Status (guardian to parent), a line of JSON each: {"event": "refused", "reason"}, or
{"event": "started", "pid"}, {"event": "exited", "code"} (negative: the signal that ended it),
{"event": "ended", "left", "cleanup"}.

Standard error is the engine's log. On Linux the guardian is a child subreaper: a daemon that made
its own session and lost its parent becomes the guardian's child and is found by walking /proc.
Elsewhere such a daemon escapes; the engine's process group and its descendants do not.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ORPHAN_GRACE_S = 2.0
KILL_WAIT_S = (
    30.0  # a process that holds tens of GB of GPU memory takes seconds to leave the kernel
)
CLEANUP_TIMEOUT_S = 30.0
ORPHAN_CHECK_S = 0.5
POLL_S = 0.05

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
NUM_THREADS_FIELD = 17  # proc(5): field 20 of stat, counted from the state, which is field 3


def main() -> int:
    """Read the engine's description, start it, guard it, end it; return 0 if nothing is left."""
    control_fd, status_fd = (int(argument) for argument in sys.argv[1:3])
    for fd in (control_fd, status_fd):
        os.set_inheritable(fd, False)
    orders = Orders(control_fd)
    description = orders.read_description()
    if description is None:
        return 0
    try:
        engine = start_engine(description.command, description.environment)
    except (OSError, ValueError) as error:
        report(status_fd, {"event": "refused", "reason": str(error)})
        return 0
    report(status_fd, {"event": "started", "pid": engine.pid})
    guardian = Guardian(orders, engine, status_fd)
    guardian.terminate(guardian.wait_for_stop())
    left = sorted(guardian.survivors())
    cleanup = run_cleanup(description)
    report(status_fd, {"event": "ended", "left": left, "cleanup": cleanup})
    return 1 if left else 0


@dataclass(frozen=True, slots=True)
class Description:
    """The engine to start; ``cleanup_command`` (may be empty) runs once, after the tree is gone."""

    command: list[str]
    environment: dict[str, str]
    cleanup_command: list[str]
    parent_pid: int


class Orders:
    """What the guardian is told: by the control pipe, by SIGTERM, by the loss of its parent."""

    def __init__(self, control_fd: int) -> None:
        self._control_fd = control_fd
        self._buffer = b""
        self._is_closed = False
        self._num_sigterms = 0
        self._parent_pid: int | None = None
        self._wake_fd = self._take_signals()

    def _take_signals(self) -> int:
        # Handlers rather than SIG_IGN: an ignored signal stays ignored in the engine after exec.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        wake_fd, wake_write_fd = os.pipe()
        for fd in (wake_fd, wake_write_fd):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write_fd, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, self._count_sigterm)
        return wake_fd

    def _count_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self._num_sigterms += 1

    def read_description(self) -> "Description | None":
        """Return what the first line says; None if the parent is gone before it is complete."""
        while b"\n" not in self._buffer:
            data = os.read(self._control_fd, 65536)
            if not data:
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        description = Description(**json.loads(line))
        self._parent_pid = description.parent_pid
        return description

    def poll(self, timeout_s: float) -> float | None:
        """Return the grace in seconds of a new stop order, None after ``timeout_s``."""
        is_idle = b"\n" not in self._buffer and not self._num_sigterms
        watched = [self._wake_fd] if self._is_closed else [self._wake_fd, self._control_fd]
        readable, _, _ = select.select(watched, [], [], timeout_s if is_idle else 0)
        if self._wake_fd in readable:
            os.read(self._wake_fd, 4096)
        if self._control_fd in readable:
            data = os.read(self._control_fd, 65536)
            self._is_closed = not data
            self._buffer += data
        return self._shortest_grace_s()

    def _shortest_grace_s(self) -> float | None:
        *lines, self._buffer = self._buffer.split(b"\n")
        graces_s = [float(line.split()[1]) for line in lines]
        # A fork of the parent may hold the pipe open, so the pid is looked at as well.
        if self._is_closed or os.getppid() != self._parent_pid:
            graces_s.append(ORPHAN_GRACE_S)
        if self._num_sigterms:
            graces_s.append(ORPHAN_GRACE_S)
            self._num_sigterms = 0
        return min(graces_s, default=None)


class Guardian:
    """Watches one engine and everything that it started."""

    def __init__(self, orders: Orders, engine: subprocess.Popen[bytes], status_fd: int) -> None:
        self._orders = orders
        self._engine = engine
        self._status_fd = status_fd

    def wait_for_stop(self) -> float:
        """Reap what exits until a stop is ordered; return its grace in seconds."""
        while (grace_s := self._orders.poll(ORPHAN_CHECK_S)) is None:
            self._reap()
        return grace_s

    def terminate(self, grace_s: float) -> None:
        """SIGTERM to everything, then after ``grace_s`` SIGKILL until nothing is left."""
        self._signal_all(self.survivors(), signal.SIGTERM)
        end_perf_s = time.perf_counter() + grace_s
        while self.survivors() and time.perf_counter() < end_perf_s:
            shorter_s = self._orders.poll(POLL_S)
            if shorter_s is not None:
                end_perf_s = min(end_perf_s, time.perf_counter() + shorter_s)
            self._reap()
        end_perf_s = time.perf_counter() + KILL_WAIT_S
        while (left := self.survivors()) and time.perf_counter() < end_perf_s:
            self._signal_all(left, signal.SIGKILL)
            self._orders.poll(POLL_S)
            self._reap()
        self._reap()

    def survivors(self) -> set[int]:
        """Return the pids of all live descendants; zombies are not alive."""
        return live_descendants(os.getpid(), group=self._engine.pid)

    def _signal_all(self, pids: set[int], number: signal.Signals) -> None:
        # While the engine is unreaped its pid cannot name another group; killpg leaves no gap for a
        # process that forks between the walk and the signal.
        if self._engine.returncode is None:
            members = {pid for pid in pids if group_of(pid) == self._engine.pid}
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._engine.pid, number)
                pids = pids - members
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._engine.pid:
                self._engine.returncode = os.waitstatus_to_exitcode(status)
                report(self._status_fd, {"event": "exited", "code": self._engine.returncode})


def start_engine(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the engine in its own session, output to the guardian's standard error.

    On Linux the kernel kills it if the guardian dies. Raises OSError or ValueError.
    """
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        stderr=sys.stderr.fileno(),
        start_new_session=True,
        preexec_fn=death_signal_setter() if sys.platform == "linux" else None,
    )


def death_signal_setter() -> Callable[[], None]:
    """Make this process a child subreaper; return what a new child calls to die with it."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    guardian_pid = os.getpid()
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) was refused")

    def set_death_signal() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != guardian_pid:  # it died before the request; no signal will come
            os._exit(1)

    return set_death_signal


@dataclass(frozen=True, slots=True)
class Process:
    """One row of the process table."""

    pid: int
    parent_pid: int
    group: int
    is_zombie: bool


def live_descendants(root_pid: int, *, group: int) -> set[int]:
    """Return ``root_pid``'s descendants and ``group``'s members by pid, zombies left out."""
    children: dict[int, list[Process]] = {}
    found: set[int] = set()
    for process in process_table():
        children.setdefault(process.parent_pid, []).append(process)
        # On Linux every member is a descendant; elsewhere a group outlives its members' parents.
        if sys.platform != "linux" and process.group == group and not process.is_zombie:
            found.add(process.pid)
    waiting = [root_pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child.pid)
            if not child.is_zombie:
                found.add(child.pid)
    return found


def process_table() -> list[Process]:
    """Return every process of this host that can be seen."""
    if sys.platform != "linux":
        return process_table_from_ps()
    table = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = Path("/proc", name, "stat").read_bytes()
                # proc(5): "pid (comm) state ppid pgrp ..."; comm may hold spaces and parentheses.
                fields = stat.rpartition(b")")[2].split()
                state, parent_pid, group = fields[:3]
                # A main thread that has ended is a zombie while other threads still run and hold
                # memory, and its process cannot be reaped yet.
                is_zombie = state in (b"Z", b"X") and int(fields[NUM_THREADS_FIELD]) <= 1
                table.append(Process(int(name), int(parent_pid), int(group), is_zombie))
    return table


def process_table_from_ps() -> list[Process]:
    """Return the process table as ``ps`` prints it, without ``ps`` itself."""
    with subprocess.Popen(
        ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="], stdout=subprocess.PIPE, text=True
    ) as ps:
        output, _ = ps.communicate()
    rows = [line.split() for line in output.splitlines()]
    table = [Process(int(row[0]), int(row[1]), int(row[2]), row[3][0] == "Z") for row in rows]
    return [process for process in table if process.pid != ps.pid]


def group_of(pid: int) -> int | None:
    """Return a process's group, or None if it is gone."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def run_cleanup(description: Description) -> str | None:
    """Run the cleanup command, output to the log; return None, or why it did not succeed."""
    if not description.cleanup_command:
        return None
    try:
        subprocess.run(
            description.cleanup_command,
            env=description.environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            timeout=CLEANUP_TIMEOUT_S,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return str(error)
    return None


def report(status_fd: int, event: dict[str, object]) -> None:
    """Tell the parent; a parent that is gone is not an error."""
    with contextlib.suppress(BrokenPipeError):
        os.write(status_fd, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
