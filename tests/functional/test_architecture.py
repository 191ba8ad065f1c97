"""The layers hold, and the check that says so can fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(LINT_IMPORTS), "--no-cache"],
        cwd=tree,
        env=os.environ | {"COLUMNS": "200"},  # else long lines wrap, between any two words
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    shutil.copytree(
        REPO / "pytest_qperf",
        tmp_path / "pytest_qperf",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return tmp_path


def test_imports_follow_the_layers() -> None:
    completed = lint_imports(REPO)
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("core", "pytest_qperf.adapters"),
        ("core", "asyncio"),
        ("checkpoint", "pytest_qperf.embedded"),
        ("adapters", "pytest_qperf.report"),
        ("adapters", "pytest_qperf.pipeline"),
    ],
)
def test_an_import_against_the_layers_is_found(
    copied_tree: Path, importer: str, imported: str
) -> None:
    violation = copied_tree / "pytest_qperf" / importer / "violation.py"
    violation.write_text(f"import {imported}\n")
    completed = lint_imports(copied_tree)
    assert completed.returncode != 0
    assert f"pytest_qperf.{importer}.violation -> {imported}" in completed.stdout
