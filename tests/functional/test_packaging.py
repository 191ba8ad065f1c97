"""The wheel holds what an installed gate needs, and nothing else."""

import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
TRAVELLING = {"engine_recipes": {".yaml", ".json"}, "plugins": {".cpp", ".cu", ".h"}}


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("folder", TRAVELLING)
def test_recipes_and_plugin_sources_travel_in_the_wheel(wheel_names: set[str], folder: str) -> None:
    sources = {
        f"pytest_qperf/_data/{path.relative_to(REPO).as_posix()}"
        for path in (REPO / folder).rglob("*")
        if path.suffix in TRAVELLING[folder]
    }
    assert sources
    assert sources <= wheel_names


def test_the_type_marker_and_the_licence_travel_in_the_wheel(wheel_names: set[str]) -> None:
    assert "pytest_qperf/py.typed" in wheel_names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)


def test_the_wheel_holds_every_module_and_only_the_package(wheel_names: set[str]) -> None:
    modules = {path.relative_to(REPO).as_posix() for path in (REPO / "pytest_qperf").rglob("*.py")}
    assert modules <= wheel_names
    tops = {name.partition("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pytest_qperf"}


def test_no_tests_and_no_build_outputs_travel_in_the_wheel(wheel_names: set[str]) -> None:
    unwanted = {
        name
        for name in wheel_names
        if "tests" in Path(name).parts
        or Path(name).name.startswith(("test_", "conftest"))
        or Path(name).suffix in {".so", ".o", ".pyc"}
    }
    assert unwanted == set()


def test_the_wheel_registers_the_plugin_and_the_command(wheel: Path, wheel_names: set[str]) -> None:
    (name,) = (name for name in wheel_names if name.endswith(".dist-info/entry_points.txt"))
    entry_points = ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        entry_points.read_string(archive.read(name).decode())
    assert dict(entry_points["pytest11"]) == {"qperf": "pytest_qperf.plugin"}
    assert dict(entry_points["console_scripts"]) == {"qperf": "pytest_qperf.cli:main"}


def test_the_sdist_holds_the_tests(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/conftest.py", "Makefile", "LICENSE", "CHANGELOG.md"} <= names
