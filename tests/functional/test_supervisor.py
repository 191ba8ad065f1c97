"""Supervision of real processes: whatever happens, nothing that an engine started is left."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import pytest_qperf
from pytest_qperf.adapters.supervisor import (
    EngineProcess,
    Terminated,
    free_port,
    handle_sigterm,
    supervise,
)
from pytest_qperf.core.errors import EngineError

ROOT = Path(pytest_qperf.__file__).parents[1]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs a child subreaper")

# Says "pid N" for itself and each process it starts; all of them answer SIGTERM with a line only.
STUBBORN_TREE = """
import os, signal

def say(text):  # one write a line, so that lines of several processes do not mix
    os.write(1, text.encode() + b"\\n")

def stay(role):
    signal.signal(signal.SIGTERM, lambda *_: say("SIGTERM"))
    say(f"{role} pid {os.getpid()}")
    while True:
        signal.pause()

if os.fork() == 0:
    stay("child")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        stay("daemon")
    os._exit(0)
os.wait()
stay("engine")
"""

WAIT_FOR_A_SIGNAL = "import signal; signal.pause()"

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


def wait_until(is_true: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end_s, f"not true within {timeout_s} s"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids_in(log_path: Path) -> set[int]:
    if not log_path.exists():
        return set()
    return {int(pid) for pid in re.findall(rb"pid (\d+)\n", log_path.read_bytes())}


def wait_for_pids(log_path: Path, num_pids: int = 3) -> set[int]:
    wait_until(lambda: len(pids_in(log_path)) == num_pids)
    pids = pids_in(log_path)
    assert all(is_alive(pid) for pid in pids)
    return pids


def none_alive(pids: set[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def guardian_of(engine: EngineProcess) -> psutil.Process:
    guardian = psutil.Process(engine.pid).parent()
    assert guardian is not None
    assert "guardian.py" in " ".join(guardian.cmdline())
    return guardian


@pytest.fixture
def log_path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "engine.log"
    yield path
    for pid in pids_in(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
def test_leaving_ends_children_and_daemons_that_ignore_sigterm(log_path: Path) -> None:
    with supervise(
        python(STUBBORN_TREE), environment=dict(os.environ), log_path=log_path, stop_grace_s=0.2
    ) as engine:
        pids = wait_for_pids(log_path)
        assert engine.pid in pids
        assert engine.descendants() == pids
        assert engine.exit_code() is None
    assert none_alive(pids)
    assert engine.exit_code() == -signal.SIGKILL
    assert engine.descendants() == set()


def test_an_engine_that_obeys_sigterm_is_given_the_time_to(log_path: Path) -> None:
    program = """
