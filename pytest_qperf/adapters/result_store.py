"""Keeps a gate's results in a folder: each run as it ends, so that nothing finished is lost.

Layout of a run folder::

    gate.json                        what is being measured; checked when a run is resumed
    runs/round-01-candidate.json     one run's summary
    raw/round-01-candidate.json.gz   every request of that run with its raw token times
    logs/round-01-candidate.log      the engine's log
    result.json                      the whole result, at most 1 MB
    report.txt                       the table as the terminal showed it
"""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pytest_qperf.core.artifacts import ResolvedGate
from pytest_qperf.core.errors import ResultError
from pytest_qperf.core.records import Arm, RequestRecord, RunRecord
from pytest_qperf.core.result import GateResult, RequestColumns, RunResult

MAX_RESULT_BYTES = 1_000_000
ModelT = TypeVar("ModelT", bound=BaseModel)


class _GateStamp(BaseModel):
    """What a run folder is about; a resumed run must agree in all of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gate: str
    digest: str
    num_rounds: int
    fingerprint: str


class ResultStore:
    """One run folder of one gate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, report_dir: Path, gate: ResolvedGate) -> "ResultStore":
        """Make a new run folder ``report_dir/gate/UTC time``; git ignores the report folder.

        Raises ResultError if it cannot be written.
        """
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        folder = report_dir / gate.name / stamp
        try:
            folder.mkdir(parents=True)
            if not (report_dir / ".gitignore").exists():
                (report_dir / ".gitignore").write_text("*\n")
        except OSError as error:
            raise ResultError(
                f"{report_dir}: expected a folder that can be written, got {error.strerror}; "
                "choose another with --qperf-report DIR"
            ) from error
        return cls(folder)

    @classmethod
    def resume(cls, folder: Path) -> "ResultStore":
        """Open the run folder of an interrupted run; raise ResultError if it is not one."""
        if not (folder / "gate.json").is_file():
            raise ResultError(
                f"{folder}: expected a run folder with gate.json in it, found none; "
                "--qperf-resume takes the folder that the interrupted run named"
            )
        return cls(folder)

    def begin(self, gate: ResolvedGate, *, num_rounds: int, fingerprint: str) -> None:
        """Stamp a new folder, or check that a resumed one is about the same measurement.

        Raises ResultError naming every difference.
        """
        stamp = _GateStamp(
            gate=gate.name, digest=gate.digest, num_rounds=num_rounds, fingerprint=fingerprint
        )
        path = self.folder / "gate.json"
        if not path.exists():
            _write_text(path, stamp.model_dump_json(indent=1) + "\n")
            return
        stored = _read_model(path, _GateStamp)
        differences = [
            f"{name} {getattr(stored, name)} is now {getattr(stamp, name)}"
            for name in _GateStamp.model_fields
            if getattr(stored, name) != getattr(stamp, name)
        ]
        if differences:
            raise ResultError(
                f"{self.folder}: expected the run that was interrupted, got another: "
                f"{'; '.join(differences)}; start a new run without --qperf-resume"
            )

    def finished_runs(self) -> tuple[RunResult, ...]:
        """Return the runs of rounds in which both arms ended without problems, in round order."""
        paths = sorted((self.folder / "runs").glob("round-*.json"))
        runs = [_read_model(path, RunResult) for path in paths]
        good = [run for run in runs if not run.problems]
        rounds = {run.round for run in good if run.arm == "candidate"} & {
            run.round for run in good if run.arm == "baseline"
        }
        return tuple(sorted((r for r in good if r.round in rounds), key=lambda r: (r.round, r.arm)))

    def log_path(self, round_number: int, arm: Arm) -> Path:
        """Return where the log of one run's engine goes; an earlier attempt's log is kept."""
        folder = self.folder / "logs"
        folder.mkdir(exist_ok=True)
        path = folder / f"round-{round_number:02d}-{arm}.log"
        attempt = 2
        while path.exists():
            path = folder / f"round-{round_number:02d}-{arm}-attempt-{attempt}.log"
            attempt += 1
        return path

    def add_run(self, run: RunResult, record: RunRecord) -> None:
        """Write one run's summary and raw times; the summary last, since it marks the run done."""
        name = f"round-{run.round:02d}-{run.arm}"
        raw = json.dumps([_raw_request(request) for request in record.requests])
        _write_bytes(self.folder / "raw" / f"{name}.json.gz", gzip.compress(raw.encode(), 6))
        _write_text(self.folder / "runs" / f"{name}.json", run.model_dump_json(indent=1) + "\n")

    def save_result(self, result: GateResult, report: str) -> Path:
        """Write result.json (at most 1 MB) and report.txt; return the path of result.json."""
        text = result.model_dump_json(indent=1) + "\n"
        if len(text.encode()) > MAX_RESULT_BYTES:
            text = _without_request_columns(result).model_dump_json(indent=1) + "\n"
        path = self.folder / "result.json"
        _write_text(self.folder / "report.txt", report)
        _write_text(path, text)
        return path


def read_result(path: Path) -> GateResult:
    """Return a stored result; raise ResultError if it is missing or not of this version."""
    return _read_model(path, GateResult)


def _without_request_columns(result: GateResult) -> GateResult:
    """Return the result without the summaries of single requests; they stay in ``raw/``."""
    runs = tuple(run.model_copy(update={"requests": RequestColumns()}) for run in result.runs)
    return result.model_copy(update={"runs": runs})


def _raw_request(request: RequestRecord) -> dict[str, object]:
    """Return a request with its token times, ns relative to its own send."""
    return {
        "index": request.index,
        "is_warmup": request.is_warmup,
        "scheduled_perf_ns": request.scheduled_perf_ns,
        "sent_perf_ns": request.sent_perf_ns,
        "ended_perf_ns": request.ended_perf_ns,
        "http_status": request.http_status,
        "isl_tokens": request.isl_tokens,
        "osl_tokens": request.osl_tokens,
        "cached_tokens": request.cached_tokens,
        "finish_reason": request.finish_reason,
        "error": request.error,
        "chunk_after_sent_ns": [chunk.perf_ns - request.sent_perf_ns for chunk in request.chunks],
        "chunk_tokens": [chunk.num_tokens for chunk in request.chunks],
    }


def _read_model(path: Path, model: type[ModelT]) -> ModelT:
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ResultError(
            f"{path}: expected a stored result, got {error.strerror}; check the path"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise ResultError(
            f"{path}: expected a {model.__name__.lstrip('_')} of this version, got a problem at "
            f"{where}: {first['msg']}; read it with the version that wrote it"
        ) from error


def _write_text(path: Path, text: str) -> None:
    _write_bytes(path, text.encode())


def _write_bytes(path: Path, data: bytes) -> None:
    """Write through a temporary name, so that a killed process leaves no half file."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
