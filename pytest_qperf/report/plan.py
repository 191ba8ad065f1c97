"""Renders what a gate would do, for a dry run."""

from pytest_qperf.core.artifacts import ResolvedGate
from pytest_qperf.core.schedule import ARMS, run_schedule


def render_plan(gate: ResolvedGate, rounds: int | None) -> str:
    """Return the gate's plan: engines, workload, order of runs, limits."""
    num_rounds = rounds or gate.recipe.rounds
    workload = gate.workload
    order = " ".join(
        "A" if scheduled.arm == "baseline" else "B" for scheduled in run_schedule(num_rounds)
    )
    lines = [f"{gate.name}: {gate.recipe.description}"]
    for arm in ARMS:
        engine = gate.engine(arm)
        lines.append(f"  {arm}: {engine.name} ({engine.recipe.kind}): {engine.recipe.description}")
    lines += [
        f"  workload: {gate.workload_name}: {workload.isl_tokens} tokens in, "
        f"{workload.osl_tokens} out, {workload.concurrency} in flight, "
        f"{workload.num_requests} requests, {workload.arrival}",
        f"  {num_rounds} round{'' if num_rounds == 1 else 's'}, a fresh engine for each of "
        f"{2 * num_rounds} runs: {order} (A baseline, B candidate)",
    ]
    for metric, threshold in gate.recipe.thresholds.items():
        limits = ", ".join(f"{name} {value:g}" for name, value in threshold.limits().items())
        lines.append(f"  requires {metric}: {limits}")
    return "\n".join(lines) + "\n"
