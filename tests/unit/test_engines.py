"""Each kind of engine has its adapter."""

from pathlib import Path

import pytest
from fakes.named_engines import RecordedProgress, named_engine

from pytest_qperf.adapters.engine_embedded import EmbeddedAdapter, embedded_command
from pytest_qperf.adapters.engine_endpoint import EndpointAdapter, server_root
from pytest_qperf.adapters.engine_trtllm import TrtllmAdapter
from pytest_qperf.adapters.engine_vllm import VllmAdapter
from pytest_qperf.adapters.engines import adapter_for
from pytest_qperf.core.artifacts import BuildArtifact
from pytest_qperf.core.errors import BuildError, RecipeError
from pytest_qperf.core.recipe import (
    EmbeddedEngine,
    EndpointEngine,
    EngineRecipe,
    SyntheticModel,
    TrtllmEngine,
    VllmEngine,
)
from pytest_qperf.ports import EngineAdapter

VLLM = VllmEngine(description="d", model="m", kind="vllm", precision="fp8", image="i")
TRTLLM = TrtllmEngine(
    description="d", model="m", kind="trtllm", precision="fp8", image="trt:1.2.1", plugin_source="p"
)
EMBEDDED = EmbeddedEngine(description="d", model="org/name", kind="embedded", precision="fp32")
ENDPOINT = EndpointEngine(description="d", model="", kind="endpoint", base_url="http://h:1")


@pytest.mark.parametrize(
    ("recipe", "adapter"),
    [
        (VLLM, VllmAdapter),
        (TRTLLM, TrtllmAdapter),
        (EMBEDDED, EmbeddedAdapter),
        (ENDPOINT, EndpointAdapter),
    ],
)
def test_each_kind_has_its_adapter(recipe: EngineRecipe, adapter: type) -> None:
    found: EngineAdapter = adapter_for(named_engine(recipe))
    assert type(found) is adapter


def test_tensorrt_llm_is_refused_with_the_recipe_that_asked_for_it(tmp_path: Path) -> None:
    engine = named_engine(TRTLLM)
    adapter = TrtllmAdapter()
    expected = (
        "engine arm-under-test: expected a builder for kind 'trtllm' \\(image 'trt:1.2.1'\\), "
        "got none: this version has no TensorRT-LLM builder yet"
    )
    with pytest.raises(BuildError, match=expected):
        adapter.build(engine, cache_dir=tmp_path, progress=RecordedProgress())
    with pytest.raises(BuildError, match=expected):
        adapter.launch(
            engine,
            BuildArtifact(model="m"),
            log_path=tmp_path / "log",
            progress=RecordedProgress(),
        )


def test_an_engine_given_to_another_kinds_adapter_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected a VllmEngine, got a EndpointEngine"):
        VllmAdapter().build(named_engine(ENDPOINT), cache_dir=tmp_path, progress=RecordedProgress())


def test_the_embedded_engine_downloads_nothing(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="got the hub id 'org/name': the embedded engine downl"):
        EmbeddedAdapter().build(
            named_engine(EMBEDDED), cache_dir=tmp_path, progress=RecordedProgress()
        )


def test_the_embedded_command_names_the_library_only_with_fp8() -> None:
    fp32 = BuildArtifact(model="/m")
    fp8 = BuildArtifact(model="/m", libraries={"fp8_gemm": Path("/cache/lib.so")})
    command = embedded_command(EMBEDDED, fp32, port=8123)
    assert command[1:] == [
        *("-m", "pytest_qperf.embedded", "--model", "/m", "--port", "8123"),
        *("--precision", "fp32", "--num-threads", "2", "--max-batch-size", "8"),
    ]
    with_library = " ".join(embedded_command(EMBEDDED, fp8, port=8123))
    assert "--library /cache/lib.so" in with_library


def test_a_synthetic_checkpoint_cannot_be_put_into_a_running_server(tmp_path: Path) -> None:
    synthetic = SyntheticModel(synthetic="qwen2-tiny", quantization="bf16", seed=0)
    engine = named_engine(ENDPOINT.model_copy(update={"model": synthetic}))
    with pytest.raises(BuildError, match="expected the name that http://h:1 serves, got a synth"):
        EndpointAdapter().build(engine, cache_dir=tmp_path, progress=RecordedProgress())


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_an_endpoint_may_be_given_as_openai_clients_write_it(url: str) -> None:
    assert server_root(url) == "http://h:1"


@pytest.mark.parametrize("url", ["http://", "http://h:port", "http://h:70000", "https://:80"])
def test_an_endpoint_without_a_host_or_with_a_wrong_port_is_refused(
    tmp_path: Path, url: str
) -> None:
    engine = named_engine(ENDPOINT.model_copy(update={"base_url": url}))
    with pytest.raises(RecipeError) as caught:
        EndpointAdapter().build(engine, cache_dir=tmp_path, progress=RecordedProgress())
    assert caught.value.problems == (
        "engine arm-under-test: base_url: expected http(s)://HOST, http(s)://HOST:PORT "
        f"or either with a path, got {url!r}",
    )
