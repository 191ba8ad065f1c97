"""What a pytest run pays for having this package installed: the modules its plugin imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTEST_AND_ITS_DEPENDENCIES = {
    "pytest",
    "_pytest",
    "py",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
}
OWN_MODULES = {"pytest_qperf", "pytest_qperf.plugin", "pytest_qperf.options"}
HEAVY = (
    "aiohttp",
    "filelock",
    "numpy",
    "platformdirs",
    "psutil",
    "pydantic",
    "pynvml",
    "scipy",
    "yaml",
)

PROBE = """
import json, sys
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def modules_loaded_by(module: str) -> set[str]:
    """Return the modules that importing one module adds to a fresh interpreter."""
    completed = subprocess.run(
        [sys.executable, "-c", PROBE.format(module=module)],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(json.loads(completed.stdout))


def strangers(modules: set[str]) -> set[str]:
    """Return top-level names that are neither ours, nor pytest's, nor the standard library's."""
    allowed = PYTEST_AND_ITS_DEPENDENCIES | sys.stdlib_module_names | {"pytest_qperf"}
    return {module.partition(".")[0] for module in modules} - allowed


@pytest.fixture(scope="module")
def plugin_modules() -> set[str]:
    return modules_loaded_by("pytest_qperf.plugin")


def test_the_plugin_imports_only_pytest_and_the_standard_library(plugin_modules: set[str]) -> None:
    assert strangers(plugin_modules) == set()


def test_the_plugin_imports_no_other_module_of_this_package(plugin_modules: set[str]) -> None:
    own = {module for module in plugin_modules if module.partition(".")[0] == "pytest_qperf"}
    assert own <= OWN_MODULES
    assert "pytest_qperf.plugin" in own


@pytest.mark.parametrize("module", ["yaml", "pytest_qperf.core.recipe"])
def test_the_probe_sees_a_heavy_import(module: str) -> None:
    assert strangers(modules_loaded_by(module)) & set(HEAVY)


def test_a_run_without_qperf_loads_nothing_heavy(tmp_path: Path) -> None:
    test_file = tmp_path / "test_loaded.py"
    test_file.write_text(
        "import sys\n\n"
        "def test_loaded(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.hasplugin('pytest_qperf.plugin')\n"
        f"    assert [name for name in {HEAVY!r} if name in sys.modules] == []\n"
    )
    # Other installed plugins import what they like; only this one is on trial.
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_qperf.plugin", str(test_file)],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
