"""Projects with gates, which share one cache of checkpoints; the wheel that a release would be."""

import subprocess
import sys
from pathlib import Path

import pytest
from fakes.gate_projects import GateProject, new_gate_project

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def qperf_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("qperf-cache")


@pytest.fixture
def project(tmp_path: Path, qperf_cache: Path) -> GateProject:
    return new_gate_project(tmp_path / "project", qperf_cache)


@pytest.fixture(scope="module")
def module_project(tmp_path_factory: pytest.TempPathFactory, qperf_cache: Path) -> GateProject:
    """Give one project to all tests of a module, for runs that several tests look at."""
    return new_gate_project(tmp_path_factory.mktemp("module") / "project", qperf_cache)


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with an sdist, and a wheel built from that sdist as a release's is."""
    out = tmp_path_factory.mktemp("dist")
    completed = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(REPO)],
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return out


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> Path:
    (path,) = distributions.glob("*.whl")
    return path
