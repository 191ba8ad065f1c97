"""The plugin's options: declared, read and checked here and nowhere else.

Imports pytest and the standard library only: this is loaded in every pytest run.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

Inconclusive = Literal["fail", "neutral"]
DEFAULT_REPORT_DIR = "qperf-report"
DEFAULT_LOCK_TIMEOUT_S = 3600
FIXTURES = frozenset(
    {
        "qperf_gate",
        "qperf_workload",
        "qperf_comparison",
        "candidate_engine",
        "baseline_engine",
        "trtllm_engine",
        "vllm_baseline",
    }
)


@dataclass(frozen=True, slots=True)
class _Option:
    """One command-line option and its ini twin: ``--qperf-x-y`` is ``qperf_x_y`` in the ini file.

    ``ini`` is pytest's ini type; a bool is a flag on the command line.
    """

    flag: str
    ini: Literal["bool", "string", "linelist"]
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


OPTIONS = (
    _Option("--qperf", "bool", "Run performance gates and tests that use qperf's fixtures"),
    _Option(
        "--qperf-gate",
        "linelist",
        "Gate to run, by name or path of its YAML file (repeatable; default: every gate whose "
        "hardware is here)",
        metavar="NAME|PATH",
    ),
    _Option("--qperf-only", "bool", "Run nothing but gates and tests that use qperf's fixtures"),
    _Option("--qperf-skip", "bool", "Run neither gates nor tests that use qperf's fixtures"),
    _Option("--qperf-rounds", "string", "Rounds for each gate, instead of its recipe's", "N"),
    _Option(
        "--qperf-report", "string", f"Folder for results (default: {DEFAULT_REPORT_DIR})", "DIR"
    ),
    _Option("--qperf-recipes", "linelist", "Further folder of recipes (repeatable)", "DIR"),
    _Option(
        "--qperf-dry-run", "bool", "Check recipes and hardware and show the plan; start nothing"
    ),
    _Option("--qperf-require-gpu", "bool", "A gate whose GPU is not here is an error"),
    _Option(
        "--qperf-inconclusive",
        "string",
        "What an undecided gate is: an error (fail, the default) or a skip (neutral)",
        choices=get_args(Inconclusive),
    ),
    _Option("--qperf-resume", "string", "Run folder of an interrupted gate to go on with", "DIR"),
    _Option(
        "--qperf-candidate-url",
        "string",
        "Measure this running server as the candidate (figures without a verdict)",
        "URL",
    ),
    _Option(
        "--qperf-baseline-url",
        "string",
        "Measure this running server as the baseline (figures without a verdict)",
        "URL",
    ),
    _Option(
        "--qperf-lock-timeout",
        "string",
        f"Seconds to wait for the host's GPU lock (default: {DEFAULT_LOCK_TIMEOUT_S})",
        "SECONDS",
    ),
)


@dataclass(frozen=True, slots=True)
class QperfOptions:
    """The options of one pytest run, checked. ``rounds`` None: as each gate's recipe says."""

    is_active: bool
    gates: tuple[str, ...]
    is_only: bool
    is_skip: bool
    rounds: int | None
    report_dir: Path
    recipe_dirs: tuple[Path, ...]
    is_dry_run: bool
    is_gpu_required: bool
    inconclusive: Inconclusive
    resume_folder: Path | None
    candidate_url: str | None
    baseline_url: str | None
    lock_timeout_s: int

    @classmethod
    def from_pytest_config(cls, config: pytest.Config) -> "QperfOptions":
        """Return the options; the command line wins over the ini file.

        Raises pytest.UsageError naming the option, for a bad value or options that contradict.
        """
        read = _Reader(config)
        options = cls(
            is_active=read.flag("--qperf"),
            gates=tuple(read.names_or_paths("--qperf-gate")),
            is_only=read.flag("--qperf-only"),
            is_skip=read.flag("--qperf-skip"),
            rounds=read.positive_int("--qperf-rounds"),
            report_dir=read.folder("--qperf-report") or config.rootpath / DEFAULT_REPORT_DIR,
            recipe_dirs=tuple(read.existing_folders("--qperf-recipes")),
            is_dry_run=read.flag("--qperf-dry-run"),
            is_gpu_required=read.flag("--qperf-require-gpu"),
            inconclusive=read.inconclusive("--qperf-inconclusive"),
            resume_folder=read.folder("--qperf-resume"),
            candidate_url=read.url("--qperf-candidate-url"),
            baseline_url=read.url("--qperf-baseline-url"),
            lock_timeout_s=read.positive_int("--qperf-lock-timeout") or DEFAULT_LOCK_TIMEOUT_S,
        )
        if options.is_active:
            _refuse_contradictions(options)
        return options


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and its ini twin."""
    group = parser.getgroup("qperf", "performance gates for inference engines")
    for option in OPTIONS:
        if option.ini == "bool":
            group.addoption(option.flag, action="store_true", default=None, help=option.help)
        else:
            group.addoption(
                option.flag,
                action="append" if option.ini == "linelist" else "store",
                default=None,
                metavar=option.metavar,
                choices=option.choices,
                help=option.help,
            )
        # No default: an ini value that was never given must be told apart from an empty one.
        parser.addini(option.name, option.help, type=option.ini, default=None)


def refuse_incompatible_plugins(config: pytest.Config) -> None:
    """Raise pytest.UsageError if tests are spread over processes or run again on failure.

    Parallel work disturbs a measurement; a gate that is repeated until green has no error rate.
    """
    num_processes = config.getoption("numprocesses", None)
    if num_processes or config.getoption("dist", "no") != "no" or hasattr(config, "workerinput"):
        raise pytest.UsageError(
            f"--qperf: expected no pytest-xdist, got -n {num_processes}; a gate measures alone on "
            "its host: run it without -n"
        )
    reruns = _num_reruns(config)
    if reruns:
        raise pytest.UsageError(
            f"--qperf: expected no reruns, got {reruns}; repeating a gate until it is "
            "green defeats it: raise its rounds instead"
        )


def _num_reruns(config: pytest.Config) -> int | None:
    """Return how often pytest-rerunfailures would repeat a test, None if it is not here or idle."""
    for option in ("force_reruns", "reruns"):
        given: int | None = config.getoption(option, None)
        if given is not None:
            return given
    try:
        ini = config.getini("reruns")
    except ValueError:  # no such plugin
        return None
    return int(ini) if ini else None


def _refuse_contradictions(options: QperfOptions) -> None:
    if options.is_only and options.is_skip:
        raise pytest.UsageError(
            "--qperf-only: expected without --qperf-skip, got both; nothing would run"
        )
    if options.resume_folder is not None and len(options.gates) > 1:
        raise pytest.UsageError(
            f"--qperf-resume: expected at most one --qperf-gate, got {len(options.gates)}"
        )
    if options.resume_folder is not None and not options.resume_folder.is_dir():
        raise pytest.UsageError(
            f"--qperf-resume: expected a run folder, got {str(options.resume_folder)!r}; "
            "the interrupted run printed its folder"
        )


class _Reader:
    """Reads one option from the command line or else from the ini file."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def _value(self, flag: str) -> Any:
        name = flag.removeprefix("--").replace("-", "_")
        given = self._config.getoption(name)
        return given if given is not None else self._config.getini(name)

    def _start_of_paths(self, flag: str) -> Path:
        """Return where a path starts: the current folder for a command line, else the rootdir."""
        name = flag.removeprefix("--").replace("-", "_")
        is_given = self._config.getoption(name) is not None
        return self._config.invocation_params.dir if is_given else self._config.rootpath

    def flag(self, flag: str) -> bool:
        return bool(self._value(flag))

    def many(self, flag: str) -> list[str]:
        return list(self._value(flag) or [])

    def text(self, flag: str) -> str | None:
        value = self._value(flag)
        return str(value) if value not in (None, "") else None

    def positive_int(self, flag: str) -> int | None:
        text = self.text(flag)
        if text is None:
            return None
        if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
            raise pytest.UsageError(f"{flag}: expected a whole number of 1 or more, got {text!r}")
        return int(text)

    def folder(self, flag: str) -> Path | None:
        text = self.text(flag)
        return None if text is None else self._start_of_paths(flag) / text

    def names_or_paths(self, flag: str) -> list[str]:
        start = self._start_of_paths(flag)
        return [
            str(start / text) if "/" in text or text.endswith((".yaml", ".yml")) else text
            for text in self.many(flag)
        ]

    def existing_folders(self, flag: str) -> list[Path]:
        folders = [self._start_of_paths(flag) / text for text in self.many(flag)]
        for folder in folders:
            if not folder.is_dir():
                raise pytest.UsageError(
                    f"{flag}: expected a folder holding engines, workloads and gates, "
                    f"got {str(folder)!r}"
                )
        return folders

    def inconclusive(self, flag: str) -> Inconclusive:
        text = self.text(flag)
        if text is None or text == "fail":
            return "fail"
        if text == "neutral":
            return "neutral"
        raise pytest.UsageError(f"{flag}: expected fail or neutral, got {text!r}")

    def url(self, flag: str) -> str | None:
        text = self.text(flag)
        if text is not None and not re.fullmatch(r"https?://\S+", text):
            raise pytest.UsageError(f"{flag}: expected http://HOST:PORT, got {text!r}")
        return text
