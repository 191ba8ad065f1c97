"""Engines through the real supervisor: a scripted vLLM, somebody else's server, the NumPy one."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from fakes.fake_vllm import cache_config_metric, install_fake_vllm
from fakes.named_engines import RecordedProgress, named_engine
from fakes.reply_server import serve_replies

from pytest_qperf.adapters.engine_embedded import EmbeddedAdapter
from pytest_qperf.adapters.engine_endpoint import EndpointAdapter
from pytest_qperf.adapters.engine_vllm import VllmAdapter
from pytest_qperf.adapters.http_exchange import fetch
from pytest_qperf.core.artifacts import BuildArtifact, RunningEngine
from pytest_qperf.core.errors import EngineError
from pytest_qperf.core.recipe import EmbeddedEngine, EndpointEngine, SyntheticModel, VllmEngine

REPOSITORY = Path(__file__).resolve().parent.parent.parent
FP8_ARGUMENTS = (
    *("--quantization", "fp8", "--kv-cache-dtype", "fp8"),
    "--no-enable-prefix-caching",
)
FP8_FACTS = {
    "version": "0.25.1",
    "quantization": "fp8",
    "kv_cache_dtype": "fp8",
    "prefix_caching": False,
}
SERVED: dict[str, list[tuple[int, object]]] = {
    "/v1/models": [(200, {"data": [{"id": "their-model"}]})],
    "/v1/completions": [(200, {"usage": {"completion_tokens": 2}})],
    "/version": [(200, {"version": "0.25.1"})],
    "/metrics": [(200, cache_config_metric(cache_dtype="fp8", enable_prefix_caching="False"))],
}


@dataclass
class FakeVllm:
    """A recipe for the scripted vLLM, its folder and what was shown."""

    site: Path
    variables: dict[str, str]
    log_path: Path
    progress: RecordedProgress

    @contextmanager
    def launch(self, misbehaviour: str = "", **changes: object) -> Iterator[RunningEngine]:
        environment = self.variables | {"FAKE_VLLM_MISBEHAVIOUR": misbehaviour}
        values: dict[str, object] = {
            "description": "d",
            "kind": "vllm",
            "model": "org/name",
            "precision": "fp8",
            "interpreter": sys.executable,
            "arguments": FP8_ARGUMENTS,
            "ready_timeout_s": 20.0,
            "expect": FP8_FACTS,
            "environment": environment,
        }
        engine = named_engine(VllmEngine.model_validate(values | changes))
        with VllmAdapter().launch(
            engine,
            BuildArtifact(model="org/name"),
            log_path=self.log_path,
            progress=self.progress,
        ) as running:
            yield running

    def failure(self, misbehaviour: str = "", **changes: object) -> str:
        with pytest.raises(EngineError) as caught, self.launch(misbehaviour, **changes):
            pass
        return str(caught.value)


@pytest.fixture
def vllm(tmp_path: Path) -> FakeVllm:
    variables = install_fake_vllm(tmp_path / "site")
    return FakeVllm(tmp_path / "site", variables, tmp_path / "engine.log", RecordedProgress())


def test_vllm_is_served_with_confirmed_facts_and_gone_afterwards(vllm: FakeVllm) -> None:
    with vllm.launch() as running:
        assert fetch(f"{running.base_url}/health").status == 200
        assert running.pid is not None
        assert psutil.pid_exists(running.pid)
    assert running.served_model == "qperf"
    assert running.facts == {
        "version": "0.25.1",
        "dtype": "bfloat16",
        "quantization": "fp8",
        "kv_cache_dtype": "fp8",
        "prefix_caching": "false",
        "num_gpu_blocks": "121763",
    }
    assert running.log_path == vllm.log_path
    assert running.start_s > 0.0
    assert not psutil.pid_exists(running.pid)
    with pytest.raises(ConnectionRefusedError):
        fetch(f"{running.base_url}/health")


def test_facts_hold_from_the_log_alone_without_statistics(vllm: FakeVllm) -> None:
    with vllm.launch(arguments=(*FP8_ARGUMENTS, "--disable-log-stats")) as running:
        assert running.facts["kv_cache_dtype"] == "fp8"
        assert "num_gpu_blocks" not in running.facts


def test_vllm_that_dies_shows_exit_code_last_log_lines_and_log(vllm: FakeVllm) -> None:
    head, *tail = vllm.failure("die").splitlines()
    assert head.startswith(
        "engine arm-under-test: expected a generated token within 20 s, got exit code 7 after "
    )
    assert head.endswith(f"; last 40 lines of {vllm.log_path}:")
    assert len(tail) == 40
    assert tail[0].endswith("line 21 of 60")
    assert tail[-1].endswith("line 60 of 60")


def test_vllm_that_never_serves_is_stopped_at_the_timeout(vllm: FakeVllm) -> None:
    message = vllm.failure("never-ready", ready_timeout_s=1.0)
    assert "expected a generated token within 1 s, got none (ConnectionRefusedError" in message
    assert message.endswith("Starting to load model")
    assert any("starting, " in update for update in vllm.progress.updates)


def test_vllm_that_is_healthy_but_generates_nothing_is_an_error(vllm: FakeVllm) -> None:
    message = vllm.failure("completions-500")
    assert "got POST /v1/completions answered HTTP 500: " in message
    assert "EngineCore encountered an issue." in message


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("VERSION", "0.24.0", "facts: expected version '0.25.1', the server says '0.24.0'"),
        ("KV_CACHE_DTYPE", "auto", "facts: expected kv_cache_dtype 'fp8', the server says 'auto'"),
    ],
)
def test_vllm_that_is_not_what_the_recipe_states_is_an_error(
    vllm: FakeVllm, variable: str, value: str, problem: str
) -> None:
    vllm.variables[f"FAKE_VLLM_{variable}"] = value
    message = vllm.failure()
    assert message.startswith("engine arm-under-test: the running server is not what its recipe")
    assert message.splitlines()[1:] == [f"  {problem}"]


def test_vllm_that_does_not_confirm_its_facts_is_an_error(vllm: FakeVllm) -> None:
    problems = vllm.failure("facts-dropped").splitlines()[1:]
    assert problems == [
        f"  facts: expected {fact}, the server does not say"
        for fact in (
            "quantization 'fp8'",
            "kv_cache_dtype 'fp8'",
            "prefix_caching 'false'",
            "precision 'fp8'",
        )
    ]


def test_vllm_that_hangs_up_when_asked_for_its_facts_is_an_error(vllm: FakeVllm) -> None:
    message = vllm.failure("version-dropped")
    assert message.startswith(
        "engine arm-under-test: expected answers about its version and configuration, got "
    )
    assert message.endswith(f"; log: {vllm.log_path}")


def test_what_an_earlier_start_logged_confirms_nothing(vllm: FakeVllm) -> None:
    with vllm.launch():
        pass
    assert "expected quantization 'fp8', the server does not say" in vllm.failure("facts-dropped")


def test_a_port_taken_meanwhile_is_exchanged_for_another(vllm: FakeVllm) -> None:
    with vllm.launch("port-taken-once") as running:
        assert running.facts["version"] == "0.25.1"
    assert vllm.progress.notes == [
        "engine arm-under-test: its port was taken; trying another",
    ]


def test_a_port_taken_twice_is_an_error_with_the_log(vllm: FakeVllm) -> None:
    message = vllm.failure("port-taken-always")
    assert "got exit code 1 after " in message
    assert message.endswith("Address already in use")
    assert len(vllm.progress.notes) == 1


def test_a_daemon_of_vllm_ends_with_it(vllm: FakeVllm) -> None:
    with vllm.launch("daemon"):
        daemon = psutil.Process(int((vllm.site / "daemon.pid").read_text()))
        assert daemon.is_running()
    assert not daemon.is_running()


def test_an_interpreter_that_cannot_be_started_is_an_error(vllm: FakeVllm) -> None:
    message = vllm.failure(interpreter="/nowhere/python")
    assert message.startswith("/nowhere/python: expected a program that can be started, got ")


def test_vllm_in_an_image_is_killed_by_name_on_leaving(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    # `docker run` serves by the scripted vLLM: what stands after the image is `serve MODEL ...`.
    docker.write_text(
        f"#!/bin/sh\necho $1 $2 $3 $4 >> {tmp_path}/calls\n"
        f'[ "$1" = run ] || exit 0\n'
        f'while [ "$1" != an-image ]; do shift; done; shift\n'
        f'exec "{sys.executable}" -m vllm.entrypoints.cli.main "$@"\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}{os.pathsep}{os.environ['PATH']}")
    for name, value in vllm.variables.items():
        monkeypatch.setenv(name, value)
    with vllm.launch(interpreter=None, image="an-image") as running:
        assert running.facts["kv_cache_dtype"] == "fp8"
    run, kill, listing = (tmp_path / "calls").read_text().splitlines()
    name = run.removeprefix("run --rm --name ")
    assert name.startswith("qperf-")
    assert kill.split() == ["kill", name]
    assert listing.split() == ["ps", "--quiet", "--filter", f"name=^{name}$"]


def endpoint(base_url: str, **changes: object) -> EndpointEngine:
    values: dict[str, object] = {
        "description": "d",
        "kind": "endpoint",
        "model": "",
        "base_url": base_url,
        "ready_timeout_s": 5.0,
    }
    return EndpointEngine.model_validate(values | changes)


@contextmanager
def attached(recipe: EndpointEngine, log_path: Path) -> Iterator[RunningEngine]:
    adapter, engine, progress = EndpointAdapter(), named_engine(recipe), RecordedProgress()
    artifact = adapter.build(engine, cache_dir=log_path.parent, progress=progress)
    with adapter.launch(engine, artifact, log_path=log_path, progress=progress) as running:
        yield running


def attach_failure(recipe: EndpointEngine, log_path: Path) -> str:
    with pytest.raises(EngineError) as caught, attached(recipe, log_path):
        pass
    return str(caught.value)


def test_an_endpoint_is_asked_for_its_model_and_facts(tmp_path: Path) -> None:
    expect = {"version": "0.25.1", "kv_cache_dtype": "fp8", "prefix_caching": False}
    with serve_replies(SERVED) as server:
        recipe = endpoint(f"{server.base_url}/v1", expect=expect)
        with attached(recipe, tmp_path / "log") as running:
            assert (running.base_url, running.served_model) == (server.base_url, "their-model")
            assert (running.pid, running.log_path) == (None, None)
        assert fetch(f"{server.base_url}/version").status == 200


def test_an_endpoint_that_contradicts_its_recipe_is_an_error(tmp_path: Path) -> None:
    with serve_replies(SERVED) as server:
        message = attach_failure(
            endpoint(server.base_url, expect={"quantization": "fp8"}), tmp_path / "log"
        )
    assert message.splitlines()[1:] == [
        "  facts: expected quantization 'fp8', the server does not say"
    ]


def test_an_endpoint_that_stops_answering_is_an_error(tmp_path: Path) -> None:
    with serve_replies(SERVED | {"/version": [(0, "")]}) as server:
        message = attach_failure(endpoint(server.base_url), tmp_path / "log")
    assert "expected answers about its version and configuration from http" in message


def test_an_endpoint_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    message = attach_failure(endpoint("http://127.0.0.1:1"), tmp_path / "log")
    assert "expected a server at http://127.0.0.1:1, got ConnectionRefusedError" in message


def test_an_endpoint_is_restarted_by_its_command_first(tmp_path: Path) -> None:
    command = ["sh", "-c", f'echo "$GREETING" > {tmp_path}/restarted; echo restarting']
    with serve_replies(SERVED) as server:
        recipe = endpoint(
            server.base_url, restart_command=tuple(command), environment={"GREETING": "hello"}
        )
        with attached(recipe, tmp_path / "logs" / "restart.log"):
            assert (tmp_path / "restarted").read_text() == "hello\n"
    assert (tmp_path / "logs" / "restart.log").read_text() == "restarting\n"


@pytest.mark.parametrize(
    ("command", "timeout_s", "message"),
    [
        (("sh", "-c", "echo no such unit; exit 5"), 5.0, "expected exit code 0, got exit code 5; "),
        (("sh", "-c", "echo stuck; sleep 60"), 0.3, "expected exit code 0, got no end within 0.3"),
        (("/nowhere/restart",), 5.0, "expected '/nowhere/restart' to run, got [Errno 2]"),
    ],
)
def test_a_restart_command_that_fails_is_an_error_with_its_output(
    tmp_path: Path, command: tuple[str, ...], timeout_s: float, message: str
) -> None:
    recipe = endpoint("http://127.0.0.1:1", restart_command=command, ready_timeout_s=timeout_s)
    error = attach_failure(recipe, tmp_path / "log")
    assert error.startswith(f"engine arm-under-test: restart_command: {message}")
    if command[0] == "sh":
        assert error.splitlines()[1] in ("no such unit", "stuck")


@pytest.fixture
def start_embedded(tmp_path: Path) -> Callable[..., RunningEngine]:
    """Give a function that builds and starts a tiny embedded engine once, and stops it."""

    def start(**changes: object) -> RunningEngine:
        values: dict[str, object] = {
            "description": "d",
            "kind": "embedded",
            "precision": "fp32",
            "model": SyntheticModel(synthetic="qwen2-tiny", quantization="fp8-static", seed=0),
            "num_threads": 1,
            "max_batch_size": 2,
            "ready_timeout_s": 30.0,
        }
        recipe = EmbeddedEngine.model_validate(values | changes)
        engine = named_engine(recipe, recipes_root=REPOSITORY / "engine_recipes")
        adapter, progress = EmbeddedAdapter(), RecordedProgress()
        artifact = adapter.build(engine, cache_dir=tmp_path / "cache", progress=progress)
        assert (recipe.precision == "fp8") == ("plugin_hash" in artifact.provenance)
        log_path = tmp_path / "embedded.log"
        with adapter.launch(engine, artifact, log_path=log_path, progress=progress) as running:
            assert fetch(f"{running.base_url}/health").status == 200
        return running

    return start


def test_the_embedded_engine_confirms_numpy_layers_in_fp32(
    start_embedded: Callable[..., RunningEngine],
) -> None:
    running = start_embedded(expect={"linear_backend": "numpy-fp32"})
    assert running.facts["linear_backend"] == "numpy-fp32"
    assert running.pid is not None
    assert not psutil.pid_exists(running.pid)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_embedded_engine_confirms_the_plugins_layers_in_fp8(
    start_embedded: Callable[..., RunningEngine],
) -> None:
    running = start_embedded(
        precision="fp8",
        plugin_source="plugins/fp8_gemm",
        expect={"linear_backend": "fp8-gemm"},
    )
    assert running.facts["linear_backend"] == "fp8-gemm"


def test_an_embedded_engine_with_other_layers_than_stated_is_an_error(
    start_embedded: Callable[..., RunningEngine],
) -> None:
    with pytest.raises(EngineError, match="expected linear_backend 'fp8-gemm', the server says"):
        start_embedded(expect={"linear_backend": "fp8-gemm"})
