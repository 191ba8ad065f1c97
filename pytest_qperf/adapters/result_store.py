"""Keeps a gate's results in a folder: each run as it ends, so that nothing finished is lost.

Layout of a run folder::

    gate.json                        what is being measured; checked when a run is resumed
    build-candidate.json             content hashes of what was built; checked likewise
    runs/round-01-candidate.json     one run's summary
    raw/round-01-candidate.json.gz   every request of that run with its raw token times
    logs/round-01-candidate.log      the engine's log
    result.json                      the whole result, at most 1 MB
    report.txt                       the table as the terminal showed it
"""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
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


class _BuildStamp(BaseModel):
    """What an arm was built from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    content_hashes: dict[str, str]


class ResultStore:
    """One run folder of one gate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, report_dir: Path, gate: ResolvedGate) -> "ResultStore":
        """Make a new run folder ``report_dir/gate/UTC time``; git ignores the report folder.

        A report folder that was there before is left as git sees it.
        Raises ResultError if it cannot be written.
        """
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        folder = report_dir / gate.name / stamp
        is_new = not report_dir.exists()
        try:
            folder.mkdir(parents=True)
            if is_new:
                (report_dir / ".gitignore").write_text("*\n")
        except OSError as error:
            raise ResultError(
                f"{report_dir}: expected a folder that can be written, got {error.strerror}; "
                "choose another with --qperf-report DIR"
            ) from error
        return cls(folder)

    @classmethod
    def resume(cls, folder: Path, gate: ResolvedGate, *, num_rounds: int) -> "ResultStore":
        """Open the run folder of an interrupted run of this gate.

        Raises ResultError if it is no run folder, or another measurement's: then nothing of this
        run may be written there. ``begin`` compares the environment, once it is known.
        """
        if not (folder / "gate.json").is_file():
            raise ResultError(
                f"{folder}: expected a run folder with gate.json in it, found none; "
                "--qperf-resume takes the folder that the interrupted run named"
            )
        store = cls(folder)
        store._check_stamp(gate=gate.name, digest=gate.digest, num_rounds=num_rounds)
        return store

    def begin(self, gate: ResolvedGate, *, num_rounds: int, fingerprint: str) -> None:
        """Stamp a new folder, or check that a resumed one is about the same measurement.

        Raises ResultError naming every difference.
        """
        stamp = _GateStamp(
            gate=gate.name, digest=gate.digest, num_rounds=num_rounds, fingerprint=fingerprint
        )
        path = self.folder / "gate.json"
        if path.exists():
            self._check_stamp(**stamp.model_dump())
        else:
            _write_bytes(path, _json_bytes(stamp))

    def _check_stamp(self, **wanted: object) -> None:
        stored = _read_model(self.folder / "gate.json", _GateStamp)
        differences = [
            f"{name} {getattr(stored, name)} is now {value}"
            for name, value in wanted.items()
            if getattr(stored, name) != value
        ]
        if differences:
            raise ResultError(
                f"{self.folder}: expected the run that was interrupted, got another: "
                f"{'; '.join(differences)}; start a new run without --qperf-resume"
            )

    def check_build(self, arm: Arm, content_hashes: dict[str, str]) -> None:
        """Keep what an arm was built from, or check that a resumed run measures the same build.

        Raises ResultError naming every difference: rounds of two builds must not be mixed.
        """
        path = self.folder / f"build-{arm}.json"
        build = _BuildStamp(content_hashes=content_hashes)
        if not path.exists():
            _write_bytes(path, _json_bytes(build))
            return
        stored = _read_model(path, _BuildStamp).content_hashes
        differences = [
            f"{name} {stored.get(name)} is now {content_hashes.get(name)}"
            for name in sorted(stored.keys() | content_hashes.keys())
            if stored.get(name) != content_hashes.get(name)
        ]
        if differences:
            raise ResultError(
                f"{self.folder}: expected the {arm} that was measured before the interruption, got "
                f"another build: {'; '.join(differences)}; start a new run without --qperf-resume"
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
        with _writing(folder):
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
        _write_bytes(self.folder / "runs" / f"{name}.json", _json_bytes(run))

    def save_result(self, result: GateResult, report: str) -> Path:
        """Write result.json (at most 1 MB) and report.txt; return the path of result.json."""
        data = _json_bytes(result)
        if len(data) > MAX_RESULT_BYTES:
            data = _json_bytes(_without_request_columns(result))
        path = self.folder / "result.json"
        _write_bytes(self.folder / "report.txt", report.encode(errors="replace"))
        _write_bytes(path, data)
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


def _json_bytes(model: BaseModel) -> bytes:
    """Return a model as JSON in UTF-8; raise ValueError for a number that JSON does not have.

    What is no text in UTF-8, such as a byte of a file's name on the command line, becomes "?".
    """
    values = model.model_dump(mode="json")
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode(errors="replace")


def _write_bytes(path: Path, data: bytes) -> None:
    """Write through a temporary name, so that a killed process leaves no half file."""
    temporary = path.with_name(path.name + ".tmp")
    with _writing(path):
        path.parent.mkdir(exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResultError(
            f"{path}: expected to write the run's results there, got {error.strerror}; "
            "free the disk or mend the folder's permissions, then go on with --qperf-resume"
        ) from error
