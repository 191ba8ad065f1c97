import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_qperf.checkpoint.config_file import (
    ModelConfig,
    read_config,
    render_config,
    render_generation_config,
    resolve_shape,
)
from pytest_qperf.checkpoint.shapes import SHAPES, Qwen2Shape
from pytest_qperf.core.errors import RecipeError
from pytest_qperf.core.recipe import Quantization

TINY = SHAPES["qwen2-tiny"]


def _config_file(folder: Path, **changes: Any) -> Path:
    content = json.loads(render_config(ModelConfig(TINY, "bf16"))) | changes
    path = folder / "config.json"
    path.write_text(json.dumps({k: v for k, v in content.items() if v != "ABSENT"}))
    return path


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("quantization", ["bf16", "fp8-static", "fp8-dynamic"])
def test_a_rendered_config_reads_back_as_the_same(
    tmp_path: Path, name: str, quantization: Quantization
) -> None:
    config = ModelConfig(SHAPES[name], quantization)
    path = tmp_path / "config.json"
    path.write_text(render_config(config))
    assert read_config(path) == config


def test_the_fp8_config_is_what_vllm_expects(tmp_path: Path) -> None:
    content = json.loads(render_config(ModelConfig(TINY, "fp8-static")))
    assert content["quantization_config"] == {
        "quant_method": "fp8",
        "activation_scheme": "static",
        "ignored_layers": ["lm_head"],
    }
    assert content["architectures"] == ["Qwen2ForCausalLM"]


def test_a_shape_is_found_by_name_or_by_the_path_of_a_config(tmp_path: Path) -> None:
    path = _config_file(tmp_path, hidden_size=128)
    assert resolve_shape("qwen2.5-7b").intermediate_size == 18944
    assert resolve_shape(str(path)) == replace(TINY, hidden_size=128)


def test_an_unknown_shape_lists_the_known_ones() -> None:
    with pytest.raises(RecipeError, match=r"expected one of qwen2.5-0.5b, .* got 'qwen9'"):
        resolve_shape("qwen9")


def test_qwen_7b_has_the_published_number_of_parameters() -> None:
    shape = SHAPES["qwen2.5-7b"]
    per_layer = (
        shape.hidden_size * (2 * shape.hidden_size + 2 * shape.kv_size)
        + shape.hidden_size
        + 2 * shape.kv_size
        + 3 * shape.hidden_size * shape.intermediate_size
        + 2 * shape.hidden_size
    )
    tables = 2 * shape.vocab_size * shape.hidden_size + shape.hidden_size
    assert per_layer * shape.num_hidden_layers + tables == 7_615_616_512


def test_rope_parameters_of_newer_configs_are_read(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    path = _config_file(tmp_path, rope_theta="ABSENT", rope_parameters=rope)
    assert read_config(path).shape.rope_theta == 10000.0


def test_generation_is_greedy_with_the_shapes_end_tokens() -> None:
    content = json.loads(render_generation_config(SHAPES["qwen2.5-7b"]))
    assert content["do_sample"] is False
    assert content["eos_token_id"] == [151645, 151643]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "64"}, "config.json: hidden_size: Input should be a valid integer"),
        ({"hidden_size": "ABSENT"}, "config.json: hidden_size: Field required"),
        ({"model_type": "llama"}, "config.json: model_type: Input should be 'qwen2'"),
        ({"hidden_size": 66}, "hidden_size: expected a multiple of 2 x num_attention_heads = 8"),
        ({"num_key_value_heads": 3}, "expected a multiple of num_key_value_heads = 3, got 4"),
        ({"vocab_size": 0}, "vocab_size: expected 1 or more, got 0"),
        ({"eos_token_id": 512}, r"special token id: expected 0 to 511 \(vocab_size - 1\), got 512"),
        ({"eos_token_id": []}, "eos_token_ids: expected at least one id, got none"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps: expected a positive number, got 0.0"),
        ({"rope_theta": "ABSENT"}, "expected rope_theta or rope_parameters.rope_theta"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling: Input should be null"),
    ],
)
def test_a_wrong_config_is_refused_with_its_place(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        read_config(_config_file(tmp_path, **changes))


def test_all_problems_of_a_config_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        read_config(_config_file(tmp_path, hidden_size="64", vocab_size=None))
    assert len(caught.value.problems) == 2


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"config.json: expected a readable config.json"):
        read_config(tmp_path / "config.json")


def test_a_shape_with_several_contradictions_names_each() -> None:
    with pytest.raises(RecipeError) as caught:
        Qwen2Shape(
            hidden_size=10,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=3,
            num_key_value_heads=2,
            vocab_size=300,
            max_position_embeddings=8,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_ids=(299,),
        )
    assert len(caught.value.problems) == 2
