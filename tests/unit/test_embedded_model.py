"""The decoder against a float64 forward pass, and the promise that batching changes nothing."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fakes.float64_qwen2 import Float64Qwen2
from fakes.tiny_checkpoint import TINY, write_tiny

from pytest_qperf.adapters.plugin_build import build_host_library
from pytest_qperf.checkpoint.reading import Checkpoint, read_checkpoint
from pytest_qperf.core.errors import BuildError, EngineError
from pytest_qperf.embedded import linear as linear_module
from pytest_qperf.embedded.linear import (
    Array,
    LinearFactory,
    NumpyLinear,
    Precision,
    RowBlocks,
    require_row_independence,
)
from pytest_qperf.embedded.model import KVCache, Qwen2Model, Segment
from pytest_qperf.embedded.scheduler import PREFILL_ROWS, GenerationRequest, Scheduler

PLUGIN_SOURCE = Path(__file__).resolve().parents[2] / "plugins" / "fp8_gemm"
MAX_BATCH = 8
# In standard deviations of the logits. Where a float32 error turns the rounding of one activation
# to e4m3, logits differ by up to 0.05; where it turns none, by 1e-6 as in FP32.
TOLERANCES = {"fp32": 1e-5, "fp8": 0.1}


@dataclass(frozen=True, slots=True)
class Arm:
    """One backend's model, and the oracle for it."""

    precision: Precision
    model: Qwen2Model
    oracle: Float64Qwen2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(write_tiny(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache_dir = tmp_path_factory.mktemp("plugin_cache")
    return build_host_library(PLUGIN_SOURCE, cache_dir=cache_dir, note=lambda _line: None).path


@pytest.fixture(scope="module", params=["fp32", "fp8"])
def arm(request: pytest.FixtureRequest, checkpoint: Checkpoint, library: Path) -> Arm:
    precision: Precision = request.param
    factory = LinearFactory(checkpoint, library if precision == "fp8" else None, num_threads=2)
    assert factory.precision == precision
    return Arm(
        precision=precision,
        model=Qwen2Model(checkpoint, factory, max_segments=MAX_BATCH),
        oracle=Float64Qwen2(checkpoint, rounds_activations=precision == "fp8"),
    )


def _prompt(seed: int, num_tokens: int) -> tuple[int, ...]:
    rng = np.random.default_rng(seed)
    return tuple(int(id_) for id_ in rng.integers(0, TINY.vocab_size, num_tokens))


def _request(name: str, prompt_ids: tuple[int, ...], max_tokens: int = 20) -> GenerationRequest:
    return GenerationRequest(name, prompt_ids, max_tokens, min_tokens=0, ignore_eos=True)


def _run(
    scheduler: Scheduler, arrivals: dict[int, list[GenerationRequest]]
) -> dict[str, list[int]]:
    """Run until all is done; ``arrivals`` gives the requests added before each step."""
    tokens: dict[str, list[int]] = {}
    step = 0
    while scheduler.has_work or step <= max(arrivals):
        for request in arrivals.get(step, []):
            scheduler.add(request)
        for event in scheduler.prefill() + scheduler.decode():
            tokens.setdefault(event.request_id, []).append(event.token_id)
        step += 1
    return tokens


def _step_by_step(model: Qwen2Model, ids: tuple[int, ...], num_prompt: int) -> Array:
    """Return the logits after the prompt and after each later token, through the cache."""
    cache = KVCache(TINY, len(ids))
    rows = [model.forward([Segment(cache, ids[:num_prompt])], padded_rows=PREFILL_ROWS)]
    for id_ in ids[num_prompt:]:
        rows.append(model.forward([Segment(cache, (id_,))], padded_rows=MAX_BATCH))
    return np.concatenate(rows)


def test_logits_match_the_float64_forward_pass(arm: Arm) -> None:
    ids = _prompt(seed=1, num_tokens=60)
    expected = arm.oracle.logits(ids)[39:]
    error = np.abs(_step_by_step(arm.model, ids, num_prompt=40) - expected).max()
    assert error < TOLERANCES[arm.precision] * expected.std()


def test_greedy_tokens_match_the_float64_forward_pass(arm: Arm) -> None:
    prompt_ids = _prompt(seed=2, num_tokens=20)
    tokens = _run(Scheduler(arm.model, max_batch_size=1), {0: [_request("a", prompt_ids)]})
    assert tokens["a"] == arm.oracle.greedy(prompt_ids, 20)


def test_a_prompt_run_in_pieces_gives_the_same_logits(arm: Arm) -> None:
    ids = _prompt(seed=3, num_tokens=30)
    whole, pieces = KVCache(TINY, 30), KVCache(TINY, 30)
    expected = arm.model.forward([Segment(whole, ids)], padded_rows=PREFILL_ROWS)
    arm.model.forward([Segment(pieces, ids[:17])], padded_rows=PREFILL_ROWS)
    actual = arm.model.forward([Segment(pieces, ids[17:])], padded_rows=PREFILL_ROWS)
    assert np.abs(actual - expected).max() < TOLERANCES[arm.precision] * expected.std()


def test_a_segments_logits_are_the_same_bits_alone_and_in_a_batch(arm: Arm) -> None:
    prompts = [_prompt(seed, num_tokens) for seed, num_tokens in enumerate((1, 5, 11, 40))]
    together = arm.model.forward(
        [Segment(KVCache(TINY, 40), ids) for ids in prompts], padded_rows=PREFILL_ROWS
    )
    for ids, row in zip(prompts, together, strict=True):
        alone = arm.model.forward([Segment(KVCache(TINY, 40), ids)], padded_rows=PREFILL_ROWS)
        np.testing.assert_array_equal(alone[0], row)


def test_decoded_logits_are_the_same_bits_alone_and_in_a_batch(arm: Arm) -> None:
    prompts = [_prompt(seed, num_tokens=seed + 1) for seed in range(MAX_BATCH)]

    def prefilled(ids: tuple[int, ...]) -> KVCache:
        cache = KVCache(TINY, 40)
        arm.model.forward([Segment(cache, ids)], padded_rows=PREFILL_ROWS)
        return cache

    together = arm.model.forward(
        [Segment(prefilled(ids), (7,)) for ids in prompts], padded_rows=MAX_BATCH
    )
    for ids, row in zip(prompts, together, strict=True):
        alone = arm.model.forward([Segment(prefilled(ids), (7,))], padded_rows=MAX_BATCH)
        np.testing.assert_array_equal(alone[0], row)


def test_batching_never_changes_a_requests_tokens(arm: Arm) -> None:
    lengths = (1, 3, 32, 33, PREFILL_ROWS, PREFILL_ROWS + 1, 100, 2 * PREFILL_ROWS + 5, 20, 50)
    requests = [
        _request(str(number), _prompt(number, length), max_tokens=12 + number)
        for number, length in enumerate(lengths)
    ]
    staggered = {0: requests[:2], 1: requests[2:5], 4: requests[5:8], 9: requests[8:]}
    together = _run(Scheduler(arm.model, max_batch_size=MAX_BATCH), staggered)
    for request in requests:
        alone = _run(Scheduler(arm.model, max_batch_size=MAX_BATCH), {0: [request]})
        assert together[request.request_id] == alone[request.request_id], request.request_id
        assert len(alone[request.request_id]) == request.max_tokens


def test_the_model_passes_its_own_row_check(arm: Arm) -> None:
    arm.model.require_row_independence(num_rows=(PREFILL_ROWS, MAX_BATCH))


@pytest.mark.parametrize(("num_alike", "expected"), [(64, 64), (16, 16), (1, 1)])
def test_rows_are_multiplied_in_the_largest_blocks_that_blas_treats_alike(
    monkeypatch: pytest.MonkeyPatch, num_alike: int, expected: int
) -> None:
    def uneven(weight: Array, x: Array) -> Array:
        product: Array = (weight @ x.T).T.copy()
        product[num_alike:] += 1
        return product

    weight = np.ones((4, 16), np.float32)
    x = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
    monkeypatch.setattr(linear_module, "_multiply", uneven)
    blocks = RowBlocks()
    assert blocks.block_rows(weight, 40) == expected
    product = NumpyLinear(weight, None, blocks=blocks)(x[:40], padded_rows=40)
    np.testing.assert_array_equal(product, x[:40] @ weight.T)


def test_a_layer_that_mixes_rows_is_refused() -> None:
    class Mixing(NumpyLinear):
        def __call__(self, x: Array, *, padded_rows: int) -> Array:
            return super().__call__(x, padded_rows=padded_rows) + x[:1, :1]

    with pytest.raises(EngineError, match="of 16 inputs: expected the same result for a row"):
        require_row_independence(
            Mixing(np.ones((4, 16), np.float32), None, blocks=RowBlocks()), num_rows=8
        )


def test_the_fp8_backend_refuses_a_bf16_checkpoint(tmp_path: Path, library: Path) -> None:
    bf16 = read_checkpoint(write_tiny(tmp_path / "bf16", "bf16"))
    with pytest.raises(BuildError, match="expected an FP8 checkpoint"):
        Qwen2Model(bf16, LinearFactory(bf16, library, num_threads=1), max_segments=1)


def test_fused_layers_keep_their_own_scales(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint, library: Path
) -> None:
    def scale(_checkpoint: Checkpoint, name: str) -> float:
        return 2.0 if "gate_proj" in name else 3.0

    monkeypatch.setattr(Checkpoint, "_scale", scale)
    names = ["model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"]
    x = np.ones((1, TINY.hidden_size), np.float32)  # ones are exact in e4m3
    fp8 = LinearFactory(checkpoint, library, num_threads=1).fused(names, has_bias=False)
    fp32 = LinearFactory(checkpoint, None, num_threads=1).fused(names, has_bias=False)
    np.testing.assert_allclose(fp8(x, padded_rows=1), fp32(x, padded_rows=1), rtol=1e-4, atol=1e-2)