import signal, sys
def leave(*_):
    print("bye", flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
signal.pause()
"""
    with supervise(
        python(program), environment=dict(os.environ), log_path=log_path, stop_grace_s=30
    ) as engine:
        wait_until(lambda: "ready" in engine.log_tail())
    assert engine.exit_code() == 5
    assert engine.log_tail() == "ready\nbye"


def test_an_engine_that_dies_early_leaves_its_exit_code_and_log(log_path: Path) -> None:
    program = (
        "import sys; print(*range(50), sep=chr(10)); sys.stderr.write('no memory'); sys.exit(3)"
    )
    with supervise(python(program), environment=dict(os.environ), log_path=log_path) as engine:
        wait_until(lambda: engine.exit_code() is not None)
        assert engine.exit_code() == 3
        assert engine.log_tail(2) == "49\nno memory"
        assert len(engine.log_tail().splitlines()) == 40


@linux_only
def test_what_a_dead_engine_left_behind_is_ended(log_path: Path) -> None:
    program = STUBBORN_TREE.replace('stay("engine")', 'say(f"engine pid {os.getpid()}")')
    with supervise(
        python(program), environment=dict(os.environ), log_path=log_path, stop_grace_s=0.2
    ) as engine:
        wait_until(lambda: engine.exit_code() == 0 and len(pids_in(log_path)) == 3)
        orphans = pids_in(log_path) - {engine.pid}
        assert engine.descendants() == orphans
    assert none_alive(orphans)


def test_an_error_in_the_body_ends_the_engine_and_is_raised(log_path: Path) -> None:
    pids: set[int] = set()

    def run() -> None:
        with supervise(
            python(WAIT_FOR_A_SIGNAL), environment=dict(os.environ), log_path=log_path
        ) as engine:
            pids.update(engine.descendants())
            raise RuntimeError("load failed")

    with pytest.raises(RuntimeError, match="load failed"):
        run()
    assert len(pids) == 1
    assert none_alive(pids)


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


def test_only_the_standard_streams_are_open_in_the_engine(log_path: Path) -> None:
    program = """
import os
is_open = []
for fd in range(256):
    try:
        os.fstat(fd)
    except OSError:
        continue
    is_open.append(fd)
print(is_open)
"""
    leaky_fd = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leaky_fd, True)
    try:
        with supervise(python(program), environment=dict(os.environ), log_path=log_path) as engine:
            wait_until(lambda: engine.exit_code() == 0)
    finally:
        os.close(leaky_fd)
    assert engine.log_tail() == "[0, 1, 2]"


def test_the_environment_is_passed_exactly(log_path: Path) -> None:
    environment = {"LC_ALL": "C", "B": "two words", "A": "\N{SNOWMAN}\udcff", "EMPTY": ""}
    env = shutil.which("env")
    assert env is not None
    with supervise([env, "-0"], environment=environment, log_path=log_path) as engine:
        wait_until(lambda: engine.exit_code() == 0)
    variables = log_path.read_bytes().rstrip(b"\0").split(b"\0")
    assert sorted(variables) == sorted(os.fsencode(f"{k}={v}") for k, v in environment.items())


def test_signals_have_their_default_meaning_in_the_engine(log_path: Path) -> None:
    program = """
import signal
numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
print([signal.getsignal(number) is signal.SIG_IGN for number in numbers])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with supervise(python(program), environment=dict(os.environ), log_path=log_path) as engine:
            wait_until(lambda: engine.exit_code() == 0)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert engine.log_tail() == "[False, False, False]\nset()"


@linux_only
def test_the_engine_dies_with_its_guardian_and_both_are_reported(log_path: Path) -> None:
    # Without the guardian only what stayed in the engine's session can be found.
    program = STUBBORN_TREE.replace("    os.setsid()\n", "")
    pids: set[int] = set()

    def run() -> None:
        with supervise(python(program), environment=dict(os.environ), log_path=log_path) as engine:
            pids.update(wait_for_pids(log_path))
            guardian_of(engine).kill()
            wait_until(lambda: not is_alive(engine.pid))
            with pytest.raises(EngineError, match="expected it to outlive the engine"):
                engine.exit_code()

    with pytest.raises(EngineError, match="expected a report at its end, got none; killed what"):
        run()
    wait_until(lambda: none_alive(pids))


def test_sigterm_to_the_guardian_is_a_stop(log_path: Path) -> None:
    with supervise(
        python(WAIT_FOR_A_SIGNAL), environment=dict(os.environ), log_path=log_path
    ) as engine:
        guardian_of(engine).terminate()
        wait_until(lambda: engine.exit_code() is not None)
    assert engine.exit_code() == -signal.SIGTERM


def test_the_cleanup_command_runs_after_the_engine_is_gone(log_path: Path) -> None:
    with supervise(
        python("import signal; print('engine', flush=True); signal.pause()"),
        environment=dict(os.environ),
        log_path=log_path,
        cleanup_command=python("print('cleaned')"),
    ) as engine:
        wait_until(lambda: "engine" in engine.log_tail())
    assert engine.log_tail() == "engine\ncleaned"


def test_a_cleanup_command_that_fails_is_an_error(log_path: Path) -> None:
    with (
        pytest.raises(EngineError, match=r"engine's cleanup command: expected success, got .*7"),
        supervise(
            python(WAIT_FOR_A_SIGNAL),
            environment=dict(os.environ),
            log_path=log_path,
            cleanup_command=python("raise SystemExit(7)"),
        ),
    ):
        pass


def test_a_command_that_cannot_be_started_is_named(log_path: Path) -> None:
    with (
        pytest.raises(
            EngineError,
            match=r"^/no/such/program: expected a program that can be started, got .*No such file",
        ),
        supervise(["/no/such/program"], environment={}, log_path=log_path),
    ):
        pass


def test_an_empty_command_is_refused(log_path: Path) -> None:
    with (
        pytest.raises(EngineError, match="expected a program and its arguments, got nothing"),
        supervise([], environment={}, log_path=log_path),
    ):
        pass


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match=r"expected a file that can be written, got No such file"),
        supervise(["true"], environment={}, log_path=tmp_path / "absent" / "engine.log"),
    ):
        pass


def test_a_guardian_that_does_not_report_is_an_error(
    log_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "broken.py"
    program.write_text("raise SystemExit('broken')")
    monkeypatch.setattr("pytest_qperf.adapters.supervisor.GUARDIAN_PROGRAM", program)
    with (
        pytest.raises(EngineError, match="guardian of true: expected a report within 30 s"),
        supervise(["true"], environment={}, log_path=log_path),
    ):
        pass


def test_a_free_port_can_be_bound() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_sigterm_becomes_an_exception_and_the_old_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def run() -> None:
        with handle_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: False)

    with pytest.raises(Terminated):
        run()
    assert signal.getsignal(signal.SIGTERM) is before
