"""Records where a measurement was made, and which of it makes two measurements comparable."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from pytest_qperf import __version__
from pytest_qperf.adapters.gpu import Gpu
from pytest_qperf.core.secrets import REDACTED, is_secret_name

PACKAGES = ("pytest-qperf", "numpy", "aiohttp", "pytest")
VARIABLE_PREFIXES = ("CUDA_", "OMP_", "OPENBLAS_", "MKL_", "VLLM_", "NVIDIA_")
# What an image asks of the driver, over 1,000 characters long; it changes nothing at run time.
IRRELEVANT_VARIABLES = ("NVIDIA_REQUIRE_CUDA",)
GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class EnvironmentRecord:
    """Where a measurement was made. None: there is no such thing here, or it cannot be found out.

    ``num_gpus`` counts the GPUs of the host, not only the measured one. ``variables`` holds the
    environment variables that change an engine's speed. ``packages`` maps names to versions.
    The host's name is left out: it may be private.
    """

    os: str
    kernel: str
    machine: str
    python_version: str
    cpu_model: str | None
    num_cpus: int | None
    num_usable_cpus: int | None
    memory_bytes: int
    num_gpus: int
    gpu_name: str | None
    gpu_uuid: str | None
    gpu_memory_bytes: int | None
    driver_version: str | None
    cuda_driver_version: str | None
    is_mig_enabled: bool | None
    variables: dict[str, str]
    packages: dict[str, str | None]
    git_commit: str | None
    git_is_dirty: bool | None


def describe_environment(
    gpu: Gpu | None,
    *,
    num_gpus: int,
    repository: Path,
    environment: Mapping[str, str] | None = None,
) -> EnvironmentRecord:
    """Return the record of this host, with ``gpu`` as the measured one (None: a CPU measurement).

    num_gpus: of the host, as ``list_gpus`` finds them. repository: the folder whose git state is
    recorded. environment: where variables are read, os.environ if None.
    """
    git_commit = _git(repository, "rev-parse", "HEAD")
    git_changes = None if git_commit is None else _git(repository, "status", "--porcelain")
    return EnvironmentRecord(
        os=platform.system(),
        kernel=platform.release(),
        machine=platform.machine(),
        python_version=platform.python_version(),
        cpu_model=_cpu_model(),
        num_cpus=os.cpu_count(),
        num_usable_cpus=_num_usable_cpus(),
        memory_bytes=psutil.virtual_memory().total,
        num_gpus=num_gpus,
        gpu_name=gpu.name if gpu else None,
        gpu_uuid=gpu.uuid if gpu else None,
        gpu_memory_bytes=gpu.memory_total_bytes if gpu else None,
        driver_version=gpu.driver_version if gpu else None,
        cuda_driver_version=gpu.cuda_driver_version if gpu else None,
        is_mig_enabled=gpu.is_mig_enabled if gpu else None,
        variables=relevant_variables(os.environ if environment is None else environment),
        packages={name: _package_version(name) for name in PACKAGES},
        git_commit=git_commit,
        git_is_dirty=None if git_changes is None else git_changes != "",
    )


def fingerprint(record: EnvironmentRecord) -> str:
    """Return 16 hex digits of the SHA-256 over the hard fields: others may differ in a comparison.

    Hard: GPU name, number of GPUs, the driver's major version, MIG, CPU model.
    """
    driver = record.driver_version
    hard = {
        "gpu_name": record.gpu_name,
        "num_gpus": record.num_gpus,
        "driver_major": None if driver is None else driver.split(".")[0],
        "is_mig_enabled": record.is_mig_enabled,
        "cpu_model": record.cpu_model,
    }
    return hashlib.sha256(json.dumps(hard, sort_keys=True).encode()).hexdigest()[:16]


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change an engine's speed, sorted; secrets by name are redacted."""
    return {
        name: REDACTED if is_secret_name(name) else value
        for name, value in sorted(environment.items())
        if name.startswith(VARIABLE_PREFIXES) and name not in IRRELEVANT_VARIABLES
    }


def _num_usable_cpus() -> int | None:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count()


def _cpu_model() -> str | None:
    if platform.system() == "Darwin":
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"])
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return None
    fields = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)
    }
    if "model name" in fields:
        return fields["model name"]
    # ARM kernels give numbers instead of a name.
    if "CPU implementer" in fields and "CPU part" in fields:
        return f"implementer {fields['CPU implementer']} part {fields['CPU part']}"
    return None


def _package_version(name: str) -> str | None:
    if name == "pytest-qperf":  # known without its metadata too, as when it runs from its source
        return __version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    return _output(["git", "-C", str(folder), *arguments])


def _output(command: list[str]) -> str | None:
    """Return what a command prints, stripped; None if it is not here, fails or hangs."""
    try:
        finished = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip()
