"""The hooks of a pytest run with ``--qperf``: collect the gates, end the engines, show results."""

from contextlib import ExitStack

import pytest

from pytest_qperf.adapters.supervisor import handle_sigterm
from pytest_qperf.core.errors import QperfError
from pytest_qperf.engine_pool import close_engine_pool
from pytest_qperf.gate_items import GateItem, collect_gates
from pytest_qperf.gate_runs import gate_results
from pytest_qperf.options import FIXTURES, QperfOptions
from pytest_qperf.report.plan import render_plan
from pytest_qperf.report.terminal import render_result
from pytest_qperf.selection import Selection, select_gates


class GatePlugin:
    """Registered only with ``--qperf``."""

    def __init__(self, options: QperfOptions) -> None:
        self._options = options
        self._selection = Selection((), ())
        self._signals = ExitStack()

    def pytest_sessionstart(self) -> None:
        """Let SIGTERM unwind like Ctrl-C, so that engines end with the run."""
        self._signals.enter_context(handle_sigterm())

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Add the gates after the tests, then drop what --qperf-only or --qperf-skip exclude.

        First of all plugins, so that ``-k``, ``-m`` and ``--deselect`` apply to gates too.
        """
        if not self._options.is_skip:
            try:
                self._selection = select_gates(self._options, config.rootpath)
            except QperfError as error:
                raise pytest.UsageError(str(error)) from error
            items.extend(collect_gates(session, self._selection.gates))
        dropped = [item for item in items if not self._is_wanted(item)]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = [item for item in items if self._is_wanted(item)]

    def pytest_report_collectionfinish(self) -> list[str]:
        """Return which gates run and which do not, with the reason."""
        names = ", ".join(gate.name for gate in self._selection.gates) or "none"
        lines = [f"qperf: gates: {names}"]
        lines += [f"qperf: not run: {name}: {why}" for name, why in self._selection.left_out]
        if self._options.is_dry_run:
            lines += [
                line
                for selected in self._selection.gates
                if selected.gate is not None
                for line in render_plan(selected.gate, self._options.rounds).splitlines()
            ]
        return lines

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """Show an undecided gate by a letter of its own; it still counts as an error."""
        outcome = dict(report.user_properties).get("outcome")
        if report.when == "setup" and report.failed and outcome == "INCONCLUSIVE":
            return "error", "I", ("INCONCLUSIVE", {"yellow": True})
        return None

    def pytest_terminal_summary(
        self,
        terminalreporter: "pytest.TerminalReporter",  # in quotes: not in pytest before 8.4
        config: pytest.Config,
    ) -> None:
        """Show each gate's table, and again what did not run."""
        results = gate_results(config)
        if not results and not self._selection.left_out:
            return
        terminalreporter.section("qperf")
        for result in results.values():
            terminalreporter.write(render_result(result))
            terminalreporter.line("")
        for name, why in self._selection.left_out:
            terminalreporter.line(f"{name}: not run: {why}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the engine that a fixture may have left running."""
        try:
            close_engine_pool(session.config)
        finally:
            self._signals.close()

    def _is_wanted(self, item: pytest.Item) -> bool:
        is_ours = isinstance(item, GateItem) or bool(
            FIXTURES.intersection(getattr(item, "fixturenames", ()))
        )
        if self._options.is_only:
            return is_ours
        return not (self._options.is_skip and is_ours)
