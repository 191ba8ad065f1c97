"""Which gates a run is about, and what it says of those that it leaves out; nothing is started."""

import re
from pathlib import Path

import pytest
from fakes.gate_projects import GateProject, PytestRun

GPU = {"gpu": "No Such GPU 9000"}
OWN_TESTS = """
import sys

def test_plain():
    assert [name for name in ("numpy", "pydantic", "aiohttp") if name in sys.modules] == []

def test_with_fixture(candidate_engine):
    raise AssertionError("must not run")
"""


@pytest.fixture
def gates(project: GateProject) -> GateProject:
    """A project that shows plans only."""
    (project.folder / "pytest.ini").write_text("[pytest]\nqperf_dry_run = true\n")
    return project


def names(run: PytestRun) -> list[str]:
    """Return the names of the selected gates, as the run shows them."""
    (line,) = re.findall(r"(?m)^qperf: gates: (.*)$", run.output)
    return [] if line == "none" else str(line).split(", ")


def test_without_qperf_there_are_no_gates_and_fixtures_are_skipped(project: GateProject) -> None:
    project.write_test(OWN_TESTS)
    # Other installed plugins import what they like; only this one is on trial.
    run = project.pytest("-rs", "-p", "no:platformdirs", "-p", "no:hypothesispytest")
    assert run.exit_code == 0, run.output
    assert set(run.cases()) == {"test_plain", "test_with_fixture"}
    assert run.message("test_with_fixture") == ("skipped", "needs --qperf")
    assert "qperf:" not in run.output


def test_a_dry_run_shows_the_plan_and_starts_nothing(gates: GateProject) -> None:
    run = gates.gate("slowed")
    assert run.exit_code == 0
    assert "2 skipped" in run.output
    assert run.message("ttft_mean_s") == ("skipped", "dry run: nothing was measured")
    for line in (
        "slowed: the slowed gate",
        "  candidate: slow (embedded): a tiny engine",
        "  baseline: steady (embedded): a tiny engine",
        "  workload: tiny: 8 tokens in, 8 out, 2 in flight, 4 requests, burst",
        "  2 rounds, a fresh engine for each of 4 runs: A B B A (A baseline, B candidate)",
        "  requires generation_rate_mean_tokens_per_s: min_ratio_to_baseline 0.5",
        "  requires ttft_mean_s: max_ratio_to_baseline 1e+06",
    ):
        assert line in run.output.splitlines()
    assert not (gates.folder / "qperf-report").exists()


def test_rounds_of_the_option_replace_the_recipes(gates: GateProject) -> None:
    run = gates.gate("slowed", "--qperf-rounds", "3")
    assert "  3 rounds, a fresh engine for each of 6 runs: A B B A A B " in run.output


def test_with_no_gate_named_those_run_whose_hardware_is_here(gates: GateProject) -> None:
    gates.write_gate("of-a-gpu", hardware=GPU)
    run = gates.pytest("--qperf")
    assert run.exit_code == 0
    # The project's own gates, and the one that travels with the package.
    assert {"embedded", "good", "slowed", "undecided", "unfit"} <= set(names(run))
    assert "of-a-gpu" not in names(run)
    reason = r"expected GPU 'No Such GPU 9000'|expected .*, got none|No Such GPU 9000"
    listed = re.findall(r"(?m)^(?:qperf: not run: )?of-a-gpu: (?:not run: )?(.*)$", run.output)
    assert len(listed) == 2  # before the tests and in the summary
    assert all(re.search(reason, line) for line in listed)


def test_a_gate_whose_gpu_is_not_here_is_an_error_where_required(gates: GateProject) -> None:
    gates.write_gate("of-a-gpu", hardware=GPU)
    run = gates.pytest("--qperf", "--qperf-require-gpu", "--qperf-only", "-k", "of-a-gpu")
    assert run.exit_code == 1
    kind, message = run.message("recipe")
    assert kind == "error"
    assert "--qperf-require-gpu: " in message
    assert "No Such GPU 9000" in message


def test_a_named_gate_whose_gpu_is_not_here_is_an_error(project: GateProject) -> None:
    project.write_gate("of-a-gpu", hardware=GPU)
    run = project.gate("of-a-gpu")
    kind, message = run.message("ttft_mean_s")
    assert (run.exit_code, kind) == (1, "error")
    assert "INVALID: " in message
    assert "No Such GPU 9000" in message


def test_gates_are_named_by_name_and_path_each_once(gates: GateProject) -> None:
    elsewhere = gates.write_gate("elsewhere").rename(gates.folder / "elsewhere.yaml")
    run = gates.gate(
        "good", "--qperf-gate", "elsewhere.yaml", "--qperf-gate", "engine_recipes/gates/good.yaml"
    )
    assert run.exit_code == 0, run.output
    assert names(run) == ["good", "elsewhere"]
    assert "collected 2 items" in run.output
    assert elsewhere.is_file()


