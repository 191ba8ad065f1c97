"""Renders a gate's result as plain text; its table is wider the more limits a metric has."""

from collections.abc import Sequence

from pytest_qperf.core.metrics import METRICS, Metric
from pytest_qperf.core.result import GateResult
from pytest_qperf.core.statistics import Estimate
from pytest_qperf.core.verdict import MetricVerdict

LABEL_NOTES = {
    "gpu": "",
    "embedded": " [embedded: built-in engine on a CPU, never comparable with a GPU's figures]",
    "endpoint": " [endpoint: not every server was started by this run]",
}


def render_result(result: GateResult) -> str:
    """Return the result as text: headline, table of judged metrics, other metrics, reasons."""
    lines = [
        f"{result.gate}: {result.outcome}{LABEL_NOTES[result.label]}",
        f"  candidate {result.candidate.name}, baseline {result.baseline.name}, "
        f"workload {result.workload.name}: {_workload_in_short(result)}",
        f"  {_rounds_in_short(result)}",
        *_host_in_short(result),
    ]
    if result.verdicts:
        lines += ["", *_verdict_table(result)]
        lines += [""]
        for verdict in result.verdicts:
            lines += [f"  {verdict.outcome}: {verdict.reason}"]
            lines += [f"    ratio in each round: {_round_ratios(result, verdict.metric)}"]
    lines += [f"  INVALID: {problem}" for problem in _indented(result.problems)]
    if result.notes:
        lines += ["", *(f"  note: {note}" for note in _indented(result.notes))]
    return "\n".join(lines) + "\n"


def one_line(result: GateResult) -> str:
    """Return the gate's outcome and what decided it, in one line."""
    if result.problems:
        first = result.problems[0].splitlines()[0]
        more = f" (and {len(result.problems) - 1} more)" if len(result.problems) > 1 else ""
        return f"{result.gate}: {result.outcome}: {first}{more}"
    ratios = ", ".join(
        f"{METRICS[verdict.metric].label} x{verdict.ratio.value:.3f}" for verdict in result.verdicts
    )
    return f"{result.gate}: {result.outcome}: {ratios}"


def _workload_in_short(result: GateResult) -> str:
    recipe = result.workload.recipe
    return (
        f"{recipe['isl_tokens']} in, {recipe['osl_tokens']} out, "
        f"{recipe['concurrency']} in flight, {recipe['num_requests']} requests, "
        f"{recipe['arrival']}"
    )


def _rounds_in_short(result: GateResult) -> str:
    num_complete = min(
        sum(run.arm == arm and not run.problems for run in result.runs)
        for arm in ("candidate", "baseline")
    )
    seconds = (result.finished_at - result.started_at).total_seconds()
    return f"{num_complete} of {result.num_rounds_planned} rounds, {seconds:.0f} s"


def _host_in_short(result: GateResult) -> list[str]:
    """Return a line on where it was measured; nothing if it never came to that."""
    environment = result.environment
    if environment is None:
        return []
    if environment.get("gpu_name") is None:
        who = "client on " if result.label == "endpoint" else "on "
        cpu = environment.get("cpu_model") or "a CPU without a name"
        return [f"  {who}{cpu}, {environment.get('num_usable_cpus')} cores"]
    clocks = [run.gpu.sm_clock_mhz.mean for run in result.runs if run.gpu and run.gpu.sm_clock_mhz]
    shown = f", SM clock {min(clocks):.0f} to {max(clocks):.0f} MHz, mean of each run"
    return [
        f"  on {environment['gpu_name']}, driver {environment.get('driver_version')}"
        f"{shown if clocks else ''}{_versions(result)}"
    ]


def _versions(result: GateResult) -> str:
    """Return the versions that the servers themselves named."""
    versions = {
        f"{run.arm} {run.facts['version']}" for run in result.runs if "version" in run.facts
    }
    return f"; server versions: {', '.join(sorted(versions))}" if versions else ""


def _round_ratios(result: GateResult, metric: str) -> str:
    pairs = zip(
        result.run_values("candidate", metric), result.run_values("baseline", metric), strict=True
    )
    return " ".join(f"{candidate / baseline:.4f}" for candidate, baseline in pairs)


def _verdict_table(result: GateResult) -> list[str]:
    judged = {verdict.metric: verdict for verdict in result.verdicts}
    header = ("metric", "unit", "candidate", "baseline", "ratio", "bounds", "limit", "verdict")
    rows = [_verdict_row(verdict) for verdict in result.verdicts]
    rows += [
        _watched_row(result, name)
        for name in METRICS
        # A result of an earlier version may lack a metric that was added since.
        if name not in judged
        and result.run_values("candidate", name)
        and result.run_values("baseline", name)
    ]
    return _aligned([header, *rows])


def _verdict_row(verdict: MetricVerdict) -> tuple[str, ...]:
    metric = METRICS[verdict.metric]
    limits = ", ".join(_limit_text(x.limit, x.required) for x in verdict.limits)
    return (
        metric.label,
        _shown_unit(metric),
        _shown(metric, verdict.candidate.value),
        _shown(metric, verdict.baseline.value),
        f"{verdict.ratio.value:.4f}",
        _bounds(verdict.ratio),
        limits,
        str(verdict.outcome),
    )


def _watched_row(result: GateResult, name: str) -> tuple[str, ...]:
    """Return a metric that nothing is required of: means over the runs and their ratio."""
    metric = METRICS[name]
    candidate = _mean(result.run_values("candidate", name))
    baseline = _mean(result.run_values("baseline", name))
    return (
        metric.label,
        _shown_unit(metric),
        _shown(metric, candidate),
        _shown(metric, baseline),
        f"{candidate / baseline:.4f}",
        "",
        "",
        "watched",
    )


def _limit_text(limit: str, required: float) -> str:
    sign = ">=" if limit.startswith("min_") else "<="
    return f"{sign} {required:g}" + ("x" if limit.endswith("_ratio_to_baseline") else "")


def _bounds(estimate: Estimate) -> str:
    if estimate.lower is None or estimate.upper is None:
        return "one round"
    return f"{estimate.lower:.4f}..{estimate.upper:.4f}"


def _shown_unit(metric: Metric) -> str:
    return "ms" if metric.unit == "s" else metric.unit


def _shown(metric: Metric, value: float) -> str:
    """Return a value for reading: seconds as milliseconds, four or five digits."""
    shown = value * 1000 if metric.unit == "s" else value
    return f"{shown:.1f}" if abs(shown) >= 100 else f"{shown:.4g}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    is_number = [False, False, True, True, True, False, False, False]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in rows
    ]


def _indented(texts: Sequence[str]) -> list[str]:
    """Return texts whose further lines are set below their first."""
    return [text.replace("\n", "\n      ") for text in texts]
