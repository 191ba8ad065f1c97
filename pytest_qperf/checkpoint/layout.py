"""Which tensors a Qwen2 checkpoint holds: names as transformers and vLLM expect, and shapes."""

from dataclasses import dataclass
from typing import Literal

from pytest_qperf.checkpoint.shapes import Qwen2Shape

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's name, shape and part: linear weights are (N, K) and the only quantised ones."""

    name: str
    shape: tuple[int, ...]
    part: Literal["linear", "bias", "norm", "embedding"]


def layer_tensors(shape: Qwen2Shape, layer: int) -> tuple[TensorSpec, ...]:
    """Return the tensors of decoder layer ``layer`` (from 0)."""
    prefix = f"model.layers.{layer}."
    hidden, intermediate, kv_size = shape.hidden_size, shape.intermediate_size, shape.kv_size
    linears = (
        ("self_attn.q_proj", hidden, hidden),
        ("self_attn.k_proj", kv_size, hidden),
        ("self_attn.v_proj", kv_size, hidden),
        ("self_attn.o_proj", hidden, hidden),
        ("mlp.gate_proj", intermediate, hidden),
        ("mlp.up_proj", intermediate, hidden),
        ("mlp.down_proj", hidden, intermediate),
    )
    weights = [TensorSpec(f"{prefix}{name}.weight", (n, k), "linear") for name, n, k in linears]
    biases = [TensorSpec(f"{prefix}{name}.bias", (n,), "bias") for name, n, _ in linears[:3]]
    norms = [
        TensorSpec(f"{prefix}{name}.weight", (hidden,), "norm")
        for name in ("input_layernorm", "post_attention_layernorm")
    ]
    return (*weights, *biases, *norms)


def outer_tensors(shape: Qwen2Shape) -> tuple[TensorSpec, ...]:
    """Return the tensors outside the layers; no lm_head where the embedding serves as it."""
    table = (shape.vocab_size, shape.hidden_size)
    outer = [
        TensorSpec(EMBEDDING, table, "embedding"),
        TensorSpec(FINAL_NORM, (shape.hidden_size,), "norm"),
    ]
    if not shape.tie_word_embeddings:
        outer.append(TensorSpec(LM_HEAD, table, "embedding"))
    return tuple(outer)


def scale_name(weight_name: str, kind: Literal["weight", "input"]) -> str:
    """Return the name of a linear weight's scale: ``x.weight`` has ``x.weight_scale``."""
    return f"{weight_name.removesuffix('weight')}{kind}_scale"
