"""Every option: its ini twin, what wins, and the message for each bad value."""

from pathlib import Path

import pytest

from pytest_qperf.options import OPTIONS, QperfOptions

# For each option: the field, an ini value and what it means, command-line values and their meaning.
# "{root}" is the folder of the ini file, "{here}" the one in which pytest was started.
TWINS: dict[str, tuple[str, str, object, list[str], object]] = {
    "--qperf": ("is_active", "true", True, ["--qperf"], True),
    "--qperf-gate": (
        "gates",
        "one\n gates/two.yaml",
        ("one", "{root}/gates/two.yaml"),
        ["--qperf-gate", "three", "--qperf-gate=./four.yaml"],
        ("three", "{here}/four.yaml"),
    ),
    "--qperf-only": ("is_only", "true", True, ["--qperf-only"], True),
    "--qperf-skip": ("is_skip", "true", True, ["--qperf-skip"], True),
    "--qperf-rounds": ("rounds", "3", 3, ["--qperf-rounds", "5"], 5),
    "--qperf-report": (
        "report_dir",
        "kept",
        "{root}/kept",
        ["--qperf-report", "new"],
        "{here}/new",
    ),
    "--qperf-recipes": (
        "recipe_dirs",
        "more",
        ("{root}/more",),
        ["--qperf-recipes=here"],
        ("{here}/here",),
    ),
    "--qperf-dry-run": ("is_dry_run", "true", True, ["--qperf-dry-run"], True),
    "--qperf-require-gpu": ("is_gpu_required", "true", True, ["--qperf-require-gpu"], True),
    "--qperf-inconclusive": (
        "inconclusive",
        "neutral",
        "neutral",
        ["--qperf-inconclusive=fail"],
        "fail",
    ),
    "--qperf-resume": ("resume_folder", "run", "{root}/run", ["--qperf-resume=run"], "{here}/run"),
    "--qperf-candidate-url": (
        "candidate_url",
        "http://a:1",
        "http://a:1",
        ["--qperf-candidate-url=https://b"],
        "https://b",
    ),
    "--qperf-baseline-url": (
        "baseline_url",
        "http://a:1",
        "http://a:1",
        ["--qperf-baseline-url=https://b"],
        "https://b",
    ),
    "--qperf-lock-timeout": ("lock_timeout_s", "9", 9, ["--qperf-lock-timeout=8"], 8),
}


