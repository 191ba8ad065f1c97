"""Small projects whose gates measure tiny embedded engines, and runs of pytest in them.

A tiny engine computes a token in less time than a busy client needs to read one, so each of its
decoding steps is made to last ``step_s``: rates and verdicts then follow from the recipes.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from junitparser import Properties, TestCase
from junitparser.xunit2 import JUnitXml

from fakes.process_trees import wait_until

# Runs in the engine's interpreter, put there by the recipe's `environment`.
STEP_DELAY = """
import os, time
from pytest_qperf.embedded.scheduler import Scheduler

decode = Scheduler.decode

def decode_slowly(self):
    if self.has_work:
        time.sleep(float(os.environ["STEP_S"]))
    return decode(self)

Scheduler.decode = decode_slowly
"""
STEP_S = 0.005
# With two rounds a bound lies many standard errors off, and a busy host adds some more.
PASSING = {"max_ratio_to_baseline": 1_000_000.0}
SUMMARY_NAMES = ("passed", "failed", "errors", "skipped", "deselected")
RUN_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class PytestRun:
    """An ended run of pytest; ``exit_code`` is negative for a signal."""

    exit_code: int
    output: str
    junit_path: Path

    def cases(self) -> dict[str, TestCase]:
        """Return the JUnit cases by name; every name must be there once."""
        cases = [case for suite in JUnitXml.fromfile(str(self.junit_path)) for case in suite]
        by_name = {case.name: case for case in cases}
        assert len(by_name) == len(cases), [case.name for case in cases]
        return by_name

    def properties(self, name: str) -> dict[str, str]:
        """Return a case's properties."""
        case = self.cases()[name]
        children: Any = case.iterchildren  # this part of junitparser is untyped
        (listed,) = children(Properties)
        return {f"{entry.name}": f"{entry.value}" for entry in listed}

    def message(self, name: str) -> tuple[str, str]:
        """Return the kind of a case's one result (failure, error, skipped) and its message."""
        (result,) = self.cases()[name].result
        return type(result).__name__.lower(), f"{result.message}"


