"""Supervision of real processes: nothing that an engine started outlives its context."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fakes.process_trees import (
    STUBBORN_TREE,
    WAIT_FOR_A_SIGNAL,
    is_alive,
    log_of_pids,
    none_alive,
    pids_in,
    python,
    wait_for_pids,
    wait_until,
)

from pytest_qperf.adapters import guardian
from pytest_qperf.adapters.supervisor import (
    EngineProcess,
    Terminated,
    free_port,
    handle_sigterm,
    supervise,
)
from pytest_qperf.core.errors import EngineError

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs a child subreaper")


def guardian_of(engine: EngineProcess) -> psutil.Process:
    guardian = psutil.Process(engine.pid).parent()
    assert guardian is not None
    assert "guardian.py" in " ".join(guardian.cmdline())
    return guardian


@pytest.fixture
def log_path(tmp_path: Path) -> Iterator[Path]:
    yield from log_of_pids(tmp_path)


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


@linux_only
def test_an_engine_whose_main_thread_has_ended_is_ended_and_reaped(log_path: Path) -> None:
    # Its row in the process table says zombie, yet a thread still runs: the same as a moment in
    # every exit of a process with many threads.
    program = """
import ctypes, signal, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
    with supervise(
        python(program), environment=dict(os.environ), log_path=log_path, stop_grace_s=0.2
    ) as engine:
        process = psutil.Process(engine.pid)
        wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE)
        assert engine.exit_code() is None
    assert not psutil.pid_exists(engine.pid)
    assert engine.exit_code() == -signal.SIGKILL


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
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        with supervise(python(program), environment=dict(os.environ), log_path=log_path) as engine:
            wait_until(lambda: engine.exit_code() == 0)
    finally:
        signal.signal(signal.SIGHUP, previous)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
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


def test_processes_that_outlive_sigkill_are_an_error_naming_them(
    log_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "scripted.py"
    program.write_text("""
import os, sys
control_fd, status_fd = map(int, sys.argv[1:])
os.read(control_fd, 65536)
os.write(status_fd, b'{"event": "started", "pid": 4194305}\\n')
os.read(control_fd, 65536)
os.write(status_fd, b'{"event": "ended", "left": [4194306], "cleanup": null}\\n')
""")
    monkeypatch.setattr("pytest_qperf.adapters.supervisor.GUARDIAN_PROGRAM", program)
    complaint = r"engine process 4194305: expected its tree .* got live processes \[4194306\]; end"

    def fail() -> None:
        with supervise(["engine"], environment={}, log_path=log_path):
            raise RuntimeError("load failed")

    with (
        pytest.raises(EngineError, match=complaint),
        supervise(["engine"], environment={}, log_path=log_path),
    ):
        pass
    with pytest.raises(RuntimeError, match="load failed") as caught:
        fail()
    assert re.search(complaint, "".join(caught.value.__notes__))


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_without_proc_the_tree_is_read_from_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    child = subprocess.Popen(python(WAIT_FOR_A_SIGNAL), start_new_session=True)
    try:
        assert guardian.live_descendants(os.getpid(), group=child.pid) == {child.pid}
        assert guardian.live_descendants(child.pid, group=child.pid) == {child.pid}
        assert guardian.live_descendants(child.pid, group=os.getpgid(os.getpid())) >= {os.getpid()}
    finally:
        child.kill()
        child.wait()
    assert guardian.live_descendants(os.getpid(), group=child.pid) == set()


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
