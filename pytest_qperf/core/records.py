"""What a run leaves behind: raw reads, decoded requests, one record for each run of an engine.

Clocks: ``*_perf_ns`` is the client's monotonic ``time.perf_counter_ns``; it orders and subtracts
within one run and means nothing across runs. Wall-clock times are aware UTC datetimes.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Arm = Literal["candidate", "baseline"]


@dataclass(frozen=True, slots=True)
class SocketRead:
    """Bytes of a response body, as one read returned them, and the clock right after that read."""

    perf_ns: int
    data: bytes


@dataclass(frozen=True, slots=True)
class RawResponse:
    """One request as the client saw it, before any parsing.

    ``transport_error`` is None unless the connection failed, stalled or ended early; it then says
    so in one line. ``http_status`` is None if no status line came.
    """

    index: int
    scheduled_perf_ns: int
    sent_perf_ns: int
    ended_perf_ns: int
    http_status: int | None
    reads: tuple[SocketRead, ...]
    transport_error: str | None


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """A streamed chunk that carried generated tokens: when it was read and how many."""

    perf_ns: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One decoded request. ``chunks`` holds only chunks with generated tokens, in order.

    ``isl_tokens`` and ``osl_tokens`` are the server's ``usage``; None if it sent none.
    ``error`` is None for a complete request, else the reason it is not one.
    """

    index: int
    is_warmup: bool
    scheduled_perf_ns: int
    sent_perf_ns: int
    ended_perf_ns: int
    http_status: int | None
    isl_tokens: int | None
    osl_tokens: int | None
    cached_tokens: int | None
    finish_reason: str | None
    chunks: tuple[TokenChunk, ...]
    error: str | None


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """How well the client itself kept time during a run, in seconds."""

    event_loop_lag_p99_s: float
    event_loop_lag_max_s: float
    send_lag_max_s: float


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Every request sent to one fresh start of one engine."""

    started_at: datetime
    duration_s: float
    requests: tuple[RequestRecord, ...]
    client_health: ClientHealth


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest, mean and largest value over the samples."""

    min: float
    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class GpuSummary:
    """What a GPU did during a run. ``throttle_samples``: in how many samples each reason held.

    None: some sample lacks the quantity.
    """

    num_samples: int
    sm_clock_mhz: Spread | None
    memory_clock_mhz: Spread | None
    power_w: Spread | None
    temperature_celsius: Spread | None
    throttle_samples: dict[str, int] | None
