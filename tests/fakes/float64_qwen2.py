"""A Qwen2 forward pass in float64 over whole sequences, without a cache: the model's oracle."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fakes import fp8_reference
from pytest_qperf.checkpoint.reading import Checkpoint

Array = NDArray[np.float64]


class Float64Qwen2:
    """Reads weights one by one by name; ``rounds_activations`` does what FP8 layers do to x."""

    def __init__(self, checkpoint: Checkpoint, *, rounds_activations: bool) -> None:
        self._checkpoint = checkpoint
        self._shape = checkpoint.config.shape
        self._rounds_activations = rounds_activations

    def logits(self, token_ids: Sequence[int]) -> Array:
        """Return the logits after each position: (num_tokens, vocab_size)."""
        hidden = self._tensor("model.embed_tokens.weight")[list(token_ids)]
        for index in range(self._shape.num_hidden_layers):
            prefix = f"model.layers.{index}."
            normed = self._norm(hidden, prefix + "input_layernorm.weight")
            hidden = hidden + self._attention(normed, prefix + "self_attn.")
            normed = self._norm(hidden, prefix + "post_attention_layernorm.weight")
            hidden = hidden + self._mlp(normed, prefix + "mlp.")
        return self._norm(hidden, "model.norm.weight") @ self._tensor("lm_head.weight").T

    def greedy(self, prompt_ids: Sequence[int], num_tokens: int) -> list[int]:
        """Return the next tokens, each from a pass over everything before it."""
        ids = list(prompt_ids)
        for _ in range(num_tokens):
            ids.append(int(np.argmax(self.logits(ids)[-1])))
        return ids[len(prompt_ids) :]

    def _tensor(self, name: str) -> Array:
        return self._checkpoint.float32(name).astype(np.float64)

    def _norm(self, x: Array, name: str) -> Array:
        scale = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self._shape.rms_norm_eps)
        normed: Array = x * scale * self._tensor(name)
        return normed

    def _linear(self, x: Array, name: str) -> Array:
        if self._rounds_activations:
            scale = np.abs(x).max(axis=-1, keepdims=True) / 448
            codes = fp8_reference.encode((x / scale).astype(np.float32))
            x = fp8_reference.DECODED[codes] * scale
        return x @ self._tensor(name + ".weight").T

    def _attention(self, x: Array, prefix: str) -> Array:
        shape, dim = self._shape, self._shape.head_dim
        q, k, v = (
            (
                self._linear(x, f"{prefix}{part}_proj") + self._tensor(f"{prefix}{part}_proj.bias")
            ).reshape(len(x), -1, dim)
            for part in "qkv"
        )
        q, k = self._rotate(q), self._rotate(k)
        heads = []
        for head in range(shape.num_attention_heads):
            kv_head = head * shape.num_key_value_heads // shape.num_attention_heads
            scores = q[:, head] @ k[:, kv_head].T / np.sqrt(dim)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            heads.append(weights / weights.sum(axis=-1, keepdims=True) @ v[:, kv_head])
        return self._linear(np.concatenate(heads, axis=-1), prefix + "o_proj")

    def _rotate(self, x: Array) -> Array:
        """Turn (x[i], x[i + dim/2]) as a complex number by position x theta^(-2i/dim)."""
        half = x.shape[-1] // 2
        angle = np.outer(np.arange(len(x)), self._shape.rope_theta ** (-np.arange(half) / half))
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None, :]
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def _mlp(self, x: Array, prefix: str) -> Array:
        gate = self._linear(x, prefix + "gate_proj")
        up = self._linear(x, prefix + "up_proj")
        return self._linear(gate / (1 + np.exp(-gate)) * up, prefix + "down_proj")
