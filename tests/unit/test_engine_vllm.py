"""The vLLM adapter before anything is started: build, precision, refusals."""

import sys
from pathlib import Path

import pytest
from fakes.fake_vllm import install_fake_vllm
from fakes.named_engines import RecordedProgress, named_engine

from pytest_qperf.adapters.engine_vllm import VllmAdapter, fact_problems
from pytest_qperf.core.artifacts import BuildArtifact
from pytest_qperf.core.errors import BuildError, EngineError, RecipeError
from pytest_qperf.core.recipe import VllmEngine


def vllm_recipe(**changes: object) -> VllmEngine:
    values: dict[str, object] = {
        "description": "d",
        "kind": "vllm",
        "model": "Qwen/Qwen2.5-7B",
        "precision": "fp8",
        "interpreter": sys.executable,
    }
    return VllmEngine.model_validate(values | changes)


def build(recipe: VllmEngine, tmp_path: Path) -> BuildArtifact:
    return VllmAdapter().build(
        named_engine(recipe), cache_dir=tmp_path, progress=RecordedProgress()
    )


def test_building_with_an_interpreter_that_has_vllm_gives_the_model(tmp_path: Path) -> None:
    artifact = build(vllm_recipe(environment=install_fake_vllm(tmp_path / "site")), tmp_path)
    assert artifact.model == "Qwen/Qwen2.5-7B"
    assert artifact.provenance == {"model_source": "hub id Qwen/Qwen2.5-7B"}
    assert artifact.libraries == {}


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="got '/nowhere/python', which is not there") as caught:
        build(vllm_recipe(interpreter="/nowhere/python"), tmp_path)
    assert str(caught.value).startswith("engine arm-under-test: interpreter: expected a python")


def test_an_interpreter_without_vllm_is_named_with_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="which cannot \\(exit code 1\\)") as caught:
        build(vllm_recipe(environment={"PYTHONPATH": str(tmp_path)}), tmp_path)
    assert f"run `{sys.executable} -m pip install vllm`" in str(caught.value)


def test_an_interpreter_that_is_no_program_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    with pytest.raises(BuildError, match=r"interpreter: expected '.*python' to run, got "):
        build(vllm_recipe(interpreter=str(broken)), tmp_path)


def test_every_reserved_argument_is_listed_with_the_engine(tmp_path: Path) -> None:
    recipe = vllm_recipe(arguments=("--port", "1", "--host=0.0.0.0"))
    with pytest.raises(RecipeError) as caught:
        build(recipe, tmp_path)
    assert len(caught.value.problems) == 2
    assert all(
        problem.startswith("engine arm-under-test: arguments: expected no --")
        for problem in caught.value.problems
    )


def test_a_plugin_for_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="plugin_source: expected none, got 'plugins/fp8_gemm'"):
        build(vllm_recipe(plugin_source="plugins/fp8_gemm"), tmp_path)


def test_an_image_without_docker_is_an_engine_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = named_engine(vllm_recipe(interpreter=None, image="vllm/vllm-openai:v0.25.1"))
    with pytest.raises(EngineError, match="image: expected docker on PATH to run 'vllm/vllm-ope"):
        VllmAdapter().launch(
            engine,
            BuildArtifact(model="m"),
            log_path=tmp_path / "log",
            progress=RecordedProgress(),
        )


def test_fp8_needs_a_quantization_and_bf16_needs_none() -> None:
    fp8, none = {"quantization": "fp8"}, {"quantization": "none", "dtype": "bfloat16"}
    assert fact_problems(vllm_recipe(), fp8) == []
    assert fact_problems(vllm_recipe(precision="bf16"), none) == []
    assert fact_problems(vllm_recipe(), none) == [
        "facts: expected precision 'fp8', the server says quantization 'none'"
    ]
    assert fact_problems(vllm_recipe(precision="bf16"), fp8 | {"dtype": "bfloat16"}) == [
        "facts: expected precision 'bf16', the server says quantization 'fp8'"
    ]


def test_bf16_needs_bfloat16_weights() -> None:
    facts = {"quantization": "none", "dtype": "float16"}
    assert fact_problems(vllm_recipe(precision="bf16"), facts) == [
        "facts: expected precision 'bf16', the server says dtype 'float16'"
    ]


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
def test_a_precision_the_server_does_not_confirm_is_a_problem(precision: str) -> None:
    problems = fact_problems(vllm_recipe(precision=precision), {"dtype": "bfloat16"})
    assert problems == [f"facts: expected precision '{precision}', the server does not say"]
