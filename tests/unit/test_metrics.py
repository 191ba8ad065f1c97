from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_qperf.core.metrics import (
    METRICS,
    compute_metrics,
    quantile,
    request_metrics,
    summarise_run,
)
from pytest_qperf.core.records import ClientHealth, RequestRecord, RunRecord, TokenChunk

NS_PER_S = 1_000_000_000
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def make_request(
    index: int, *, sent_s: float, chunks: list[tuple[float, int]], is_warmup: bool = False
) -> RequestRecord:
    """chunks: (seconds, tokens) of each chunk."""
    num_tokens = sum(tokens for _, tokens in chunks)
    return RequestRecord(
        index=index,
        is_warmup=is_warmup,
        scheduled_perf_ns=round(sent_s * NS_PER_S),
        sent_perf_ns=round(sent_s * NS_PER_S),
        ended_perf_ns=round((chunks[-1][0] + 1) * NS_PER_S),
        http_status=200,
        isl_tokens=8,
        osl_tokens=num_tokens,
        cached_tokens=0,
        finish_reason="length",
        chunks=tuple(TokenChunk(round(at_s * NS_PER_S), tokens) for at_s, tokens in chunks),
        error=None,
    )


def make_run(*requests: RequestRecord) -> RunRecord:
    return RunRecord(
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration_s=20.0,
        requests=requests,
        client_health=ClientHealth(0.0, 0.0, 0.0),
    )


# Bundles of 3, 1 and 4 tokens: 5 tokens in 4 s after the first bundle.
BUNDLED = make_request(2, sent_s=0.0, chunks=[(2.0, 3), (3.0, 1), (6.0, 4)])
# One token each second: 2 tokens in 2 s after the first.
PLAIN = make_request(3, sent_s=1.0, chunks=[(5.0, 1), (6.0, 1), (7.0, 1)])


def test_a_bundles_gap_is_divided_by_its_tokens() -> None:
    metrics = request_metrics(BUNDLED)
    assert metrics.itl_s == (1.0, 0.75, 0.75, 0.75, 0.75)
    assert metrics.index == 2


def test_the_rate_counts_the_tokens_after_the_first_bundle() -> None:
    metrics = request_metrics(BUNDLED)
    assert metrics.generation_rate_tokens_per_s == 5 / 4
    assert metrics.tpot_s == 4 / 5


def test_ttft_and_e2e_latency_start_at_the_send() -> None:
    metrics = request_metrics(PLAIN)
    assert metrics.ttft_s == 4.0
    assert metrics.e2e_latency_s == 6.0


def test_chunks_of_one_read_are_one_bundle() -> None:
    split = make_request(2, sent_s=0.0, chunks=[(2.0, 1), (2.0, 2), (3.0, 1), (6.0, 1), (6.0, 3)])
    assert request_metrics(split) == request_metrics(BUNDLED)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 8)), min_size=2, max_size=30))
def test_latencies_add_up_for_every_stream(gaps: list[tuple[int, int]]) -> None:
    at_s, chunks = 0.0, []
    for gap_ms, num_tokens in gaps:
        at_s += gap_ms / 1000
        chunks.append((at_s, num_tokens))
    metrics = request_metrics(make_request(0, sent_s=0.0, chunks=chunks))
    assert sum(metrics.itl_s) == pytest.approx(metrics.e2e_latency_s - metrics.ttft_s)
    assert len(metrics.itl_s) == sum(tokens for _, tokens in chunks[1:])
    assert metrics.tpot_s * metrics.generation_rate_tokens_per_s == pytest.approx(1.0)


def test_a_failed_request_has_no_metrics() -> None:
    with pytest.raises(ValueError, match="request 2: expected a complete stream of 2 or more"):
        request_metrics(replace(BUNDLED, error="truncated stream"))


def test_one_chunk_gives_no_rate() -> None:
    with pytest.raises(ValueError, match="request 0: expected a complete stream of 2 or more"):
        request_metrics(make_request(0, sent_s=0.0, chunks=[(1.0, 8)]))


def test_chunks_of_a_single_read_give_no_rate() -> None:
    with pytest.raises(ValueError, match=r"expected time between its chunks, got 0\.0 s"):
        request_metrics(make_request(0, sent_s=0.0, chunks=[(1.0, 1), (1.0, 1)]))


def test_every_metric_of_a_run_computed_by_hand() -> None:
    warmup = make_request(0, sent_s=0.0, chunks=[(0.1, 1), (0.2, 1)], is_warmup=True)
    values = compute_metrics(summarise_run(make_run(warmup, BUNDLED, PLAIN)))
    expected = {
        # 1.25 and 1.0 tokens/s
        "generation_rate_mean_tokens_per_s": 1.125,
        "generation_rate_p50_tokens_per_s": 1.125,
        # 2 and 4 s
        "ttft_mean_s": 3.0,
        "ttft_p50_s": 3.0,
        # 0.8 and 1.0 s
        "tpot_mean_s": 0.9,
        # 0.75 four times, 1.0 three times
        "itl_p50_s": 0.75,
        "itl_p99_s": 1.0,
        # 6 and 6 s
        "e2e_latency_mean_s": 6.0,
        # 8 + 3 tokens from the first send at 0 s to the last token at 7 s
        "output_throughput_tokens_per_s": 11 / 7,
    }
    assert values == pytest.approx(expected)
    assert set(expected) == set(METRICS)


def test_means_and_medians_are_of_requests_and_not_of_tokens() -> None:
    slow = make_request(4, sent_s=0.0, chunks=[(7.0, 1), (17.0, 1)])
    values = compute_metrics(summarise_run(make_run(BUNDLED, PLAIN, slow)))
    # Rates 1.25, 1.0 and 0.1 tokens/s; TTFT 2, 4 and 7 s.
    assert values["generation_rate_p50_tokens_per_s"] == 1.0
    assert values["generation_rate_mean_tokens_per_s"] == pytest.approx(2.35 / 3)
    assert values["ttft_p50_s"] == 4.0
    assert values["ttft_mean_s"] == pytest.approx(13 / 3)


def test_warm_up_alone_is_no_run() -> None:
    warmup = replace(BUNDLED, is_warmup=True)
    with pytest.raises(ValueError, match="expected measured requests, got only warm-up"):
        summarise_run(make_run(warmup))


def test_a_quantile_interpolates_between_order_statistics() -> None:
    assert quantile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
    assert quantile([0.0, 10.0], 0.99) == pytest.approx(9.9)
    assert quantile([5.0], 0.99) == 5.0


def test_the_document_lists_exactly_the_metrics() -> None:
    rows = []
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0].startswith("`"):
            rows.append(cells)
    assert [row[:5] for row in rows] == [
        [
            f"`{metric.name}`",
            metric.label,
            metric.unit,
            "higher is better" if metric.higher_is_better else "lower is better",
            metric.formula,
        ]
        for metric in METRICS.values()
    ]
    assert all(row[5] for row in rows)
