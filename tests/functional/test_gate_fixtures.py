"""The fixtures in users' own tests: lazy engines, one at a time, and one comparison a gate."""

import re

import pytest
from fakes.gate_projects import GateProject

ENGINES_TAKE_TURNS = """
import urllib.error
import urllib.request

import pytest

def is_up(base_url):
    try:
        return urllib.request.urlopen(base_url + "/health").status == 200
    except urllib.error.URLError:
        return False

def test_untouched(candidate_engine, baseline_engine, qperf_workload, qperf_gate):
    assert (candidate_engine.name, baseline_engine.name) == ("slow", "steady")
    assert qperf_workload.osl_tokens == 8
    assert qperf_gate.name == "slowed"

def test_turns(candidate_engine, baseline_engine):
    first = candidate_engine.base_url
    assert is_up(first)
    assert candidate_engine.base_url == first
    second = baseline_engine.base_url
    assert is_up(second) and not is_up(first)
    assert candidate_engine.facts["linear_backend"] == "numpy-fp32"
    assert not is_up(second)

def test_goes_on_with_the_running_engine(candidate_engine, qperf_workload):
    metrics = candidate_engine.measure(qperf_workload)
    # A step of the slow engine takes 30 ms and a little.
    assert 10 < metrics["generation_rate_mean_tokens_per_s"] < 1 / 0.030
    record = candidate_engine.complete((1, 2, 3), max_tokens=4)
    assert (record.isl_tokens, record.osl_tokens, record.error) == (3, 4, None)
    assert candidate_engine.served_model

def test_an_invalid_run_is_an_error(candidate_engine, qperf_workload):
    from pytest_qperf.core.errors import LoadError
    too_long = qperf_workload.model_copy(update={"isl_tokens": 255})
    with pytest.raises(LoadError, match="^slow: 4 of 4 requests: "):
        candidate_engine.measure(too_long)
"""


def test_engines_start_when_used_and_take_turns(project: GateProject) -> None:
    project.write_test(ENGINES_TAKE_TURNS)
    run = project.gate("slowed", "-k", "test_own.py", "-W", "error")
    assert run.exit_code == 0, run.output
    assert project.engine_starts() == ["001-slow", "002-steady", "003-slow"]
    assert project.engine_pids() == set()


def test_a_test_that_never_uses_its_engine_starts_none(project: GateProject) -> None:
    project.write_test("def test_name(candidate_engine):\n    assert candidate_engine.name\n")
    run = project.gate("good", "-k", "test_name")
    assert run.exit_code == 0
    assert "1 passed, 1 deselected" in run.output
    assert not (project.folder / "qperf-report").exists()


COMPARISON = """
def test_before_the_gate(candidate_engine, qperf_comparison):
    verdict = qperf_comparison.verdict("ttft_mean_s")
    assert qperf_comparison.outcome == "PASS" == verdict.outcome
    assert len(qperf_comparison.run_values("candidate", "ttft_mean_s")) == 2

def test_leaves_an_engine_running(baseline_engine):
    assert baseline_engine.base_url

def test_again(qperf_comparison):
    assert qperf_comparison.gate == "good"
"""


def test_a_gate_runs_once_for_its_items_and_every_test(project: GateProject) -> None:
    project.write_test(COMPARISON)
    run = project.gate("good", "-v")
    assert run.exit_code == 0, run.output
    assert "4 passed" in run.output
    assert len(project.run_folders("good")) == 1
    assert project.engine_pids() == set()


def test_a_gate_ends_the_engine_that_a_test_left_running(project: GateProject) -> None:
    project.write_test("def test_starts(candidate_engine):\n    assert candidate_engine.base_url\n")
    # The test's engine holds the host's lock; a gate that waited for it would time out.
    run = project.gate("undecided", "--qperf-inconclusive=neutral", "--qperf-lock-timeout=60")
    assert run.exit_code == 0, run.output
    assert "1 passed, 1 skipped" in run.output


