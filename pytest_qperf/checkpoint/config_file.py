"""A model's config.json: reading it into a shape, and writing one for a shape."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_qperf.checkpoint.shapes import SHAPES, Qwen2Shape
from pytest_qperf.core.errors import RecipeError
from pytest_qperf.core.recipe import Quantization


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a config.json says that matters here: the decoder's shape and how weights are stored."""

    shape: Qwen2Shape
    quantization: Quantization


class _Rope(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    rope_theta: float
    rope_type: Literal["default"] = "default"


class _Fp8(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    quant_method: Literal["fp8"]
    activation_scheme: Literal["static", "dynamic"]
    weight_block_size: None = None


class _Config(BaseModel):
    """The keys that matter here; a config.json holds more."""

    model_config = ConfigDict(extra="ignore", strict=True)
    model_type: Literal["qwen2"]
    hidden_act: Literal["silu"]
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool = False
    use_sliding_window: Literal[False] = False
    rope_theta: float | None = None
    rope_parameters: _Rope | None = None
    rope_scaling: None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int]
    quantization_config: _Fp8 | None = Field(default=None)


def resolve_shape(name_or_path: str) -> Qwen2Shape:
    """Return the shape of that name, or the one a config.json at that path describes.

    Raises RecipeError if it is neither.
    """
    if name_or_path in SHAPES:
        return SHAPES[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        raise RecipeError(
            [f"shape: expected one of {', '.join(SHAPES)} or a config.json, got {name_or_path!r}"]
        )
    return read_config(path).shape


def read_config(path: Path) -> ModelConfig:
    """Return what a config.json describes; raise RecipeError with all its problems."""
    try:
        parsed = _Config.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RecipeError([f"{path}: expected a readable config.json, got {error}"]) from error
    except ValidationError as error:
        raise RecipeError(
            [f"{path}: {_where(problem['loc'])}{problem['msg']}" for problem in error.errors()]
        ) from error
    rope_theta = _rope_theta(parsed, path)
    try:
        shape = _shape(parsed, rope_theta)
    except RecipeError as error:
        raise RecipeError([f"{path}: {problem}" for problem in error.problems]) from error
    return ModelConfig(shape=shape, quantization=_quantization(parsed))


def _where(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""


def _rope_theta(parsed: _Config, path: Path) -> float:
    if parsed.rope_parameters is not None:
        return parsed.rope_parameters.rope_theta
    if parsed.rope_theta is None:
        raise RecipeError(
            [f"{path}: expected rope_theta or rope_parameters.rope_theta, got neither"]
        )
    return parsed.rope_theta


def _shape(parsed: _Config, rope_theta: float) -> Qwen2Shape:
    eos = parsed.eos_token_id
    return Qwen2Shape(
        hidden_size=parsed.hidden_size,
        intermediate_size=parsed.intermediate_size,
        num_hidden_layers=parsed.num_hidden_layers,
        num_attention_heads=parsed.num_attention_heads,
        num_key_value_heads=parsed.num_key_value_heads,
        vocab_size=parsed.vocab_size,
        max_position_embeddings=parsed.max_position_embeddings,
        tie_word_embeddings=parsed.tie_word_embeddings,
        rope_theta=rope_theta,
        rms_norm_eps=parsed.rms_norm_eps,
        bos_token_id=parsed.bos_token_id,
        eos_token_ids=(eos,) if isinstance(eos, int) else tuple(eos),
    )


def _quantization(parsed: _Config) -> Quantization:
    if parsed.quantization_config is None:
        return "bf16"
    scheme = parsed.quantization_config.activation_scheme
    return "fp8-static" if scheme == "static" else "fp8-dynamic"


def render_config(config: ModelConfig) -> str:
    """Return the config.json text that transformers and vLLM load for ``config``."""
    shape = config.shape
    content: dict[str, Any] = {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": shape.bos_token_id,
        "eos_token_id": _one_or_list(shape.eos_token_ids),
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "max_window_layers": shape.num_hidden_layers,
        "model_type": "qwen2",
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "sliding_window": shape.max_position_embeddings,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab_size,
    }
    if config.quantization != "bf16":
        content["quantization_config"] = {
            "quant_method": "fp8",
            "activation_scheme": config.quantization.removeprefix("fp8-"),
            "ignored_layers": ["lm_head"],
        }
    return json.dumps(content, indent=2) + "\n"


def render_generation_config(shape: Qwen2Shape) -> str:
    """Return the generation_config.json text for ``shape``: greedy, with its special tokens."""
    content = {
        "bos_token_id": shape.bos_token_id,
        "do_sample": False,
        "eos_token_id": _one_or_list(shape.eos_token_ids),
        "pad_token_id": shape.eos_token_ids[-1],
    }
    return json.dumps(content, indent=2) + "\n"


def _one_or_list(ids: tuple[int, ...]) -> int | list[int]:
    return ids[0] if len(ids) == 1 else list(ids)
