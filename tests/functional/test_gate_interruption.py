"""A gate that is killed, terminated or interrupted: engines end, finished rounds stay."""

import json
import re
import signal
from pathlib import Path

import pytest
from fakes.gate_projects import GateProject, PytestRun
from fakes.process_trees import wait_until

from pytest_qperf.adapters.host_lock import hold_host_lock

TTFT = "ttft_mean_s"
FINISHED = "runs/round-01-candidate.json"  # the second run of the first round


@pytest.fixture
def long(project: GateProject) -> GateProject:
    """A project whose gate "long" takes more rounds than any test waits for."""
    project.write_gate("long", rounds=30)
    return project


def finished_runs(project: GateProject) -> dict[str, bytes]:
    (folder,) = project.run_folders("long")
    return {path.name: path.read_bytes() for path in (folder / "runs").glob("*.json")}


def test_a_killed_pytest_leaves_no_engine_and_no_lock(long: GateProject) -> None:
    with long.interrupted("long", signal.SIGKILL, after=FINISHED):
        wait_until(lambda: not long.engine_pids(), timeout_s=5.0)
        notes: list[str] = []
        with hold_host_lock("cpu", timeout_s=60.0, note=notes.append):
            # Another project's tests may hold it; the killed run does not.
            assert [note for note in notes if "--qperf-gate long" in note] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_pytest_ends_its_engine_and_keeps_finished_rounds(
    long: GateProject, number: signal.Signals
) -> None:
    with long.interrupted("long", number, after=FINISHED) as run:
        assert long.engine_pids() == set()  # as soon as pytest has ended
    assert run.exit_code == pytest.ExitCode.INTERRUPTED
    assert re.search(r"!!!! (KeyboardInterrupt|.*Terminated: SIGTERM) !!!!", run.output)
    kept = finished_runs(long)
    assert {"round-01-baseline.json", "round-01-candidate.json"} <= set(kept)
    (folder,) = long.run_folders("long")
    assert not (folder / "result.json").exists()


def interrupted_after_round_1(project: GateProject, *arguments: str) -> Path:
    """Kill the gate "good" after its first round; return its run folder."""
    with project.interrupted("good", signal.SIGKILL, *arguments, after=FINISHED):
        pass
    (folder,) = project.run_folders("good")
    return folder


def test_a_resumed_gate_measures_only_what_is_missing(project: GateProject) -> None:
    folder = interrupted_after_round_1(project)
    first = {path.name: path.read_bytes() for path in (folder / "runs").glob("round-01-*.json")}
    assert set(first) == {"round-01-baseline.json", "round-01-candidate.json"}
    run = project.pytest("--qperf", "--qperf-only", f"--qperf-resume={folder}")
    assert run.exit_code == 0, run.output
    assert "qperf: gates: good" in run.output
    assert "good: 1 of 2 rounds finished before" in run.output
    assert "round 1 of 2" not in run.output
    assert "round 2 of 2, baseline" in run.output
    again = {path.name: path.read_bytes() for path in (folder / "runs").glob("round-01-*.json")}
    assert again == first
    assert project.run_folders("good") == [folder]
    assert len(json.loads((folder / "result.json").read_text())["runs"]) == 4


def refused(project: GateProject, folder: Path, *arguments: str) -> PytestRun:
    """Resume with something that does not fit; the folder must be left as it was."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    run = project.pytest("--qperf", "--qperf-only", f"--qperf-resume={folder}", *arguments)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return run


def test_a_run_is_not_resumed_as_another_one(project: GateProject) -> None:
    folder = interrupted_after_round_1(project)
    other = refused(project, folder, "--qperf-gate=slowed")
    kind, message = other.message(TTFT)
    assert (other.exit_code, kind) == (1, "error")
    assert f"{folder}: expected the run that was interrupted, got another: " in message
    assert "gate good is now slowed" in message
    more = refused(project, folder, "--qperf-rounds=3")
    assert "num_rounds 2 is now 3" in more.message(TTFT)[1]
    project.write_workload("tiny", seed=1)
    changed = refused(project, folder)
    assert "digest " in changed.message(TTFT)[1]


def test_a_folder_that_no_run_made_is_a_usage_error(project: GateProject, tmp_path: Path) -> None:
    run = project.pytest("--qperf", f"--qperf-resume={tmp_path}")
    assert run.exit_code == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {tmp_path}: expected a run folder with gate.json in it, got " in run.output


def test_a_fixtures_engine_ends_with_a_killed_pytest(project: GateProject) -> None:
    project.write_test(
        "import pathlib, time\n\n"
        "def test_waits(candidate_engine):\n"
        "    pathlib.Path('started').write_text(candidate_engine.base_url)\n"
        "    time.sleep(60)\n"
    )
    process = project.start(
        "--qperf", "--qperf-gate=good", output=project.folder / "interrupted.txt"
    )
    try:
        wait_until((project.folder / "started").exists, timeout_s=30.0)
        assert len(project.engine_pids()) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30.0) == pytest.ExitCode.INTERRUPTED
        assert project.engine_pids() == set()
    finally:
        process.kill()
        process.wait()