MARKERS = """
import pytest

@pytest.mark.qperf(gate="good")
def test_chosen(qperf_gate):
    assert qperf_gate.name == "good"

@pytest.mark.qperf("good")
def test_positional(qperf_gate): ...

@pytest.mark.qperf(gate="good", rounds=3)
def test_too_much(qperf_gate): ...

@pytest.mark.qperf()
def test_empty(qperf_gate): ...

@pytest.mark.qperf(gate="goood")
def test_unknown(qperf_gate): ...

def test_unnamed(qperf_gate): ...

@pytest.mark.qperf(gate="good")
def test_patched(trtllm_engine): ...

@pytest.mark.qperf(gate="good")
def test_vllm(vllm_baseline): ...

@pytest.mark.qperf(gate="vllm-kv-h200")
def test_real_vllm(vllm_baseline):
    assert vllm_baseline.name == "vllm-fp8-kv-bf16"

@pytest.mark.qperf(gate="unfit")
def test_unfit(qperf_comparison): ...
"""
MISUSES = {
    "test_positional": r"@pytest.mark.qperf: expected gate=\"NAME\" and nothing else, got \('good'",
    "test_too_much": r"expected gate=\"NAME\" and nothing else, got \(\) .*'rounds': 3",
    "test_empty": r"expected gate=\"NAME\" and nothing else, got \(\) \{\}",
    "test_unknown": r"gate 'goood': expected the name of a gate .*did you mean 'good'\?",
    "test_unnamed": r"qperf_gate: expected one gate, got 2 \(good, slowed\); name it with "
    r"@pytest.mark.qperf",
    "test_patched": r"trtllm_engine: expected gate good to have a candidate of kind trtllm, got "
    r"fast of kind embedded; name another gate with @pytest.mark.qperf",
    "test_vllm": r"vllm_baseline: expected gate good to have a baseline of kind vllm, got "
    r"steady of kind embedded",
    "test_unfit": r"INVALID: engine liar: the running server is not what its recipe states",
}


def test_the_marker_chooses_the_gate_and_misuse_is_an_error_that_says_how(
    project: GateProject,
) -> None:
    project.write_test(MARKERS)
    run = project.gate("good", "--qperf-gate=slowed", "-k", "test_own.py", "--strict-markers")
    assert run.exit_code == 1
    for name, pattern in MISUSES.items():
        kind, message = run.message(name)
        assert kind == "error"
        assert re.search(pattern, message), message
    assert "2 passed, 3 deselected, 8 errors" in run.output


def test_a_bad_recipe_is_an_error_of_the_test_that_needs_it(project: GateProject) -> None:
    path = project.recipes / "engines" / "fast.yaml"
    path.write_text(path.read_text().replace("precision: fp32", "precision: fp31"))
    project.write_test("def test_needs(qperf_gate): ...\n\ndef test_other(): ...\n")
    run = project.gate("good")
    kind, message = run.message("test_needs")
    assert (run.exit_code, kind) == (1, "error")
    assert "engine_recipes/engines/fast.yaml:3:1" in message
    assert run.cases()["test_other"].is_passed


def test_an_engine_that_does_not_start_fails_the_test_and_not_the_next(
    project: GateProject,
) -> None:
    project.write_test(
        "def test_liar(baseline_engine):\n    baseline_engine.base_url\n\n"
        "def test_fast(candidate_engine):\n    assert candidate_engine.base_url\n"
    )
    run = project.gate("unfit", "-k", "test_own.py")
    assert run.exit_code == 1
    kind, message = run.message("test_liar")
    assert kind == "failure"
    assert "engine liar: the running server is not what its recipe states" in message
    assert run.cases()["test_fast"].is_passed
    assert project.engine_pids() == set()


def test_fixtures_are_skipped_in_a_dry_run(project: GateProject) -> None:
    project.write_test("def test_needs(candidate_engine):\n    candidate_engine.base_url\n")
    run = project.gate("good", "--qperf-dry-run")
    assert run.exit_code == pytest.ExitCode.OK
    assert run.message("test_needs") == ("skipped", "dry run: nothing was measured")
