"""The wheel alone runs the embedded gate: recipes and plugin sources travel in it."""

import shutil
import zipfile
from pathlib import Path

import pytest
from fakes.gate_projects import GateProject

RATE = "generation_rate_mean_tokens_per_s"


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def empty(tmp_path: Path, qperf_cache: Path, unpacked: Path) -> GateProject:
    """An empty folder whose runs use the wheel's package."""
    (tmp_path / "empty").mkdir()
    return GateProject(tmp_path / "empty", qperf_cache, python_path=unpacked)


def test_the_wheels_recipes_are_found_in_an_empty_folder(
    empty: GateProject, unpacked: Path
) -> None:
    run = empty.gate("embedded", "--qperf-dry-run")
    assert run.exit_code == 0, run.output
    assert "candidate: embedded-fp8 (embedded): " in run.output
    unknown = empty.gate("nothing")
    assert f"(from *.yaml in {unpacked}/pytest_qperf/_data/engine_recipes/gates)" in unknown.output


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_wheel_builds_the_plugin_and_measures(empty: GateProject) -> None:
    run = empty.gate("embedded", "--qperf-rounds=1")
    kind, message = run.message(RATE)
    assert (run.exit_code, kind) == (1, "error")
    assert "INCONCLUSIVE: " in message, run.output
    assert "no bounds from one round" in message
    stored = empty.result("embedded")
    assert [measured["arm"] for measured in stored["runs"]] == ["baseline", "candidate"]
    assert stored["candidate"]["provenance"]["plugin_source"] == "plugins/fp8_gemm"
