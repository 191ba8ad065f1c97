"""Results as a gate would store them, with fixed times: what renderers are tested on."""

from collections.abc import Sequence
from datetime import timedelta

from fakes.small_gates import STARTED_AT, run_record, small_gate, stored_run
from pytest_qperf.core.artifacts import BuildArtifact, ResolvedGate
from pytest_qperf.core.assemble import (
    engine_record,
    judge_runs,
    label_of,
    notes_on,
    overall_outcome,
    problems_of,
    workload_record,
)
from pytest_qperf.core.records import Arm
from pytest_qperf.core.result import GateResult, RunResult

ARTIFACT = BuildArtifact(model="/cache/checkpoint", provenance={"plugin_hash": "abc"})


def runs_with_rates(gate: ResolvedGate, rates: dict[Arm, list[float]]) -> list[RunResult]:
    """Return one run for each rate, baseline first in each round; TTFT is 0.5 s throughout."""
    return [
        stored_run(number, arm, run_record(gate.workload, rate_tokens_per_s=rates[arm][number - 1]))
        for number in range(1, len(rates["baseline"]) + 1)
        for arm in ("baseline", "candidate")
        if number <= len(rates[arm])
    ]


def gate_result(
    runs: Sequence[RunResult],
    *,
    gate: ResolvedGate | None = None,
    num_rounds: int = 2,
    failure: str | None = None,
) -> GateResult:
    """Return the result of these runs; ``failure`` is why the rounds ended early."""
    gate = gate or small_gate()
    problems = problems_of(runs) + (() if failure is None else (failure,))
    verdicts = () if problems else judge_runs(gate, runs)
    return GateResult(
        gate=gate.name,
        description=gate.recipe.description,
        digest=gate.digest,
        label=label_of(gate),
        outcome=overall_outcome(gate, verdicts, problems),
        problems=problems,
        started_at=STARTED_AT,
        finished_at=STARTED_AT + timedelta(seconds=90),
        command=("pytest", "--qperf"),
        environment={"os": "Linux", "cpu_model": "Test CPU", "num_usable_cpus": 2},
        fingerprint="0123456789abcdef",
        num_rounds_planned=num_rounds,
        confidence=gate.recipe.confidence,
        candidate=engine_record(gate.candidate, ARTIFACT),
        baseline=engine_record(gate.baseline, ARTIFACT),
        workload=workload_record(gate),
        thresholds={name: limits.limits() for name, limits in gate.recipe.thresholds.items()},
        runs=tuple(runs),
        verdicts=verdicts,
        notes=notes_on(gate),
    )
