"""A Qwen2 decoder in NumPy: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

A token's result depends on its own sequence alone: linear layers keep rows apart (see
`linear.py`), everything else works row by row or, in attention, sequence by sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_qperf.checkpoint.layout import EMBEDDING, FINAL_NORM, LM_HEAD
from pytest_qperf.checkpoint.reading import Checkpoint
from pytest_qperf.checkpoint.shapes import Qwen2Shape
from pytest_qperf.embedded.linear import (
    Array,
    Linear,
    LinearFactory,
    require_row_independence,
)


class KVCache:
    """Keys and values of one sequence: (num_layers, num_kv_heads, capacity_tokens, head_dim)."""

    def __init__(self, shape: Qwen2Shape, capacity_tokens: int) -> None:
        size = (
            shape.num_hidden_layers,
            shape.num_key_value_heads,
            capacity_tokens,
            shape.head_dim,
        )
        self.keys = np.empty(size, np.float32)
        self.values = np.empty(size, np.float32)
        self.num_tokens = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one sequence, following those its cache holds."""

    cache: KVCache
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Array
    qkv: Linear
    o: Linear
    post_attention_norm: Array
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where each segment's rows lie in a forward pass, and the rotation of each row."""

    segments: tuple[tuple[KVCache, slice], ...]
    cos: Array
    sin: Array
    padded_rows: int


