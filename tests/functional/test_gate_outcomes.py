"""What a gate's outcome is in pytest's own terms: exit code, JUnit, letters, report folder."""

import gzip
import json
import re

import pytest
from fakes.gate_projects import STEP_S, GateProject, PytestRun
from junitparser.xunit2 import JUnitXml

RATE = "generation_rate_mean_tokens_per_s"
TTFT = "ttft_mean_s"


@pytest.fixture(scope="module")
def slowed(module_project: GateProject) -> PytestRun:
    """One run of a gate whose rate is too low and whose TTFT is fine."""
    return module_project.gate("slowed", "-rA", "-v")


def test_a_gate_that_passes_exits_0_and_shows_its_table(project: GateProject) -> None:
    run = project.gate("good")
    assert run.exit_code == 0, run.output
    assert list(run.cases()) == [TTFT]
    assert run.cases()[TTFT].is_passed
    assert "qperf: gates: good" in run.output
    assert re.search(r"TTFT, mean +ms .* <= 1e\+06x +PASS", run.output)
    assert "good: PASS [embedded: built-in engine on a CPU" in run.output
    assert project.engine_pids() == set()


def test_each_metric_of_a_gate_is_an_item_with_its_own_verdict(slowed: PytestRun) -> None:
    assert slowed.exit_code == 1
    assert f"FAILED qperf/slowed.yaml::{RATE}" in slowed.output
    assert f"PASSED qperf/slowed.yaml::{TTFT}" in slowed.output
    assert "collected 2 items" in slowed.output
    assert "1 failed, 1 passed" in slowed.output


def test_a_broken_limit_is_a_failure_with_ratio_bounds_and_limit(slowed: PytestRun) -> None:
    kind, message = slowed.message(RATE)
    assert kind == "failure"
    pattern = (
        r"FAIL: generation rate, mean: (0\.\d{4}) x baseline \((0\.\d{4}) to (0\.\d{4}), "
        r"each bound at 95%, 2 rounds\); min_ratio_to_baseline 0.5 is broken"
    )
    found = re.search(pattern, message)
    assert found is not None, message
    ratio, lower, upper = (float(text) for text in found.groups())
    assert lower <= ratio <= upper < 0.5


def test_junit_properties_are_the_stored_results(
    slowed: PytestRun, module_project: GateProject
) -> None:
    stored = module_project.result("slowed")
    for verdict in stored["verdicts"]:
        properties = slowed.properties(verdict["metric"])
        assert properties["gate"] == stored["gate"] == "slowed"
        assert properties["outcome"] == verdict["outcome"]
        assert properties["label"] == stored["label"] == "embedded"
        assert properties["digest"] == stored["digest"]
        assert properties["candidate_engine"] == stored["candidate"]["name"] == "slow"
        assert properties["baseline_engine"] == stored["baseline"]["name"] == "steady"
        assert float(properties["ratio"]) == verdict["ratio"]["value"]
        assert float(properties["ratio_lower"]) == verdict["ratio"]["lower"]
        assert float(properties["ratio_upper"]) == verdict["ratio"]["upper"]
        assert float(properties["candidate"]) == verdict["candidate"]["value"]
        assert float(properties["baseline"]) == verdict["baseline"]["value"]
        for limit in verdict["limits"]:
            assert float(properties[limit["limit"]]) == limit["required"]


def test_junit_counts_add_up(slowed: PytestRun) -> None:
    (suite,) = JUnitXml.fromfile(str(slowed.junit_path))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (2, 1, 0, 0)


def test_the_step_delay_of_an_engine_is_what_its_rate_shows(
    slowed: PytestRun, module_project: GateProject
) -> None:
    assert slowed.exit_code == 1
    for run in module_project.result("slowed")["runs"]:
        step_s = STEP_S if run["arm"] == "baseline" else 6 * STEP_S
        assert 0.3 / step_s < run["metrics"][RATE] < 1.0 / step_s


def test_the_run_folder_holds_every_run_with_raw_times_and_logs(
    slowed: PytestRun, module_project: GateProject
) -> None:
    (folder,) = module_project.run_folders("slowed")
    assert f"slowed: run folder {folder}" in slowed.output
    runs = ["round-01-baseline", "round-01-candidate", "round-02-baseline", "round-02-candidate"]
    assert {"gate.json", "result.json", "report.txt"} <= {path.name for path in folder.iterdir()}
    for kind, ending in {"runs": "json", "raw": "json.gz", "logs": "log"}.items():
        names = sorted(path.name for path in (folder / kind).iterdir())
        assert names == [f"{run}.{ending}" for run in runs]
    raw = json.loads(gzip.decompress((folder / "raw" / f"{runs[0]}.json.gz").read_bytes()))
    assert [sum(request["chunk_tokens"]) for request in raw] == [8, 8, 8, 8]
    assert (folder / "report.txt").read_text() in slowed.output.replace("\r", "")
    assert (folder.parent.parent / ".gitignore").read_text() == "*\n"


def test_an_undecided_gate_is_an_error_with_a_letter_of_its_own(project: GateProject) -> None:
    run = project.gate("undecided")
    kind, message = run.message(TTFT)
    assert (run.exit_code, kind) == (1, "error")
    assert "INCONCLUSIVE: TTFT, mean: " in message
    assert "no bounds from one round; max_ratio_to_baseline 1e+06 is undecided" in message
    assert re.search(r"(?m)^I +\[100%\]$", run.output)
    assert "1 error in" in run.output


def test_an_unfit_gate_is_an_error_for_each_metric_whatever_undecided_ones_are(
    project: GateProject,
) -> None:
    run = project.gate("unfit", "--qperf-inconclusive=neutral")
    assert run.exit_code == 1
    for metric in (TTFT, RATE):
        kind, message = run.message(metric)
        assert kind == "error"
        assert "INVALID: engine liar: the running server is not what its recipe states" in message
        assert "expected linear_backend 'fp8-gemm', the server says 'numpy-fp32'" in message
    assert "2 errors in" in run.output
    assert len(project.run_folders("unfit")) == 1


def test_an_undecided_gate_is_a_skip_where_asked(project: GateProject) -> None:
    run = project.gate("undecided", "--qperf-inconclusive=neutral", "-rs")
    assert run.exit_code == 0
    kind, message = run.message(TTFT)
    assert kind == "skipped"
    assert message.startswith("INCONCLUSIVE: TTFT, mean: ")
    assert "1 skipped" in run.output


def test_a_gate_that_cannot_run_is_an_error_for_each_of_its_metrics(project: GateProject) -> None:
    (project.folder / "reports").write_text("a file")
    run = project.gate("slowed", "--qperf-report", "reports")
    assert run.exit_code == 1
    for metric in (RATE, TTFT):
        kind, message = run.message(metric)
        assert kind == "error"
        assert "reports: expected a folder that can be written, got " in message


def test_maxfail_ends_the_run_at_the_first_item(project: GateProject) -> None:
    run = project.gate("unfit", "-x")
    assert run.exit_code == 1
    assert "stopping after 1 failures" in run.output
    assert set(run.cases()) == {TTFT}


def test_gates_work_with_warnings_as_errors_and_without_a_terminal(project: GateProject) -> None:
    run = project.gate("good", "-W", "error", "-p", "no:terminal")
    assert run.exit_code == 0, run.output
    assert run.cases()[TTFT].is_passed
    # Without pytest's terminal the progress goes to the standard error.
    assert "good: PASS: TTFT, mean x" in run.output