@pytest.fixture
def below(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go into a folder below the ini file's, and return it."""
    (pytester.path / "more").mkdir()
    folder = pytester.mkdir("below")
    (folder / "here").mkdir()
    monkeypatch.chdir(folder)
    return folder


def read(pytester: pytest.Pytester, ini: str, *arguments: str) -> QperfOptions:
    pytester.makeini(f"[pytest]\n{ini}\n")
    return QperfOptions.from_pytest_config(pytester.parseconfig(*arguments))


def shown(value: object, root: Path) -> object:
    """Return a value as the table writes it."""
    if isinstance(value, tuple):
        return tuple(shown(entry, root) for entry in value)
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        return value.replace(f"{root}/below", "{here}").replace(str(root), "{root}")
    return value


@pytest.mark.parametrize("flag", [option.flag for option in OPTIONS])
def test_every_option_has_an_ini_twin_and_the_command_line_wins(
    pytester: pytest.Pytester, below: Path, flag: str
) -> None:
    field, ini, from_ini, arguments, from_command_line = TWINS[flag]
    key = flag.removeprefix("--").replace("-", "_")
    default = getattr(read(pytester, ""), field)
    assert shown(default, pytester.path) != from_ini
    by_ini = read(pytester, f"{key} = {ini}")
    assert shown(getattr(by_ini, field), pytester.path) == from_ini
    ini = "false" if from_ini is True else ini
    by_both = read(pytester, f"{key} = {ini}", *arguments)
    assert shown(getattr(by_both, field), pytester.path) == from_command_line
    assert below == Path.cwd()


def test_defaults_are_what_the_help_says(pytester: pytest.Pytester) -> None:
    options = read(pytester, "")
    assert not options.is_active
    assert (options.gates, options.rounds, options.inconclusive) == ((), None, "fail")
    assert options.report_dir == pytester.path / "qperf-report"
    assert options.lock_timeout_s == 3600


@pytest.mark.parametrize(
    ("ini", "message"),
    [
        ("qperf_rounds = 0", "--qperf-rounds: expected a whole number of 1 or more, got '0'"),
        ("qperf_rounds = x", "--qperf-rounds: expected a whole number of 1 or more, got 'x'"),
        (
            "qperf_lock_timeout = 1.5",
            "--qperf-lock-timeout: expected a whole number of 1 or more, got '1.5'",
        ),
        ("qperf_inconclusive = red", "--qperf-inconclusive: expected fail or neutral, got 'red'"),
        (
            "qperf_candidate_url = localhost:8000",
            "--qperf-candidate-url: expected http://HOST:PORT, got 'localhost:8000'",
        ),
        (
            "qperf_recipes = nowhere",
            "--qperf-recipes: expected a folder holding engines, workloads and gates, got "
            "'{root}/nowhere'",
        ),
        (
            "qperf = true\nqperf_only = true\nqperf_skip = true",
            "--qperf-only: expected without --qperf-skip, got both; nothing would run",
        ),
        (
            "qperf = true\nqperf_resume = nowhere",
            "--qperf-resume: expected a run folder, got '{root}/nowhere'; the interrupted run "
            "printed its folder",
        ),
        (
            "qperf = true\nqperf_resume = .\nqperf_gate = a\n b",
            "--qperf-resume: expected at most one --qperf-gate, got 2",
        ),
    ],
)
def test_a_bad_value_is_a_usage_error_naming_the_option(
    pytester: pytest.Pytester, ini: str, message: str
) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        read(pytester, ini)
    assert str(caught.value) == message.replace("{root}", str(pytester.path))


@pytest.mark.parametrize("arguments", [["--qperf-rounds=x"], ["--qperf-only", "--qperf-skip"]])
def test_a_usage_error_ends_the_run_before_anything_is_collected(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makepyfile("def test_own(): pass")
    result = pytester.runpytest_subprocess("--qperf", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --qperf-*: expected *, got *"])
    assert "collected" not in result.stdout.str()


@pytest.mark.parametrize(
    ("arguments", "ini", "message"),
    [
        (["-n", "2"], "", "ERROR: --qperf: expected no pytest-xdist, got -n 2; *"),
        (["--reruns", "1"], "", "ERROR: --qperf: expected no reruns, got 1; *"),
        (["--force-reruns", "1"], "", "ERROR: --qperf: expected no reruns, got 1; *"),
        ([], "reruns = 2", "ERROR: --qperf: expected no reruns, got 2; *"),
    ],
)
def test_parallel_and_repeated_gates_are_refused(
    pytester: pytest.Pytester, arguments: list[str], ini: str, message: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    result = pytester.runpytest_subprocess("--qperf", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_reruns_switched_off_on_the_command_line_are_no_reruns(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nreruns = 2\n")
    result = pytester.runpytest_subprocess(
        "--qperf", "--qperf-dry-run", "--qperf-gate=embedded", "--reruns=0"
    )
    result.assert_outcomes(skipped=2)
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize("arguments", [["-n", "2"], ["--reruns", "1"], ["-p", "xdist", "-n2"]])
def test_without_qperf_parallel_and_repeated_tests_run_as_ever(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makepyfile(
        """
        import pathlib

        def test_one():
            pass

        def test_fails_once():
            marker = pathlib.Path("ran")
            had_run = marker.exists()
            marker.touch()
            assert had_run or "--reruns" not in ARGUMENTS

        def test_lazy(candidate_engine):
            raise AssertionError("must be skipped")
        """.replace("ARGUMENTS", repr(arguments))
    )
    result = pytester.runpytest_subprocess("-rs", "-W", "error", *arguments)
    nouns = result.parseoutcomes()
    assert result.ret == pytest.ExitCode.OK
    assert (nouns["passed"], nouns["skipped"]) == (2, 1)
    assert nouns.get("rerun", 0) == (1 if "--reruns" in arguments else 0)
    result.stdout.fnmatch_lines(["SKIPPED * needs --qperf"])


def test_the_marker_is_known_without_qperf(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n\n@pytest.mark.qperf(gate='any')\ndef test_own():\n    pass\n"
    )
    result = pytester.runpytest_subprocess("--strict-markers")
    result.assert_outcomes(passed=1)
    markers = pytester.runpytest_subprocess("--markers")
    markers.stdout.fnmatch_lines(['@pytest.mark.qperf(gate="NAME"): *'])


def test_help_lists_every_option(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_subprocess("--help").stdout.str()
    for option in OPTIONS:
        assert f"  {option.flag}" in text
        assert f"  {option.name} (" in text
