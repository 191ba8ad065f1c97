"""The recipes that travel with the package load, say what they claim, and match their schemas."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_qperf.adapters.recipe_file import (
    ENGINE,
    GATE,
    WORKLOAD,
    RecipeKind,
    RecipeLibrary,
    read_recipe,
)
from pytest_qperf.adapters.recipe_schema import recipe_schemas, write_schemas
from pytest_qperf.adapters.resources import packaged_recipes_root
from pytest_qperf.adapters.yaml_strict import load_yaml
from pytest_qperf.core.recipe import RandomTokenPrompts, TrtllmEngine, VllmEngine

ROOT = packaged_recipes_root()
LIBRARY = RecipeLibrary((ROOT,))
KINDS: dict[str, RecipeKind[Any]] = {kind.folder: kind for kind in (ENGINE, WORKLOAD, GATE)}
FILES = sorted(path for folder in KINDS for path in (ROOT / folder).iterdir())


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def values_in(path: Path) -> dict[str, Any]:
    return dict(load_yaml(path.read_bytes(), source=path.name).value)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_shipped_recipe_is_valid(path: Path) -> None:
    assert path.suffix == ".yaml"
    read_recipe(path, KINDS[path.parent.name])


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_shipped_recipe_names_its_schema_and_conforms_to_it(path: Path) -> None:
    schema_path = f"../schema/{KINDS[path.parent.name].noun}.schema.json"
    first_line = path.read_text(encoding="utf-8").splitlines()[0]
    assert first_line == f"# yaml-language-server: $schema={schema_path}"
    schema = json.loads((path.parent / schema_path).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(values_in(path))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_schema_refuses_an_unknown_key(path: Path) -> None:
    schema = json.loads(recipe_schemas()[f"{KINDS[path.parent.name].noun}.schema.json"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({**values_in(path), "unknown": 1})


def test_the_gate_schema_refuses_an_unknown_metric() -> None:
    value = values_in(ROOT / "gates" / "embedded.yaml")
    value["thresholds"] = {"latency": {"max_value": 1}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json.loads(recipe_schemas()["gate.schema.json"])).validate(
            value
        )


def test_the_schemas_are_up_to_date(tmp_path: Path) -> None:
    written = write_schemas(tmp_path / "schema")
    assert [path.name for path in written] == list(recipe_schemas())
    shipped = sorted((ROOT / "schema").iterdir())
    assert [path.name for path in shipped] == sorted(path.name for path in written)
    for path in written:
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))
        assert (ROOT / "schema" / path.name).read_text(encoding="utf-8") == path.read_text(
            encoding="utf-8"
        )


@pytest.mark.parametrize("name", LIBRARY.gate_names())
def test_a_shipped_gate_resolves_and_keeps_one_root(name: str) -> None:
    gate = LIBRARY.load_gate(name)
    assert gate.candidate.recipes_root == gate.baseline.recipes_root == ROOT
    assert gate.candidate.recipe.model == gate.baseline.recipe.model


def test_the_gates_are_these_three() -> None:
    assert list(LIBRARY.gate_names()) == ["embedded", "qwen2.5-7b-h200", "vllm-kv-h200"]


def test_the_case_asks_for_2000_in_1000_out_with_32_in_flight() -> None:
    workload = LIBRARY.load_gate("qwen2.5-7b-h200").workload
    assert (workload.isl_tokens, workload.osl_tokens, workload.concurrency) == (2000, 1000, 32)
    assert (workload.arrival, workload.num_requests) == ("burst", 96)
    assert isinstance(workload.prompts, RandomTokenPrompts)
    assert workload.prompts.max_token_id < 151_643  # Qwen2.5's first special token


def test_the_case_requires_its_two_ratios() -> None:
    limits = {
        name: threshold.limits()
        for name, threshold in LIBRARY.load_gate("qwen2.5-7b-h200").recipe.thresholds.items()
    }
    assert limits == {
        "generation_rate_mean_tokens_per_s": {"min_ratio_to_baseline": 1.518},
        "ttft_mean_s": {"max_ratio_to_baseline": 0.762},
    }


def test_the_patched_engine_is_built_with_the_cases_flags() -> None:
    engine = LIBRARY.load_engine("trtllm-fp8-patched").recipe
    assert isinstance(engine, TrtllmEngine)
    flags = (
        "--gemm_plugin fp8 --tokens_per_block 64 "
        "--use_fp8_context_fmha enable --use_paged_context_fmha enable"
    )
    assert " ".join(engine.build_arguments).startswith(flags)


def test_the_two_arms_of_the_kv_gate_differ_in_the_kv_cache_alone() -> None:
    gate = LIBRARY.load_gate("vllm-kv-h200")
    candidate, baseline = gate.candidate.recipe, gate.baseline.recipe
    assert isinstance(candidate, VllmEngine)
    assert isinstance(baseline, VllmEngine)
    changed = {
        "description": baseline.description,
        "arguments": tuple("auto" if word == "fp8" else word for word in candidate.arguments),
        "expect": candidate.expect.model_copy(update={"kv_cache_dtype": "auto"}),
    }
    assert candidate.model_copy(update=changed) == baseline


def test_every_vllm_engine_expects_its_prefix_cache_off_and_turns_it_off() -> None:
    for name in ("vllm-fp8", "vllm-fp8-kv-fp8", "vllm-fp8-kv-bf16"):
        engine = LIBRARY.load_engine(name).recipe
        assert isinstance(engine, VllmEngine)
        assert "--no-enable-prefix-caching" in engine.arguments
        assert engine.expect.prefix_caching is False


def test_the_embedded_workload_stays_inside_the_embedded_vocabulary() -> None:
    prompts = LIBRARY.load_gate("embedded").workload.prompts
    assert isinstance(prompts, RandomTokenPrompts)
    assert prompts.max_token_id < 4096
