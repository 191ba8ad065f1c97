"""The environment's record: what is kept, what is redacted, what must match."""

import dataclasses
import platform
import subprocess
from pathlib import Path

import pytest

from pytest_qperf.adapters.environment import (
    EnvironmentRecord,
    describe_environment,
    fingerprint,
    relevant_variables,
)
from pytest_qperf.adapters.gpu import Gpu

H200 = Gpu(0, "GPU-aaaa", "NVIDIA H200", 140 * 2**30, "580.95.05", "13.0", False)


@pytest.fixture
def record(tmp_path: Path) -> EnvironmentRecord:
    return describe_environment(H200, num_gpus=8, repository=tmp_path, environment={})


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_the_measured_gpu_and_the_host_are_recorded(record: EnvironmentRecord) -> None:
    assert record.gpu_name == "NVIDIA H200"
    assert record.driver_version == "580.95.05"
    assert record.num_gpus == 8
    assert record.python_version == platform.python_version()
    assert record.memory_bytes > 2**20
    assert record.packages["numpy"] is not None


def test_without_a_gpu_its_fields_are_absent(tmp_path: Path) -> None:
    record = describe_environment(None, num_gpus=0, repository=tmp_path, environment={})
    assert (record.gpu_name, record.driver_version, record.is_mig_enabled) == (None, None, None)


def test_the_host_s_name_is_not_recorded(record: EnvironmentRecord) -> None:
    assert not {"host", "hostname", "node"} & {f.name for f in dataclasses.fields(record)}


def test_only_variables_that_change_speed_are_kept_and_secrets_are_redacted() -> None:
    variables = relevant_variables(
        {
            "VLLM_API_KEY": "abc",
            "NVIDIA_api_token": "abc",
            "CUDA_VISIBLE_DEVICES": "0",
            "OMP_NUM_THREADS": "2",
            "HOME": "/home/someone",
            "MY_CUDA_THING": "1",
        }
    )
    assert variables == {
        "CUDA_VISIBLE_DEVICES": "0",
        "NVIDIA_api_token": "<redacted>",
        "OMP_NUM_THREADS": "2",
        "VLLM_API_KEY": "<redacted>",
    }


def test_git_commit_and_changes_are_recorded(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "a")
    clean = describe_environment(None, num_gpus=0, repository=tmp_path)
    assert (clean.git_commit, clean.git_is_dirty) == (git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "a").write_text("2")
    assert describe_environment(None, num_gpus=0, repository=tmp_path).git_is_dirty is True


def test_outside_a_repository_there_is_no_commit(record: EnvironmentRecord) -> None:
    assert (record.git_commit, record.git_is_dirty) == (None, None)


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_environment(None, num_gpus=0, repository=tmp_path).git_commit is None


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "other"},
        {"driver_version": "580.100.1"},
        {"gpu_uuid": "GPU-bbbb"},
        {"variables": {"OMP_NUM_THREADS": "1"}},
        {"git_commit": "abc"},
        {"memory_bytes": 1},
    ],
)
def test_soft_fields_do_not_change_the_fingerprint(
    record: EnvironmentRecord, change: dict[str, object]
) -> None:
    assert fingerprint(dataclasses.replace(record, **change)) == fingerprint(record)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"gpu_name": "NVIDIA H100"},
        {"num_gpus": 4},
        {"driver_version": "590.1"},
        {"is_mig_enabled": True},
        {"cpu_model": "another"},
        {"gpu_name": None, "driver_version": None},
    ],
)
def test_hard_fields_change_the_fingerprint(
    record: EnvironmentRecord, change: dict[str, object]
) -> None:
    assert fingerprint(dataclasses.replace(record, **change)) != fingerprint(record)  # type: ignore[arg-type]


def test_the_fingerprint_is_16_hex_digits(record: EnvironmentRecord) -> None:
    assert len(fingerprint(record)) == 16
    int(fingerprint(record), 16)