class Qwen2Model:
    """The decoder; ``forward`` is the only thing it does."""

    def __init__(
        self, checkpoint: Checkpoint, linears: LinearFactory, *, max_segments: int
    ) -> None:
        self.shape = checkpoint.config.shape
        self._max_segments = max_segments
        self._embedding = checkpoint.float32(EMBEDDING)
        tied = self.shape.tie_word_embeddings
        self._lm_head = linears.fp32(self._embedding if tied else checkpoint.float32(LM_HEAD))
        self._final_norm = checkpoint.float32(FINAL_NORM)
        self._layers = [
            _load_layer(checkpoint, linears, index) for index in range(self.shape.num_hidden_layers)
        ]
        self._cos, self._sin = _rotary_tables(self.shape)

    def require_row_independence(self, *, num_rows: Sequence[int]) -> None:
        """Raise EngineError unless blocks of these sizes keep their rows apart."""
        layer = self._layers[0]
        for rows in num_rows:
            for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
                require_row_independence(linear, num_rows=rows)
        require_row_independence(self._lm_head, num_rows=self._max_segments)

    def forward(self, segments: Sequence[Segment], *, padded_rows: int) -> Array:
        """Return the logits after each segment's last token: (num_segments, vocab_size) float32.

        Appends the segments' keys and values to their caches. At most ``max_segments`` segments,
        ``padded_rows`` tokens in all.
        """
        rows = self._rows(segments, padded_rows)
        hidden = self._embedding[[id_ for segment in segments for id_ in segment.token_ids]]
        for index, layer in enumerate(self._layers):
            hidden = hidden + self._attention(layer, index, hidden, rows)
            hidden = hidden + self._mlp(layer, hidden, padded_rows)
        for segment in segments:
            segment.cache.num_tokens += len(segment.token_ids)
        last = hidden[[row_slice.stop - 1 for _, row_slice in rows.segments]]
        normed = _rms_norm(last, self._final_norm, self.shape.rms_norm_eps)
        return self._lm_head(normed, padded_rows=self._max_segments)

    def _rows(self, segments: Sequence[Segment], padded_rows: int) -> _Rows:
        placed: list[tuple[KVCache, slice]] = []
        positions: list[int] = []
        for segment in segments:
            begin, count = len(positions), len(segment.token_ids)
            placed.append((segment.cache, slice(begin, begin + count)))
            first = segment.cache.num_tokens
            positions.extend(range(first, first + count))
        return _Rows(tuple(placed), self._cos[positions], self._sin[positions], padded_rows)

    def _attention(self, layer: _Layer, index: int, hidden: Array, rows: _Rows) -> Array:
        shape = self.shape
        normed = _rms_norm(hidden, layer.input_norm, shape.rms_norm_eps)
        qkv = layer.qkv(normed, padded_rows=rows.padded_rows)
        heads = qkv.reshape(len(hidden), -1, shape.head_dim)
        num_rotated = shape.num_attention_heads + shape.num_key_value_heads
        rotated = _rotate(heads[:, :num_rotated], rows)
        queries = rotated[:, : shape.num_attention_heads]
        keys, values = rotated[:, shape.num_attention_heads :], heads[:, num_rotated:]
        context = np.empty((len(hidden), shape.hidden_size), np.float32)
        for cache, at in rows.segments:
            end = cache.num_tokens + at.stop - at.start
            cache.keys[index, :, cache.num_tokens : end] = keys[at].swapaxes(0, 1)
            cache.values[index, :, cache.num_tokens : end] = values[at].swapaxes(0, 1)
            context[at] = _attend(
                queries[at], cache.keys[index, :, :end], cache.values[index, :, :end]
            )
        return layer.o(context, padded_rows=rows.padded_rows)

    def _mlp(self, layer: _Layer, hidden: Array, padded_rows: int) -> Array:
        normed = _rms_norm(hidden, layer.post_attention_norm, self.shape.rms_norm_eps)
        gate_up = layer.gate_up(normed, padded_rows=padded_rows)
        gate, up = gate_up[:, : gate_up.shape[1] // 2], gate_up[:, gate_up.shape[1] // 2 :]
        with np.errstate(over="ignore"):  # exp(-gate) = inf gives silu = 0, the right limit
            activated = gate / (1 + np.exp(-gate)) * up
        return layer.down(activated, padded_rows=padded_rows)


def _load_layer(checkpoint: Checkpoint, linears: LinearFactory, index: int) -> _Layer:
    prefix = f"model.layers.{index}."
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    return _Layer(
        input_norm=checkpoint.float32(f"{prefix}input_layernorm.weight"),
        qkv=linears.fused([f"{attention}{part}_proj" for part in "qkv"], has_bias=True),
        o=linears.fused([f"{attention}o_proj"], has_bias=False),
        post_attention_norm=checkpoint.float32(f"{prefix}post_attention_layernorm.weight"),
        gate_up=linears.fused([f"{mlp}gate_proj", f"{mlp}up_proj"], has_bias=False),
        down=linears.fused([f"{mlp}down_proj"], has_bias=False),
    )


def _rotary_tables(shape: Qwen2Shape) -> tuple[Array, Array]:
    """Return cos and sin, each (max_position_embeddings, 1, head_dim).

    Source: Su et al. 2021, "RoFormer", section 3.2; halves turned together as in transformers.
    """
    exponents = np.arange(0, shape.head_dim, 2) / shape.head_dim
    angles = np.outer(np.arange(shape.max_position_embeddings), shape.rope_theta**-exponents)
    angles = np.concatenate([angles, angles], axis=1)[:, None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotate(heads: Array, rows: _Rows) -> Array:
    half = heads.shape[-1] // 2
    turned: Array = np.concatenate([-heads[..., half:], heads[..., :half]], axis=-1)
    rotated: Array = heads * rows.cos + turned * rows.sin
    return rotated


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Return x / sqrt(mean(x^2) + eps) * weight, row by row. Source: Zhang and Sennrich 2019."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    root: Array = np.sqrt(mean_square + np.float32(eps))
    return x / root * weight


def _attend(queries: Array, keys: Array, values: Array) -> Array:
    """Return causal attention of the last n of T positions: (n, num_heads x head_dim).

    queries: (n, num_heads, head_dim); keys, values: (num_kv_heads, T, head_dim). Query head h
    reads key-value head h // (num_heads / num_kv_heads).
    """
    num_queries, num_heads, head_dim = queries.shape
    num_kv_heads, num_keys, _ = keys.shape
    group = num_heads // num_kv_heads
    grouped = queries.reshape(num_queries, num_kv_heads, group, head_dim).transpose(1, 2, 0, 3)
    flat = grouped.reshape(num_kv_heads, group * num_queries, head_dim)
    scores = (flat * np.float32(head_dim**-0.5)) @ keys.swapaxes(1, 2)
    if num_queries > 1:
        scores += np.tile(_causal_mask(num_queries, num_keys), (group, 1))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    context: Array = (weights @ values).reshape(num_kv_heads, group, num_queries, head_dim)
    return context.transpose(2, 0, 1, 3).reshape(num_queries, num_heads * head_dim)


def _causal_mask(num_queries: int, num_keys: int) -> NDArray[np.float32]:
    last_seen = np.arange(num_keys - num_queries, num_keys)[:, None]
    return np.where(np.arange(num_keys) > last_seen, np.float32(-np.inf), np.float32(0))
