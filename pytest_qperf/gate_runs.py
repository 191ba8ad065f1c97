"""Runs a gate at most once in a pytest run, whoever asks first: an item or a fixture."""

import platformdirs
import pytest

from pytest_qperf.core.artifacts import ResolvedGate
from pytest_qperf.core.result import GateResult
from pytest_qperf.engine_pool import engine_pool
from pytest_qperf.options import QperfOptions
from pytest_qperf.pipeline import GateRequest, run_gate
from pytest_qperf.progress import pytest_progress

RESULTS_KEY = pytest.StashKey[dict[str, GateResult]]()


def gate_results(config: pytest.Config) -> dict[str, GateResult]:
    """Return the results of this pytest run so far, by gate key."""
    return config.stash.setdefault(RESULTS_KEY, {})


def run_gate_once(gate: ResolvedGate, config: pytest.Config) -> GateResult:
    """Return a gate's result, measured now or earlier in this pytest run.

    Raises ResultError if the run folder cannot be used.
    """
    results = gate_results(config)
    if gate.key not in results:
        # An engine that a fixture left running holds the lock this gate would wait for.
        engine_pool(config).close()
        progress = pytest_progress(config)
        try:
            results[gate.key] = run_gate(_request(gate, config), progress=progress)
        finally:
            progress.clear()
    return results[gate.key]


def _request(gate: ResolvedGate, config: pytest.Config) -> GateRequest:
    options = QperfOptions.from_pytest_config(config)
    return GateRequest(
        gate=gate,
        num_rounds=options.rounds or gate.recipe.rounds,
        report_dir=options.report_dir,
        cache_dir=platformdirs.user_cache_path("qperf"),
        repository=config.rootpath,
        command=("pytest", *config.invocation_params.args),
        lock_timeout_s=options.lock_timeout_s,
        resume_folder=options.resume_folder,
    )
