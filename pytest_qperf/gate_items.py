"""Gates as pytest items: one item for each gate and metric, so that JUnit shows each verdict.

A limit that is broken is a failure. Whatever kept the gate from deciding is an error, so that it
can be read neither as a pass nor as a slow candidate.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_qperf.core.assemble import descriptive_reason
from pytest_qperf.core.errors import QperfError
from pytest_qperf.core.metrics import METRICS
from pytest_qperf.core.result import GateResult
from pytest_qperf.core.verdict import MetricVerdict, Outcome
from pytest_qperf.gate_runs import run_gate_once
from pytest_qperf.options import QperfOptions
from pytest_qperf.selection import SelectedGate

RECIPE_ITEM = "recipe"


def collect_gates(session: pytest.Session, selected: tuple[SelectedGate, ...]) -> list[pytest.Item]:
    """Return the items of the selected gates, in order."""
    items: list[pytest.Item] = []
    for gate in selected:
        node = GateNode.from_parent(
            session, name=gate.name, nodeid=f"qperf/{gate.name}.yaml", selected=gate
        )
        # As pytest collects its own files, so that it counts these items and reports them.
        items.extend(session.genitems(node))
    return items


class GateNode(pytest.Collector):
    """One gate; its set-up runs it, once for all its metrics."""

    def __init__(self, *, selected: SelectedGate, **kwargs: Any) -> None:
        super().__init__(path=selected.path, **kwargs)
        self.selected = selected
        self.options = QperfOptions.from_pytest_config(self.config)
        self.result: GateResult | None = None

    def collect(self) -> Iterator["GateItem"]:
        """Yield one item for each judged metric, or one that carries the recipe's problem."""
        gate = self.selected.gate
        for name in [RECIPE_ITEM] if gate is None else gate.recipe.thresholds:
            yield GateItem.from_parent(self, name=name)

    def setup(self) -> None:
        """Run the gate, unless nothing is to be started."""
        if self.selected.gate is None or self.options.is_dry_run:
            return
        try:
            self.result = run_gate_once(self.selected.gate, self.config)
        except QperfError as error:
            pytest.fail(str(error), pytrace=False)


class GateItem(pytest.Item):
    """One metric of one gate."""

    parent: GateNode

    def setup(self) -> None:
        """Raise what kept the gate from deciding: pytest reports it as an error."""
        options = self.parent.options
        if self.parent.selected.problem is not None:
            pytest.fail(self.parent.selected.problem, pytrace=False)
        if options.is_dry_run:
            pytest.skip("dry run: nothing was measured")
        result = self._result()
        outcome, reason = item_outcome(result, self.name, self._descriptive_reason())
        self.user_properties += properties(result, self.name, outcome)
        if outcome is Outcome.INVALID:
            pytest.fail(f"INVALID: {reason}", pytrace=False)
        if outcome is Outcome.INCONCLUSIVE:
            if options.inconclusive == "neutral":
                pytest.skip(f"INCONCLUSIVE: {reason}")
            pytest.fail(f"INCONCLUSIVE: {reason}", pytrace=False)

    def runtest(self) -> None:
        """Raise if a limit is broken: pytest reports it as a failure."""
        verdict = self._result().verdict(self.name)
        if verdict.outcome is not Outcome.PASS:
            pytest.fail(f"{verdict.outcome}: {verdict.reason}", pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the gate's file and the item's name."""
        return self.path, None, f"{self.parent.name}::{self.name}"

    def _result(self) -> GateResult:
        if self.parent.result is None:
            raise RuntimeError(f"{self.nodeid}: asked for a result before the gate ran")
        return self.parent.result

    def _descriptive_reason(self) -> str | None:
        gate = self.parent.selected.gate
        return None if gate is None else descriptive_reason(gate)


def item_outcome(result: GateResult, metric: str, descriptive: str | None) -> tuple[Outcome, str]:
    """Return one metric's outcome and why; an invalid gate makes all its metrics invalid."""
    if result.outcome is Outcome.INVALID:
        return Outcome.INVALID, "\n".join(result.problems)
    verdict = result.verdict(metric)
    if descriptive is not None:
        return Outcome.INCONCLUSIVE, f"{verdict.reason}; {descriptive}"
    return verdict.outcome, verdict.reason


def properties(result: GateResult, metric: str, outcome: Outcome) -> list[tuple[str, object]]:
    """Return what JUnit shows as the item's properties, named as in the result's JSON."""
    shared: list[tuple[str, object]] = [
        ("gate", result.gate),
        ("label", result.label),
        ("outcome", str(outcome)),
        ("metric", metric),
        ("unit", METRICS[metric].unit),
        ("candidate_engine", result.candidate.name),
        ("baseline_engine", result.baseline.name),
        ("digest", result.digest),
    ]
    return shared + [
        entry
        for verdict in result.verdicts
        if verdict.metric == metric
        for entry in _verdict_properties(verdict)
    ]


def _verdict_properties(verdict: MetricVerdict) -> list[tuple[str, object]]:
    return [
        ("candidate", verdict.candidate.value),
        ("baseline", verdict.baseline.value),
        ("ratio", verdict.ratio.value),
        ("ratio_lower", verdict.ratio.lower),
        ("ratio_upper", verdict.ratio.upper),
        ("num_rounds", verdict.ratio.num_rounds),
        *((limit.limit, limit.required) for limit in verdict.limits),
    ]
