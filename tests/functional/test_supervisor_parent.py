"""However the supervising process ends, nothing that its engine started is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from fakes.process_trees import (
    STUBBORN_TREE,
    WAIT_FOR_A_SIGNAL,
    is_alive,
    log_of_pids,
    none_alive,
    python,
    wait_for_pids,
    wait_until,
)

import pytest_qperf

ROOT = Path(pytest_qperf.__file__).parents[1]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs a child subreaper")

# Supervises a command and waits; argv: log path, stop grace, command...
PARENT = """
import os, signal, sys
from pathlib import Path
from pytest_qperf.adapters.supervisor import handle_sigterm, supervise

with handle_sigterm(), supervise(
    sys.argv[3:], environment=dict(os.environ), log_path=Path(sys.argv[1]),
    stop_grace_s=float(sys.argv[2]),
):
    if "QPERF_TEST_FORK" in os.environ and os.fork() == 0:
        os.setsid()
        os.write(1, b"fork pid %d\\n" % os.getpid())
        signal.pause()
    os.write(1, b"supervising\\n")
    while True:
        signal.pause()
"""


@pytest.fixture
def log_path(tmp_path: Path) -> Iterator[Path]:
    yield from log_of_pids(tmp_path)


ParentStarter = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_parent(log_path: Path) -> Iterator[ParentStarter]:
    started: list[subprocess.Popen[str]] = []

    def start(
        command: Sequence[str], *, stop_grace_s: float = 0.2, **variables: str
    ) -> subprocess.Popen[str]:
        parent = subprocess.Popen(
            [*python(PARENT), str(log_path), str(stop_grace_s), *command],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(parent)
        return parent

    yield start
    for parent in started:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()


def stdout_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@linux_only
def test_a_parent_killed_by_sigkill_leaves_nothing_5_s_later(
    log_path: Path, start_parent: ParentStarter
) -> None:
    parent = start_parent(python(STUBBORN_TREE))
    pids = wait_for_pids(log_path)
    guardians = {psutil.Process(pid).ppid() for pid in pids} - pids
    parent.kill()
    wait_until(lambda: none_alive(pids | guardians), timeout_s=5)


@linux_only
def test_a_fork_of_the_killed_parent_does_not_keep_the_engine_alive(
    log_path: Path, start_parent: ParentStarter
) -> None:
    parent = start_parent(python(WAIT_FOR_A_SIGNAL), QPERF_TEST_FORK="1")
    lines = {stdout_line(parent), stdout_line(parent)}
    (forked_pid,) = (int(line.split()[-1]) for line in lines if line.startswith("fork"))
    try:
        (guardian,) = (
            child
            for child in psutil.Process(parent.pid).children()
            if "guardian.py" in " ".join(child.cmdline())
        )
        (engine,) = guardian.children()
        parent.kill()
        wait_until(lambda: none_alive({guardian.pid, engine.pid}), timeout_s=5)
        assert is_alive(forked_pid)
    finally:
        os.kill(forked_pid, signal.SIGKILL)


@linux_only
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_leave_nothing(
    number: signal.Signals, log_path: Path, start_parent: ParentStarter
) -> None:
    parent = start_parent(python(STUBBORN_TREE))
    pids = wait_for_pids(log_path)
    assert stdout_line(parent) == "supervising\n"
    parent.send_signal(number)
    assert parent.wait(timeout=10) != 0
    assert none_alive(pids)


@linux_only
def test_a_second_ctrl_c_during_a_long_grace_leaves_nothing(
    log_path: Path, start_parent: ParentStarter
) -> None:
    parent = start_parent(python(STUBBORN_TREE), stop_grace_s=60)
    pids = wait_for_pids(log_path)
    assert stdout_line(parent) == "supervising\n"
    parent.send_signal(signal.SIGINT)
    wait_until(lambda: log_path.read_text().count("SIGTERM") == 3)
    assert parent.poll() is None
    parent.send_signal(signal.SIGINT)
    assert parent.wait(timeout=10) != 0
    assert none_alive(pids)
