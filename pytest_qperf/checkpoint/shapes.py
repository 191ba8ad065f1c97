"""Qwen2 shapes by name: everything that fixes a checkpoint's tensors, and nothing else."""

from dataclasses import dataclass

from pytest_qperf.core.errors import RecipeError


@dataclass(frozen=True, slots=True)
class Qwen2Shape:
    """The sizes and constants of a Qwen2 decoder, named as in its config.json.

    Raises RecipeError, with every contradiction, for a shape no decoder can have.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6
    bos_token_id: int | None = 151643
    eos_token_ids: tuple[int, ...] = (151645, 151643)

    def __post_init__(self) -> None:
        problems = _contradictions(self)
        if problems:
            raise RecipeError(problems)

    @property
    def head_dim(self) -> int:
        """Return the size of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def kv_size(self) -> int:
        """Return the number of output features of k_proj, and of v_proj."""
        return self.num_key_value_heads * self.head_dim


def _contradictions(shape: Qwen2Shape) -> list[str]:
    problems = [
        f"shape: {name}: expected 1 or more, got {getattr(shape, name)}"
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
            "max_position_embeddings",
        )
        if getattr(shape, name) < 1
    ]
    return problems or _wrong_heads(shape) + _wrong_constants(shape)


def _wrong_heads(shape: Qwen2Shape) -> list[str]:
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    problems = []
    if shape.hidden_size % (2 * heads):
        problems.append(
            f"shape: hidden_size: expected a multiple of 2 x num_attention_heads = {2 * heads} "
            f"(rotary embedding turns pairs), got {shape.hidden_size}"
        )
    if heads % kv_heads:
        problems.append(
            f"shape: num_attention_heads: expected a multiple of num_key_value_heads = {kv_heads}, "
            f"got {heads}"
        )
    return problems


def _wrong_constants(shape: Qwen2Shape) -> list[str]:
    problems = [
        f"shape: {name}: expected a positive number, got {getattr(shape, name)}"
        for name in ("rope_theta", "rms_norm_eps")
        if not getattr(shape, name) > 0
    ]
    if not shape.eos_token_ids:
        problems.append("shape: eos_token_ids: expected at least one id, got none")
    special = [*shape.eos_token_ids, *([] if shape.bos_token_id is None else [shape.bos_token_id])]
    problems += [
        f"shape: special token id: expected 0 to {shape.vocab_size - 1} (vocab_size - 1), got {id_}"
        for id_ in special
        if not 0 <= id_ < shape.vocab_size
    ]
    return problems


def _qwen25(
    hidden_and_intermediate: tuple[int, int], layers: int, heads: tuple[int, int], *, tied: bool
) -> Qwen2Shape:
    hidden_size, intermediate_size = hidden_and_intermediate
    return Qwen2Shape(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        vocab_size=151936 if tied else 152064,
        max_position_embeddings=32768,
        tie_word_embeddings=tied,
    )


SHAPES: dict[str, Qwen2Shape] = {
    "qwen2.5-0.5b": _qwen25((896, 4864), 24, (14, 2), tied=True),
    "qwen2.5-1.5b": _qwen25((1536, 8960), 28, (12, 2), tied=True),
    "qwen2.5-3b": _qwen25((2048, 11008), 36, (16, 2), tied=True),
    "qwen2.5-7b": _qwen25((3584, 18944), 28, (28, 4), tied=False),
    # Linear layers of 541 MB in FP32 and 135 MB in FP8: larger than a last-level cache either way.
    "qwen2-embedded": Qwen2Shape(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=4096,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=4095,
        eos_token_ids=(4094,),
    ),
    "qwen2-tiny": Qwen2Shape(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=511,
        eos_token_ids=(510,),
    ),
}
