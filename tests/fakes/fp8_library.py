"""The plugin's host library, built once, on each instruction set this processor has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_qperf.adapters.plugin_build import build_host_library
from pytest_qperf.core.errors import EngineError
from pytest_qperf.embedded.fp8_gemm import Fp8Gemm

SOURCE_DIR = Path(__file__).resolve().parents[2] / "plugins" / "fp8_gemm"


@pytest.fixture(scope="session")
def source_dir() -> Path:
    return SOURCE_DIR


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache_dir = tmp_path_factory.mktemp("plugin_cache")
    return build_host_library(SOURCE_DIR, cache_dir=cache_dir, note=lambda _line: None).path


@pytest.fixture
def gemm(library_path: Path) -> Iterator[Fp8Gemm]:
    """The library on two threads and the widest instruction set."""
    library = Fp8Gemm(library_path, num_threads=2)
    yield library
    library.set_isa("auto")


@pytest.fixture(params=["portable", "avx2", "avx512"])
def gemm_on_isa(gemm: Fp8Gemm, request: pytest.FixtureRequest) -> Fp8Gemm:
    """The library on one instruction set; skipped where the processor lacks it."""
    try:
        gemm.set_isa(request.param)
    except EngineError as error:
        pytest.skip(str(error))
    return gemm
