"""The metrics: one table of names, units, directions and formulas, and the functions behind it.

A request's quantities come from its token chunks; a run's metric is an aggregate over the run's
measured requests (warm-up requests excluded). Formulas: docs/metrics.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pytest_qperf.core.records import RequestRecord, RunRecord, TokenChunk

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Quantities of one complete request; ``itl_s`` has a value per token after the first read."""

    index: int
    ttft_s: float
    generation_rate_tokens_per_s: float
    tpot_s: float
    e2e_latency_s: float
    itl_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The measured requests of one run and the span they cover."""

    requests: tuple[RequestMetrics, ...]
    output_tokens: int
    span_s: float


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table: ``compute`` turns a run's summary into the value, in ``unit``."""

    name: str
    label: str
    unit: str
    higher_is_better: bool
    formula: str
    compute: Callable[[RunSummary], float]


def request_metrics(request: RequestRecord) -> RequestMetrics:
    """Return the quantities of one complete request; raise ValueError if it is not complete.

    A bundle of k tokens read at once gives k inter-token latencies of gap / k each.
    """
    if request.error is not None or len(request.chunks) < 2:
        raise ValueError(f"request {request.index}: expected a complete stream of 2 or more chunks")
    bundles = _bundles(request.chunks)
    first, last = bundles[0], bundles[-1]
    later_tokens = sum(bundle.num_tokens for bundle in bundles[1:])
    decode_s = (last.perf_ns - first.perf_ns) / NS_PER_S
    if decode_s <= 0:
        raise ValueError(
            f"request {request.index}: expected time between its chunks, got {decode_s} s"
        )
    return RequestMetrics(
        index=request.index,
        ttft_s=(first.perf_ns - request.sent_perf_ns) / NS_PER_S,
        generation_rate_tokens_per_s=later_tokens / decode_s,
        tpot_s=decode_s / later_tokens,
        e2e_latency_s=(last.perf_ns - request.sent_perf_ns) / NS_PER_S,
        itl_s=_inter_token_latencies_s(bundles),
    )


def _bundles(chunks: Sequence[TokenChunk]) -> list[TokenChunk]:
    """Join the chunks of one read (equal times): their tokens reached the client together."""
    bundles: list[TokenChunk] = []
    for chunk in chunks:
        num_tokens = chunk.num_tokens
        if bundles and bundles[-1].perf_ns == chunk.perf_ns:
            num_tokens += bundles.pop().num_tokens
        bundles.append(TokenChunk(perf_ns=chunk.perf_ns, num_tokens=num_tokens))
    return bundles


def _inter_token_latencies_s(bundles: Sequence[TokenChunk]) -> tuple[float, ...]:
    latencies: list[float] = []
    for previous, bundle in pairwise(bundles):
        gap_s = (bundle.perf_ns - previous.perf_ns) / NS_PER_S
        latencies.extend([gap_s / bundle.num_tokens] * bundle.num_tokens)
    return tuple(latencies)


def summarise_run(run: RunRecord) -> RunSummary:
    """Return the metrics of a run's measured requests; raise ValueError if there are none."""
    measured = [request for request in run.requests if not request.is_warmup]
    if not measured:
        raise ValueError("run: expected measured requests, got only warm-up")
    first_sent_ns = min(request.sent_perf_ns for request in measured)
    last_token_ns = max(request.chunks[-1].perf_ns for request in measured if request.chunks)
    return RunSummary(
        requests=tuple(request_metrics(request) for request in measured),
        output_tokens=sum(chunk.num_tokens for request in measured for chunk in request.chunks),
        span_s=(last_token_ns - first_sent_ns) / NS_PER_S,
    )


def compute_metrics(summary: RunSummary) -> dict[str, float]:
    """Return every metric of the table by name."""
    return {name: metric.compute(summary) for name, metric in METRICS.items()}


def _mean(field: str) -> Callable[[RunSummary], float]:
    return lambda run: float(np.mean([getattr(request, field) for request in run.requests]))


def _quantile(field: str, probability: float) -> Callable[[RunSummary], float]:
    def compute(run: RunSummary) -> float:
        return quantile([getattr(request, field) for request in run.requests], probability)

    return compute


def _itl_quantile(probability: float) -> Callable[[RunSummary], float]:
    return lambda run: quantile([x for request in run.requests for x in request.itl_s], probability)


def quantile(values: Sequence[float], probability: float) -> float:
    """Return the quantile by linear interpolation between order statistics (numpy's default)."""
    return float(np.quantile(np.asarray(values), probability, method="linear"))


_TABLE = (
    Metric(
        "generation_rate_mean_tokens_per_s",
        "generation rate, mean",
        "tokens/s",
        True,
        "mean over requests of (n_out - n_first) / (t_last - t_first)",
        _mean("generation_rate_tokens_per_s"),
    ),
    Metric(
        "generation_rate_p50_tokens_per_s",
        "generation rate, median",
        "tokens/s",
        True,
        "median over requests of (n_out - n_first) / (t_last - t_first)",
        _quantile("generation_rate_tokens_per_s", 0.5),
    ),
    Metric(
        "ttft_mean_s",
        "TTFT, mean",
        "s",
        False,
        "mean over requests of t_first - t_sent",
        _mean("ttft_s"),
    ),
    Metric(
        "ttft_p50_s",
        "TTFT, median",
        "s",
        False,
        "median over requests of t_first - t_sent",
        _quantile("ttft_s", 0.5),
    ),
    Metric(
        "tpot_mean_s",
        "TPOT, mean",
        "s",
        False,
        "mean over requests of (t_last - t_first) / (n_out - n_first)",
        _mean("tpot_s"),
    ),
    Metric(
        "itl_p50_s",
        "ITL, median",
        "s",
        False,
        "median over all tokens after each request's first chunk of gap / tokens in the chunk",
        _itl_quantile(0.5),
    ),
    Metric(
        "itl_p99_s",
        "ITL, 99th percentile",
        "s",
        False,
        "99th percentile of the same values",
        _itl_quantile(0.99),
    ),
    Metric(
        "e2e_latency_mean_s",
        "E2E latency, mean",
        "s",
        False,
        "mean over requests of t_last - t_sent",
        _mean("e2e_latency_s"),
    ),
    Metric(
        "output_throughput_tokens_per_s",
        "output throughput",
        "tokens/s",
        True,
        "generated tokens of measured requests / (last token - first send)",
        lambda run: run.output_tokens / run.span_s,
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
