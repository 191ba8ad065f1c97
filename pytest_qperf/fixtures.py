"""The fixtures for users' own tests; everything heavy is imported when one is first used."""

from typing import TYPE_CHECKING

import pytest

from pytest_qperf.options import QperfOptions

if TYPE_CHECKING:
    from pytest_qperf.core.artifacts import ResolvedGate
    from pytest_qperf.core.recipe import WorkloadRecipe
    from pytest_qperf.core.records import Arm
    from pytest_qperf.core.result import GateResult
    from pytest_qperf.engine_pool import LazyEngine


@pytest.fixture
def qperf_gate(request: pytest.FixtureRequest) -> "ResolvedGate":
    """Return the gate a test is about: its marker's, or else the only one that is selected.

    Choose with ``@pytest.mark.qperf(gate="NAME")`` or ``--qperf-gate NAME``.
    """
    config = request.config
    options = QperfOptions.from_pytest_config(config)
    if not options.is_active:
        pytest.skip("needs --qperf")
    if options.is_dry_run:
        pytest.skip("dry run: nothing was measured")
    from pytest_qperf.selection import named_gate, only_gate

    marker = request.node.get_closest_marker("qperf")
    if marker is None:
        return only_gate(options, config.rootpath)
    unknown = sorted(set(marker.kwargs) - {"gate"})
    if marker.args or unknown or not isinstance(marker.kwargs.get("gate"), str):
        pytest.fail(
            '@pytest.mark.qperf: expected gate="NAME" and nothing else, got '
            f"{marker.args} {marker.kwargs}",
            pytrace=False,
        )
    return named_gate(marker.kwargs["gate"], options, config.rootpath)


@pytest.fixture
def qperf_workload(qperf_gate: "ResolvedGate") -> "WorkloadRecipe":
    """Return the gate's workload."""
    return qperf_gate.workload


@pytest.fixture
def candidate_engine(qperf_gate: "ResolvedGate", request: pytest.FixtureRequest) -> "LazyEngine":
    """Return the gate's candidate; built and started when it is first used."""
    return _engine(qperf_gate, "candidate", request.config)


@pytest.fixture
def baseline_engine(qperf_gate: "ResolvedGate", request: pytest.FixtureRequest) -> "LazyEngine":
    """Return the gate's baseline; built and started when it is first used."""
    return _engine(qperf_gate, "baseline", request.config)


@pytest.fixture
def trtllm_engine(candidate_engine: "LazyEngine") -> "LazyEngine":
    """Return the gate's candidate, which must be a patched TensorRT-LLM engine."""
    return _of_kind(candidate_engine, "trtllm", "trtllm_engine")


@pytest.fixture
def vllm_baseline(baseline_engine: "LazyEngine") -> "LazyEngine":
    """Return the gate's baseline, which must be served by vLLM."""
    return _of_kind(baseline_engine, "vllm", "vllm_baseline")


@pytest.fixture
def qperf_comparison(qperf_gate: "ResolvedGate", request: pytest.FixtureRequest) -> "GateResult":
    """Return the gate's result: both arms measured over all rounds, and judged.

    The gate runs once in a pytest run, whoever asks for it first. An INVALID result fails the
    test that asks for it.
    """
    from pytest_qperf.gate_runs import run_gate_once

    result = run_gate_once(qperf_gate, request.config)
    if result.problems:
        pytest.fail("INVALID: " + "\n".join(result.problems), pytrace=False)
    return result


def _engine(gate: "ResolvedGate", arm: "Arm", config: pytest.Config) -> "LazyEngine":
    from pytest_qperf.engine_pool import LazyEngine, engine_pool
    from pytest_qperf.pipeline import Tools
    from pytest_qperf.progress import pytest_progress

    return LazyEngine(
        gate=gate,
        arm=arm,
        pool=engine_pool(config),
        progress=pytest_progress(config),
        tools=Tools(),
    )


def _of_kind(engine: "LazyEngine", kind: str, fixture: str) -> "LazyEngine":
    recipe = engine.gate.engine(engine.arm).recipe
    if recipe.kind != kind:
        pytest.fail(
            f"{fixture}: expected gate {engine.gate.name} to have a {engine.arm} of kind {kind}, "
            f"got {engine.name} of kind {recipe.kind}; name another gate with "
            '@pytest.mark.qperf(gate="NAME")',
            pytrace=False,
        )
    return engine