@dataclass(frozen=True, slots=True)
class GateProject:
    """A folder with ``engine_recipes``; its runs keep checkpoints and libraries in ``cache``.

    ``python_path`` holds the package to run instead of the installed one.
    """

    folder: Path
    cache: Path
    python_path: Path | None = None

    @property
    def recipes(self) -> Path:
        return self.folder / "engine_recipes"

    def write_recipe(self, path: str, values: dict[str, Any]) -> Path:
        target = self.recipes / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return target

    def write_engine(self, name: str, *, step_s: float = STEP_S, **changes: object) -> None:
        values: dict[str, Any] = {
            "description": "a tiny engine",
            "kind": "embedded",
            "precision": "fp32",
            "model": {"synthetic": "qwen2-tiny", "quantization": "fp8-dynamic", "seed": 0},
            "num_threads": 1,
            "max_batch_size": 2,
            "ready_timeout_s": 30.0,
            "environment": {"PYTHONPATH": str(self.folder / "engine_site"), "STEP_S": f"{step_s}"},
        }
        self.write_recipe(f"engines/{name}.yaml", values | changes)

    def write_workload(self, name: str, **changes: object) -> None:
        values: dict[str, Any] = {
            "description": "two waves of two requests",
            "isl_tokens": 8,
            "osl_tokens": 8,
            "concurrency": 2,
            "num_requests": 4,
            "arrival": "burst",
            "prompts": {"source": "random_tokens", "min_token_id": 1, "max_token_id": 500},
            "seed": 0,
        }
        self.write_recipe(f"workloads/{name}.yaml", values | changes)

    def write_gate(self, name: str, **changes: object) -> Path:
        values: dict[str, Any] = {
            "description": f"the {name} gate",
            "candidate": "fast",
            "baseline": "steady",
            "workload": "tiny",
            "rounds": 2,
            "thresholds": {"ttft_mean_s": PASSING},
        }
        return self.write_recipe(f"gates/{name}.yaml", values | changes)

    def write_test(self, text: str, name: str = "test_own.py") -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name[:7] != "PYTEST_"}
        if self.python_path is not None:
            kept["PYTHONPATH"] = str(self.python_path)
        return kept | {"XDG_CACHE_HOME": str(self.cache), "COLUMNS": "200"}

    def start(self, *arguments: str, output: Path) -> "subprocess.Popen[bytes]":
        with output.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "pytest", *arguments],
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def pytest(self, *arguments: str) -> PytestRun:
        """Run pytest in the folder to its end."""
        output, junit = self.folder / "output.txt", self.folder / "junit.xml"
        junit.unlink(missing_ok=True)
        process = self.start("--junitxml", str(junit), *arguments, output=output)
        try:
            code = process.wait(RUN_TIMEOUT_S)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return PytestRun(code, output.read_text(encoding="utf-8", errors="replace"), junit)

    def gate(self, name: str, *arguments: str) -> PytestRun:
        """Run pytest with one gate."""
        return self.pytest("--qperf", "--qperf-gate", name, *arguments)

    def run_folders(self, gate: str) -> list[Path]:
        return sorted((self.folder / "qperf-report" / gate).glob("*Z"))

    def result(self, gate: str) -> dict[str, Any]:
        """Return the stored result of the gate's one run."""
        (folder,) = self.run_folders(gate)
        stored: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return stored

    def engine_pids(self) -> set[int]:
        """Return the pids of live embedded engines that serve a checkpoint from the cache."""
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                line = " ".join(process.cmdline())
                if "pytest_qperf.embedded" in line and str(self.cache) in line:
                    found.add(process.pid)
        return found

    def engine_starts(self) -> list[str]:
        """Return the names of the logs of every engine that fixtures started, in order."""
        logs = (self.folder / "qperf-report" / "fixtures" / "logs").glob("*.log")
        return sorted(path.stem for path in logs)

    @contextmanager
    def interrupted(
        self, gate: str, number: signal.Signals, *arguments: str, after: str
    ) -> Iterator[PytestRun]:
        """Signal a gate's pytest while an engine runs, once ``after`` is in its run folder.

        Yields the run once pytest has ended. On leaving, every engine is gone, whatever was found.
        """
        output = self.folder / "interrupted.txt"
        process = self.start("--qperf", "--qperf-gate", gate, *arguments, output=output)
        try:
            wait_until(
                lambda: any((run / after).exists() for run in self.run_folders(gate)),
                timeout_s=30.0,
            )
            wait_until(lambda: bool(self.engine_pids()))
            process.send_signal(number)
            code = process.wait(30.0)
            yield PytestRun(code, output.read_text(encoding="utf-8"), output)
        finally:
            process.kill()
            process.wait()
            for pid in self.engine_pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def new_gate_project(folder: Path, cache: Path) -> GateProject:
    """Write a project with engines fast, steady and slow, and the gates that end in each way."""
    project = GateProject(folder, cache)
    site = folder / "engine_site"
    site.mkdir(parents=True)
    (site / "sitecustomize.py").write_text(STEP_DELAY, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    for name, step_s in {"fast": STEP_S, "steady": STEP_S, "slow": 6 * STEP_S}.items():
        project.write_engine(name, step_s=step_s)
    project.write_engine("liar", expect={"linear_backend": "fp8-gemm"})
    project.write_workload("tiny")
    project.write_gate("good")
    # About a sixth of the baseline's rate; TTFT has a limit that nothing breaks.
    rate = {"generation_rate_mean_tokens_per_s": {"min_ratio_to_baseline": 0.5}}
    project.write_gate("slowed", candidate="slow", thresholds={**rate, "ttft_mean_s": PASSING})
    project.write_gate("undecided", rounds=1)  # one round has no bounds
    project.write_gate("unfit", baseline="liar", thresholds={"ttft_mean_s": PASSING, **rate})
    return project
