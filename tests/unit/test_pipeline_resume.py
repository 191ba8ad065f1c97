"""Interrupted gates: what is kept, what is measured again, and which folders are refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.fake_tools import GateBench
from fakes.small_gates import WORKLOAD, small_gate, with_http_429

from pytest_qperf.adapters.result_store import read_result
from pytest_qperf.core.errors import EnvironmentUnfitError, ResultError
from pytest_qperf.core.recipe import TokenFilePrompts
from pytest_qperf.core.verdict import Outcome

RUN_A = ["start A", "warm A", "load A", "stop A"]
RUN_B = ["start B", "warm B", "load B", "stop B"]
BUILDS = ["lock", "build B", "build A"]


@pytest.fixture
def bench(tmp_path: Path) -> GateBench:
    return GateBench(tmp_path)


def interrupted(bench: GateBench, line: str, count: int, *, num_rounds: int = 2) -> Path:
    """Interrupt a gate the count-th time that a line happens; return its run folder."""
    bench.world.raises[line, count] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        bench.run(num_rounds=num_rounds)
    return bench.run_folder()


def test_an_interruption_stops_the_engine_unlocks_and_keeps_the_finished_runs(
    bench: GateBench,
) -> None:
    folder = interrupted(bench, "load B", 2)
    assert bench.world.log[-4:] == ["warm B", "load B", "stop B", "unlock"]
    assert sorted(path.name for path in (folder / "runs").iterdir()) == [
        "round-01-baseline.json",
        "round-01-candidate.json",
    ]
    assert not (folder / "result.json").exists()


def test_resuming_starts_only_the_missing_runs(bench: GateBench) -> None:
    folder = interrupted(bench, "load B", 2)
    bench.forget()
    result = bench.run(resume_folder=folder)
    assert bench.world.log == [*BUILDS, *RUN_B, *RUN_A, "unlock"]
    assert result.outcome is Outcome.PASS
    assert [run.round for run in result.runs] == [1, 1, 2, 2]
    assert "small-gate: 1 of 2 rounds finished before" in bench.progress.notes


def test_a_half_finished_round_is_measured_again_in_both_arms(bench: GateBench) -> None:
    folder = interrupted(bench, "start A", 2)
    assert (folder / "runs" / "round-02-candidate.json").exists()
    bench.forget()
    bench.world.rates["B"] = [8.0]
    result = bench.run(resume_folder=folder)
    assert bench.world.log == [*BUILDS, *RUN_B, *RUN_A, "unlock"]
    assert result.run_values("candidate", "generation_rate_mean_tokens_per_s") == pytest.approx(
        (5, 8)
    )
    assert (folder / "logs" / "round-02-candidate-attempt-2.log").exists()


def test_a_round_with_an_invalid_run_is_measured_again_in_both_arms(bench: GateBench) -> None:
    bench.world.spoils["load A", 2] = with_http_429
    assert bench.run().outcome is Outcome.INVALID
    folder = bench.run_folder()
    bench.forget()
    assert bench.run(resume_folder=folder).outcome is Outcome.PASS
    assert bench.world.log == [*BUILDS, *RUN_B, *RUN_A, "unlock"]
    assert read_result(folder / "result.json").outcome is Outcome.PASS


def test_resuming_a_finished_run_starts_no_engine_and_judges_again(bench: GateBench) -> None:
    first = bench.run()
    folder = bench.run_folder()
    bench.forget()
    again = bench.run(resume_folder=folder)
    assert bench.world.log == [*BUILDS, "unlock"]
    assert again.verdicts == first.verdicts


def edit_stamp(folder: Path, **values: object) -> None:
    path = folder / "gate.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_another_digest_and_other_rounds_are_refused_naming_both(bench: GateBench) -> None:
    folder = interrupted(bench, "load B", 2)
    bench.forget()
    bench.gate = replace(small_gate(), digest="another-digest")
    with pytest.raises(ResultError) as caught:
        bench.run(num_rounds=3, resume_folder=folder)
    assert str(caught.value) == (
        f"{folder}: expected the run that was interrupted, got another: "
        "digest digest-of-the-gate is now another-digest; num_rounds 2 is now 3; "
        "start a new run without --qperf-resume"
    )
    assert bench.world.log == []


def test_another_machine_is_refused_by_its_fingerprint(bench: GateBench) -> None:
    folder = interrupted(bench, "load B", 2)
    edit_stamp(folder, fingerprint="another-machine")
    bench.forget()
    with pytest.raises(ResultError, match=r"fingerprint another-machine is now [0-9a-f]{16}; "):
        bench.run(resume_folder=folder)
    assert bench.world.log == ["lock", "unlock"]


def break_digest(bench: GateBench, folder: Path) -> None:
    bench.gate = replace(small_gate(), digest="another-digest")


def break_fingerprint(bench: GateBench, folder: Path) -> None:
    edit_stamp(folder, fingerprint="another-machine")


def break_digest_and_lose_the_gpu(bench: GateBench, folder: Path) -> None:
    break_digest(bench, folder)
    bench.world.raises["lock", 1] = EnvironmentUnfitError("no such GPU")


@pytest.mark.parametrize(
    "make_foreign", [break_digest, break_fingerprint, break_digest_and_lose_the_gpu]
)
def test_a_refused_run_folder_is_left_as_it_was(
    bench: GateBench, make_foreign: Callable[[GateBench, Path], None]
) -> None:
    bench.run()
    folder = bench.run_folder()
    bench.forget()
    make_foreign(bench, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ResultError, match="expected the run that was interrupted, got another"):
        bench.run(resume_folder=folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_plugin_edited_since_the_interruption_is_refused_before_anything_starts(
    bench: GateBench,
) -> None:
    folder = interrupted(bench, "load B", 2)
    bench.forget()
    bench.world.sources = "edited sources"
    with pytest.raises(ResultError) as caught:
        bench.run(resume_folder=folder)
    assert str(caught.value) == (
        f"{folder}: expected the candidate that was measured before the interruption, got "
        "another build: plugin_hash sources of B is now edited sources of B; "
        "start a new run without --qperf-resume"
    )
    assert bench.world.log == ["lock", "build B", "unlock"]


def test_a_folder_without_gate_json_is_no_run_folder(bench: GateBench, tmp_path: Path) -> None:
    with pytest.raises(ResultError) as caught:
        bench.run(resume_folder=tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: expected a run folder with gate.json in it, found none; "
        "--qperf-resume takes the folder that the interrupted run named"
    )


def test_a_damaged_run_file_is_an_error_and_not_a_run_to_repeat(bench: GateBench) -> None:
    folder = interrupted(bench, "load B", 2)
    (folder / "runs" / "round-01-baseline.json").write_text("{}")
    bench.forget()
    with pytest.raises(ResultError, match=r"round-01-baseline.json: expected a RunResult"):
        bench.run(resume_folder=folder)


def test_an_unfit_host_at_resume_keeps_the_finished_rounds_in_the_invalid_result(
    bench: GateBench,
) -> None:
    folder = interrupted(bench, "load B", 2)
    bench.forget()
    bench.world.raises["lock", 1] = EnvironmentUnfitError("strangers on it")
    result = bench.run(resume_folder=folder)
    assert (result.outcome, result.problems) == (Outcome.INVALID, ("strangers on it",))
    assert len(result.runs) == 2
    bench.forget()
    assert bench.run(resume_folder=folder).outcome is Outcome.PASS


def test_a_report_folder_that_cannot_be_made_is_a_result_error(bench: GateBench) -> None:
    (bench.folder / "report").write_text("a file in the way")
    with pytest.raises(ResultError, match="expected a folder that can be written, got "):
        bench.run()
    assert bench.world.log == []


def test_a_run_that_cannot_be_stored_is_a_result_error_and_the_host_is_unlocked(
    bench: GateBench,
) -> None:
    folder = interrupted(bench, "load A", 1)
    (folder / "raw").write_text("a file in the way")
    bench.forget()
    with pytest.raises(ResultError, match="expected to write the run's results there, got "):
        bench.run(resume_folder=folder)
    assert bench.world.log == [*BUILDS, *RUN_A, "unlock"]


def test_a_token_file_that_vanished_makes_the_gate_invalid(tmp_path: Path) -> None:
    prompts = TokenFilePrompts(source="token_file", path=str(tmp_path / "gone.jsonl"))
    bench = GateBench(
        tmp_path, gate=small_gate(workload=WORKLOAD.model_copy(update={"prompts": prompts}))
    )
    result = bench.run()
    assert result.outcome is Outcome.INVALID
    assert "gone.jsonl: expected a UTF-8 file of token-id lists, got " in result.problems[0]