def test_two_files_of_one_name_are_a_usage_error(gates: GateProject) -> None:
    second = gates.folder / "good.yaml"
    second.write_text((gates.recipes / "gates" / "good.yaml").read_text())
    run = gates.gate("good", "--qperf-gate", "./good.yaml")
    assert run.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --qperf-gate: expected gates of different names, got " in run.output


def test_an_unknown_gate_is_a_usage_error_with_the_nearest_name(gates: GateProject) -> None:
    run = gates.gate("slowd")
    assert run.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: gate 'slowd': expected the name of a gate recipe, got 'slowd'; " in run.output
    assert "did you mean 'slowed'?" in run.output


def test_a_path_without_a_file_is_an_error_naming_it(gates: GateProject) -> None:
    run = gates.gate("gates/nothing.yaml")
    assert run.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "gates/nothing.yaml: expected a readable recipe file, got: No such file" in run.output


def test_a_recipe_that_is_wrong_is_an_error_with_its_position(gates: GateProject) -> None:
    path = gates.recipes / "gates" / "good.yaml"
    path.write_text(path.read_text().replace("rounds: 2", "round: 2"))
    run = gates.pytest("--qperf", "--qperf-only", "-k", "good")
    assert run.exit_code == 1
    kind, message = run.message("recipe")
    assert kind == "error"
    assert "engine_recipes/gates/good.yaml:5:1: round: " in message
    assert "did you mean 'rounds'?" in message


def test_only_and_skip_choose_between_gates_and_other_tests(gates: GateProject) -> None:
    gates.write_test(
        "def test_plain():\n    pass\n\ndef test_with_fixture(qperf_gate):\n    pass\n"
    )
    only = gates.gate("good", "--qperf-only")
    assert set(only.cases()) == {"test_with_fixture", "ttft_mean_s"}
    assert "collected 3 items / 1 deselected / 2 selected" in only.output
    skip = gates.gate("good", "--qperf-skip")
    assert set(skip.cases()) == {"test_plain"}
    assert "collected 2 items / 1 deselected / 1 selected" in skip.output
    assert (only.exit_code, skip.exit_code) == (0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-k", "slowed and ttft_mean_s"],
        ["--deselect", "qperf/slowed.yaml::generation_rate_mean_tokens_per_s"],
    ],
)
def test_pytests_own_selection_applies_to_gates(gates: GateProject, arguments: list[str]) -> None:
    run = gates.gate("slowed", *arguments)
    assert (run.exit_code, set(run.cases())) == (0, {"ttft_mean_s"})
    assert "collected 2 items / 1 deselected / 1 selected" in run.output


def test_gates_can_be_listed_without_running_them(project: GateProject) -> None:
    tree = project.gate("slowed", "--collect-only")
    assert tree.exit_code == 0
    assert "<GateNode slowed>" in tree.output
    lines = project.gate("slowed", "--collect-only", "-q").output.splitlines()
    assert [line for line in lines if "::" in line] == [
        "qperf/slowed.yaml::generation_rate_mean_tokens_per_s",
        "qperf/slowed.yaml::ttft_mean_s",
    ]
    assert not (project.folder / "qperf-report").exists()


def test_a_gate_without_items_left_is_not_run(project: GateProject) -> None:
    run = project.gate("good", "-k", "nothing")
    assert run.exit_code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "collected 1 item / 1 deselected / 0 selected" in run.output
    assert not (project.folder / "qperf-report").exists()


def test_further_recipes_and_the_projects_own_come_before_the_packaged(
    gates: GateProject, tmp_path: Path
) -> None:
    further = GateProject(tmp_path / "further", gates.cache)
    further.write_gate("good", description="the further one")
    further.write_gate("embedded", description="not the packaged one")
    # With "=": pytest takes a folder that stands alone for one of the places to test.
    run = gates.gate("good", f"--qperf-recipes={further.recipes}", "--qperf-gate=embedded")
    assert run.exit_code == 0, run.output
    assert "good: the further one" in run.output
    assert "embedded: not the packaged one" in run.output


def test_an_empty_folder_has_the_packaged_gate(tmp_path: Path, qperf_cache: Path) -> None:
    empty = GateProject(tmp_path, qperf_cache)
    run = empty.gate("embedded", "--qperf-dry-run")
    assert run.exit_code == 0
    assert names(run) == ["embedded"]
    assert set(run.cases()) == {"generation_rate_mean_tokens_per_s", "ttft_mean_s"}
    assert empty.pytest("--qperf", "--qperf-skip").exit_code == pytest.ExitCode.NO_TESTS_COLLECTED
