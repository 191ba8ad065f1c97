"""The host-wide lock: exclusive, freed by death, and clear about who holds it."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.fake_nvml import FakeTime

import pytest_qperf
from pytest_qperf.adapters.gpu import Patience
from pytest_qperf.adapters.host_lock import hold_host_lock
from pytest_qperf.core.errors import EnvironmentUnfitError

HOLDER_PROGRAM = """
import sys
from pathlib import Path
from pytest_qperf.adapters.host_lock import hold_host_lock
with hold_host_lock("cpu", timeout_s=0, note=print, locks_dir=Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(locks_dir: Path) -> subprocess.Popen[str]:
    root = str(Path(pytest_qperf.__file__).parents[1])
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER_PROGRAM, str(locks_dir)],
        env={**os.environ, "PYTHONPATH": root},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def take(locks_dir: Path, *, timeout_s: float = 0, notes: list[str] | None = None) -> None:
    time = FakeTime()
    note = (notes if notes is not None else []).append
    patience = Patience(clock=time.clock, sleep=time.sleep, poll_s=1)
    with hold_host_lock(
        "cpu", timeout_s=timeout_s, note=note, locks_dir=locks_dir, patience=patience
    ):
        pass


def test_a_free_lock_is_taken_at_once_and_can_be_taken_again(tmp_path: Path) -> None:
    notes: list[str] = []
    take(tmp_path / "locks", notes=notes)
    take(tmp_path / "locks", notes=notes)
    assert notes == []


def test_every_user_can_write_folder_and_file_whatever_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o077)
    try:
        take(tmp_path / "locks")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "locks" / "cpu.lock").stat().st_mode) == 0o666


def test_different_resources_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with (
        hold_host_lock("cpu", timeout_s=0, note=print, locks_dir=tmp_path),
        hold_host_lock("GPU-aaaa", timeout_s=0, note=print, locks_dir=tmp_path),
    ):
        assert {path.name for path in tmp_path.iterdir()} == {"cpu.lock", "GPU-aaaa.lock"}


def test_a_timeout_names_the_holder_and_waiting_is_said_once_a_minute(tmp_path: Path) -> None:
    notes: list[str] = []
    with (
        hold_host_lock("cpu", timeout_s=0, note=print, locks_dir=tmp_path),
        pytest.raises(EnvironmentUnfitError) as caught,
    ):
        take(tmp_path, timeout_s=130, notes=notes)
    assert f"free within 130 s, got it held by pid {os.getpid()} (" in str(caught.value)
    assert len(notes) == 3  # at 0, 60 and 120 s
    assert notes[0].startswith(f"waiting for cpu, held by pid {os.getpid()} (")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_an_unreadable_holder_is_not_an_error_of_its_own(tmp_path: Path, content: str) -> None:
    with hold_host_lock("cpu", timeout_s=0, note=print, locks_dir=tmp_path):
        (tmp_path / "cpu.lock").write_text(content)
        with pytest.raises(EnvironmentUnfitError, match="has not written its name yet"):
            take(tmp_path)


def test_the_holder_is_json_with_pid_command_and_start(tmp_path: Path) -> None:
    (tmp_path / "cpu.lock").write_text("x" * 1000)
    with hold_host_lock("cpu", timeout_s=0, note=print, locks_dir=tmp_path):
        holder = json.loads((tmp_path / "cpu.lock").read_text())
    assert holder["pid"] == os.getpid()
    assert set(holder) == {"pid", "command", "since"}


def test_a_lock_of_another_process_is_waited_for_and_freed_by_sigkill(tmp_path: Path) -> None:
    with start_holder(tmp_path) as holder:
        with pytest.raises(EnvironmentUnfitError, match=f"held by pid {holder.pid} "):
            take(tmp_path)
        holder.kill()
        holder.wait()
    take(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a file of another user")
def test_a_file_that_another_user_made_can_be_locked(tmp_path: Path) -> None:
    take(tmp_path / "locks")
    os.chown(tmp_path / "locks" / "cpu.lock", 12345, 12345)
    take(tmp_path / "locks")


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match="expected a file that every user can write"):
        take(tmp_path / "absent" / "locks")


def test_a_symbolic_link_in_the_lock_s_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cpu.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentUnfitError, match=r"host lock .*cpu\.lock: expected a file"):
        take(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_resource_that_is_no_plain_name_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"expected letters, digits, .* got '../x'"),
        hold_host_lock("../x", timeout_s=0, note=print, locks_dir=tmp_path),
    ):
        pass
