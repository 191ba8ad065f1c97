"""Programs that start processes of their own, and how tests find and end these."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

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


def log_of_pids(tmp_path: Path) -> Iterator[Path]:
    """Yield a log's path; kill what said its pid there, should a test have failed to."""
    path = tmp_path / "engine.log"
    yield path
    for pid in pids_in(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
