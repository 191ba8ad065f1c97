"""The Makefile's own messages, and what its targets would run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # These tests may themselves run under make, whose flags would otherwise reach this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment.pop("MFLAGS", None)
    return subprocess.run(
        ["make", *arguments], cwd=REPO, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("target", ["gate", "test"])
def test_a_missing_interpreter_is_named(tmp_path: Path, target: str) -> None:
    completed = make(target, f"VENV={tmp_path / 'venv'}", "PYTHON=no-such-python")
    assert completed.returncode != 0
    assert "expected a Python interpreter, got 'no-such-python'" in completed.stderr
    assert "make PYTHON=/path/to/python3.11" in completed.stderr
    assert not (tmp_path / "venv").exists()


def test_an_interpreter_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    old_python = tmp_path / "python"
    old_python.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 10, 4); $2"\n'
    )
    old_python.chmod(0o755)
    completed = make("gate", f"VENV={tmp_path / 'venv'}", f"PYTHON={old_python}")
    assert completed.returncode != 0
    assert f"expected Python 3.11 or newer, got 3.10 ({old_python})" in completed.stderr
    assert "make PYTHON=/path/to/python3.11" in completed.stderr
    assert not (tmp_path / "venv").exists()


def test_make_alone_lists_the_targets() -> None:
    completed = make()
    assert completed.returncode == 0
    for target in ("gate", "test", "lint", "clean"):
        assert f"  make {target} " in completed.stdout


def test_the_gate_runs_pytest_with_the_given_arguments(tmp_path: Path) -> None:
    completed = make("-n", "gate", f"VENV={tmp_path}", "ARGS=--qperf-rounds 2")
    assert completed.returncode == 0, completed.stderr
    last_line = completed.stdout.splitlines()[-1]
    assert last_line == (
        f"{tmp_path}/bin/python -m pytest --qperf --qperf-only engine_recipes --qperf-rounds 2"
    )


def test_an_environment_is_installed_again_only_when_the_project_file_is_newer(
    tmp_path: Path,
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip").touch()
    stamp = tmp_path / ".installed"
    stamp.touch()
    assert "pip install" not in make("-n", "gate", f"VENV={tmp_path}").stdout
    os.utime(stamp, (0, 0))
    assert "pip install" in make("-n", "gate", f"VENV={tmp_path}").stdout
