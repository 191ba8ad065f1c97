"""Run folders: what is written where, read back, and refused."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.small_gates import REFUSED, run_record, small_gate, stored_run, with_http_429
from fakes.stored_results import gate_result

from pytest_qperf.adapters.result_store import ResultStore, read_result
from pytest_qperf.core.errors import ResultError
from pytest_qperf.core.result import GateResult
from pytest_qperf.core.statistics import Estimate

GATE = small_gate()


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    store = ResultStore.create(tmp_path / "report", GATE)
    store.begin(GATE, num_rounds=2, fingerprint="f1")
    return store


def whole_result() -> GateResult:
    return gate_result(
        [stored_run(n, arm, run_record()) for n in (1, 2) for arm in ("baseline", "candidate")]
    )


def test_a_new_report_folder_is_ignored_by_git(store: ResultStore, tmp_path: Path) -> None:
    assert store.folder.parent == tmp_path / "report" / "small-gate"
    assert (tmp_path / "report" / ".gitignore").read_text() == "*\n"


def test_a_folder_that_was_there_before_is_not_hidden_from_git(tmp_path: Path) -> None:
    ResultStore.create(tmp_path, GATE)
    assert not (tmp_path / ".gitignore").exists()


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    folders = {ResultStore.create(tmp_path, GATE).folder for _ in range(3)}
    assert len(folders) == 3


def test_a_report_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ResultError) as caught:
        ResultStore.create(path, GATE)
    assert str(caught.value) == (
        f"{path}: expected a folder that can be written, got Not a directory; "
        "choose another with --qperf-report DIR"
    )


def test_the_stamp_says_what_is_measured(store: ResultStore) -> None:
    assert json.loads((store.folder / "gate.json").read_text()) == {
        "gate": "small-gate",
        "digest": "digest-of-the-gate",
        "num_rounds": 2,
        "fingerprint": "f1",
    }


def test_the_same_measurement_may_begin_again(store: ResultStore) -> None:
    resumed = ResultStore.resume(store.folder, GATE, num_rounds=2)
    resumed.begin(GATE, num_rounds=2, fingerprint="f1")
    assert resumed.folder == store.folder


def test_another_measurement_is_refused_naming_every_difference(store: ResultStore) -> None:
    other = replace(GATE, name="other", digest="d2")
    with pytest.raises(ResultError) as caught:
        store.begin(other, num_rounds=3, fingerprint="f2")
    assert str(caught.value) == (
        f"{store.folder}: expected the run that was interrupted, got another: "
        "gate small-gate is now other; digest digest-of-the-gate is now d2; "
        "num_rounds 2 is now 3; fingerprint f1 is now f2; "
        "start a new run without --qperf-resume"
    )
    with pytest.raises(ResultError, match=r"num_rounds 2 is now 3; start"):
        ResultStore.resume(store.folder, GATE, num_rounds=3)


def test_a_damaged_stamp_is_refused(store: ResultStore) -> None:
    (store.folder / "gate.json").write_text('{"gate": "small-gate"}')
    with pytest.raises(ResultError, match="expected a GateStamp of this version, got a problem"):
        ResultStore.resume(store.folder, GATE, num_rounds=2)


def test_a_round_is_finished_once_both_arms_are_valid(store: ResultStore) -> None:
    record = run_record()
    for run in (
        stored_run(1, "candidate", record),
        stored_run(1, "baseline", record),
        stored_run(2, "candidate", record),
        stored_run(3, "candidate", record),
        stored_run(3, "baseline", with_http_429(record)),
    ):
        store.add_run(run, record)
    assert [(run.round, run.arm) for run in store.finished_runs()] == [
        (1, "baseline"),
        (1, "candidate"),
    ]


def test_a_new_folder_has_no_finished_runs(store: ResultStore) -> None:
    assert store.finished_runs() == ()


def test_finished_runs_come_in_round_order_beyond_99(store: ResultStore) -> None:
    record = run_record()
    for number in (100, 99):
        for arm in ("candidate", "baseline"):
            store.add_run(stored_run(number, arm, record), record)
    assert [run.round for run in store.finished_runs()] == [99, 99, 100, 100]


def test_a_run_reads_back_as_it_was(store: ResultStore) -> None:
    record = run_record()
    runs = [stored_run(1, arm, record) for arm in ("baseline", "candidate")]
    for run in runs:
        store.add_run(run, record)
    assert list(store.finished_runs()) == runs


def test_raw_times_read_back_relative_to_each_requests_send(store: ResultStore) -> None:
    record = with_http_429(run_record(rate_tokens_per_s=4.0, ttft_s=0.5))
    store.add_run(stored_run(1, "baseline", record), record)
    path = store.folder / "raw" / "round-01-baseline.json.gz"
    raw = json.loads(gzip.decompress(path.read_bytes()))
    assert raw[2] == {
        "index": 2,
        "is_warmup": False,
        "scheduled_perf_ns": 100_000_000_000,
        "sent_perf_ns": 100_000_000_000,
        "ended_perf_ns": 101_500_000_000,
        "http_status": 200,
        "isl_tokens": 8,
        "osl_tokens": 5,
        "cached_tokens": None,
        "finish_reason": "length",
        "error": None,
        "chunk_after_sent_ns": [500_000_000, 750_000_000, 10**9, 1_250_000_000, 1_500_000_000],
        "chunk_tokens": [1, 1, 1, 1, 1],
    }
    assert raw[3]["error"] == "HTTP status: expected 200, got 429"


def test_a_run_measured_again_replaces_its_summary_and_its_raw_times(store: ResultStore) -> None:
    bad, good = with_http_429(run_record()), run_record()
    store.add_run(stored_run(1, "baseline", bad), bad)
    store.add_run(stored_run(1, "candidate", good), good)
    assert store.finished_runs() == ()
    store.add_run(stored_run(1, "baseline", good), good)
    assert [run.problems for run in store.finished_runs()] == [(), ()]
    path = store.folder / "raw" / "round-01-baseline.json.gz"
    assert json.loads(gzip.decompress(path.read_bytes()))[3]["error"] is None


def test_raw_times_without_a_summary_are_no_finished_run(store: ResultStore) -> None:
    record = run_record()
    for arm in ("candidate", "baseline"):
        store.add_run(stored_run(1, arm, record), record)
    (store.folder / "runs" / "round-01-baseline.json").unlink()
    assert store.finished_runs() == ()


def test_a_half_written_summary_is_no_finished_run(store: ResultStore) -> None:
    record = run_record()
    store.add_run(stored_run(1, "candidate", record), record)
    (store.folder / "runs" / "round-01-baseline.json.tmp").write_text('{"rou')
    assert store.finished_runs() == ()


def test_an_earlier_attempts_log_is_kept(store: ResultStore) -> None:
    names = []
    for _ in range(3):
        path = store.log_path(1, "baseline")
        path.write_text("")
        names.append(path.name)
    assert names == [
        "round-01-baseline.log",
        "round-01-baseline-attempt-2.log",
        "round-01-baseline-attempt-3.log",
    ]


def test_a_result_reads_back_as_it_was_with_its_table_beside(store: ResultStore) -> None:
    result = whole_result()
    path = store.save_result(result, "the table\n")
    assert read_result(path) == result
    assert (store.folder / "report.txt").read_text() == "the table\n"
    assert not list(store.folder.glob("*.tmp"))


def test_text_outside_ascii_is_stored_readably_in_utf_8(store: ResultStore) -> None:
    result = gate_result([], failure="Übersetzer fehlt: 程序")
    path = store.save_result(result, "Übersetzer fehlt: 程序\n")
    assert "Übersetzer fehlt: 程序".encode() in path.read_bytes()
    assert read_result(path).problems == ("Übersetzer fehlt: 程序",)
    assert (store.folder / "report.txt").read_bytes().decode() == "Übersetzer fehlt: 程序\n"


def test_a_byte_that_is_no_text_costs_no_result(store: ResultStore) -> None:
    result = whole_result().model_copy(update={"command": ("pytest", "caf\udce9")})
    path = store.save_result(result, "caf\udce9\n")
    assert read_result(path).command == ("pytest", "caf?")


def test_a_number_that_json_does_not_have_is_never_written(store: ResultStore) -> None:
    result = whole_result()
    broken = replace(result.verdicts[0], ratio=Estimate(float("nan"), None, None, 1))
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.save_result(result.model_copy(update={"verdicts": (broken,)}), "")
    assert not (store.folder / "result.json").exists()


def test_a_folder_that_cannot_be_written_is_an_error_that_says_where(store: ResultStore) -> None:
    for name in ("runs", "logs", "raw"):
        (store.folder / name).write_text("a file in the way")
    record = run_record()
    with pytest.raises(ResultError) as caught:
        store.add_run(stored_run(1, "baseline", record), record)
    assert str(caught.value) == (
        f"{store.folder}/raw/round-01-baseline.json.gz: expected to write the run's results there, "
        "got File exists; free the disk or mend the folder's permissions, then go on with "
        "--qperf-resume"
    )
    with pytest.raises(ResultError, match="logs: expected to write the run's results there, got"):
        store.log_path(1, "baseline")


def test_a_result_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResultError) as caught:
        read_result(tmp_path / "gone.json")
    assert str(caught.value) == (
        f"{tmp_path}/gone.json: expected a stored result, got No such file or directory; "
        "check the path"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"not json", "at document: Invalid JSON"),
        (b"\xff", "at document: Invalid JSON"),
        (b"{}", "at gate: Field required"),
    ],
)
def test_a_document_that_is_no_result_is_an_error(
    tmp_path: Path, text: bytes, problem: str
) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(text)
    with pytest.raises(ResultError) as caught:
        read_result(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: expected a GateResult of this version, got a problem ")
    assert problem in message
    assert message.endswith("; read it with the version that wrote it")


def test_the_problems_of_an_invalid_run_read_back(store: ResultStore) -> None:
    result = gate_result([stored_run(1, "baseline", with_http_429(run_record()))])
    assert read_result(store.save_result(result, "")).problems == (f"round 1, baseline: {REFUSED}",)


def test_the_same_build_may_go_on_and_another_is_named_with_all_that_differs(
    store: ResultStore,
) -> None:
    store.check_build("candidate", {"plugin_hash": "a", "model_sha256": "m"})
    store.check_build("candidate", {"model_sha256": "m", "plugin_hash": "a"})
    store.check_build("baseline", {})
    with pytest.raises(ResultError) as caught:
        store.check_build("candidate", {"plugin_hash": "b", "weights_sha256": "w"})
    assert (
        "got another build: model_sha256 m is now None; plugin_hash a is now b; "
        "weights_sha256 None is now w; start a new run"
    ) in str(caught.value)
