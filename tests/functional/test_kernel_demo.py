"""Editing the plugin's source changes the measured rate: the project's demonstration."""

import shutil
from pathlib import Path

import pytest
from fakes.named_engines import RecordedProgress

from pytest_qperf.adapters.engine_embedded import EmbeddedAdapter
from pytest_qperf.adapters.load_client import AiohttpLoadClient
from pytest_qperf.adapters.prompt_source import workload_prompts
from pytest_qperf.adapters.recipe_file import RecipeLibrary
from pytest_qperf.core.metrics import compute_metrics, summarise_run
from pytest_qperf.core.validity import run_problems

REPOSITORY = Path(__file__).resolve().parents[2]
RATE = "generation_rate_mean_tokens_per_s"
ENTRY = "void run_gemm("


def decode_rate(root: Path, cache: Path) -> float:
    """Return the embedded candidate's mean rate, tokens/s, from two short waves."""
    gate = RecipeLibrary((root / "engine_recipes",)).load_gate("embedded")
    workload = gate.workload.model_copy(update={"num_requests": 16, "osl_tokens": 12})
    adapter, progress = EmbeddedAdapter(), RecordedProgress()
    artifact = adapter.build(gate.candidate, cache_dir=cache, progress=progress)
    with adapter.launch(
        gate.candidate, artifact, log_path=root / "engine.log", progress=progress
    ) as running:
        record = AiohttpLoadClient().run(
            running, workload, workload_prompts(workload, round_number=1), progress=progress
        )
    assert run_problems(record, workload) == ()
    return compute_metrics(summarise_run(record))[RATE]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_kernel_slowed_by_a_usleep_lowers_the_measured_rate(
    tmp_path: Path, qperf_cache: Path
) -> None:
    for folder in ("engine_recipes", "plugins"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    rate = decode_rate(tmp_path, qperf_cache)
    source = tmp_path / "plugins" / "fp8_gemm" / "src" / "host" / "gemm.cpp"
    text = source.read_text()
    head, entry, rest = text.partition(ENTRY)
    signature, brace, body = rest.partition("{\n")
    assert entry
    assert brace
    source.write_text(f"#include <unistd.h>\n{head}{entry}{signature}{brace}usleep(500);\n{body}")
    assert decode_rate(tmp_path, qperf_cache) <= 0.8 * rate
