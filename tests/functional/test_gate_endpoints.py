"""Gates over servers that already run: figures without a verdict, unless they are restarted."""

from collections.abc import Iterator

import pytest
from fakes.gate_projects import STEP_S, GateProject
from fakes.named_engines import RecordedProgress, named_engine
from fakes.reply_server import serve_replies

from pytest_qperf.adapters.engine_embedded import EmbeddedAdapter
from pytest_qperf.adapters.supervisor import free_port
from pytest_qperf.core.recipe import EmbeddedEngine, SyntheticModel

TTFT = "ttft_mean_s"


@pytest.fixture(scope="module")
def base_url(module_project: GateProject) -> Iterator[str]:
    """Give the address of a running embedded engine."""
    site = module_project.folder / "engine_site"
    recipe = EmbeddedEngine(
        description="d",
        kind="embedded",
        precision="fp32",
        model=SyntheticModel(synthetic="qwen2-tiny", quantization="fp8-dynamic", seed=0),
        num_threads=1,
        max_batch_size=2,
        ready_timeout_s=30.0,
        environment={"PYTHONPATH": str(site), "STEP_S": f"{STEP_S}"},
    )
    engine, adapter, progress = named_engine(recipe), EmbeddedAdapter(), RecordedProgress()
    artifact = adapter.build(engine, cache_dir=module_project.cache, progress=progress)
    log_path = module_project.folder / "served.log"
    with adapter.launch(engine, artifact, log_path=log_path, progress=progress) as running:
        yield running.base_url


def test_running_servers_give_figures_and_no_verdict(project: GateProject, base_url: str) -> None:
    run = project.gate(
        "good", f"--qperf-candidate-url={base_url}", f"--qperf-baseline-url={base_url}"
    )
    kind, message = run.message(TTFT)
    assert (run.exit_code, kind) == (1, "error")
    assert "INCONCLUSIVE: TTFT, mean: " in message
    assert f"candidate: {base_url} was not restarted between rounds" in message
    assert "give the endpoint recipe a restart_command to get a verdict" in message
    stored = project.result("good")
    assert (stored["outcome"], stored["label"]) == ("INCONCLUSIVE", "endpoint")
    assert len(stored["runs"]) == 4
    assert "good: INCONCLUSIVE [endpoint: not every server was started by this run]" in run.output
    properties = run.properties(TTFT)
    assert (properties["label"], properties["outcome"]) == ("endpoint", "INCONCLUSIVE")
    assert float(properties["ratio"]) > 0


def test_a_server_that_is_restarted_between_runs_is_judged(
    project: GateProject, base_url: str
) -> None:
    for name in ("fast", "steady"):
        endpoint = {"description": "d", "kind": "endpoint", "model": "", "base_url": "http://x"}
        project.write_recipe(f"engines/{name}.yaml", endpoint | {"restart_command": ["true"]})
    run = project.gate(
        "good", f"--qperf-candidate-url={base_url}", f"--qperf-baseline-url={base_url}"
    )
    assert run.exit_code == 0, run.output
    assert project.result("good")["outcome"] == "PASS"


def test_an_address_where_nobody_serves_is_an_error(project: GateProject) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    run = project.gate("good", f"--qperf-baseline-url={url}")
    kind, message = run.message(TTFT)
    assert (run.exit_code, kind) == (1, "error")
    assert f"INVALID: engine steady: expected a server at {url}, got ConnectionRefused" in message


def test_a_server_that_answers_with_an_error_is_one(project: GateProject) -> None:
    with serve_replies({"/v1/models": [(404, "no such page")]}) as server:
        run = project.gate("good", f"--qperf-baseline-url={server.base_url}")
    assert run.exit_code == 1
    assert "GET /v1/models answered HTTP 404" in run.message(TTFT)[1]


def test_a_fixtures_engine_can_be_a_running_server(project: GateProject, base_url: str) -> None:
    # Its GPU may be anywhere, so that the gate's need not be here.
    project.write_gate("remote", hardware={"gpu": "No Such GPU 9000"})
    project.write_test(
        "def test_figures(candidate_engine, qperf_workload):\n"
        f"    assert candidate_engine.base_url == {base_url!r}\n"
        "    assert candidate_engine.measure(qperf_workload)['ttft_mean_s'] > 0\n"
    )
    run = project.gate("remote", f"--qperf-candidate-url={base_url}", "-k", "test_figures")
    assert run.exit_code == 0, run.output
