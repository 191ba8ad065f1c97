"""Small recipes that are right, for tests to make wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_qperf.core.errors import RecipeError

ENGINE_TEXT = """\
description: an engine
kind: vllm
precision: fp8
model: org/model
interpreter: python3
"""
WORKLOAD_TEXT = """\
description: a workload
isl_tokens: 8
osl_tokens: 4
concurrency: 2
num_requests: 6
arrival: burst
prompts:
  source: random_tokens
  min_token_id: 1
  max_token_id: 9
seed: 0
"""
GATE_TEXT = """\
description: a gate
candidate: fast
baseline: slow
workload: small
rounds: 4
thresholds:
  ttft_mean_s:
    max_ratio_to_baseline: 1.1
"""


def write_root(root: Path) -> Path:
    for name, text in {
        "engines/fast.yaml": ENGINE_TEXT,
        "engines/slow.yaml": ENGINE_TEXT + "arguments: [--slow]\n",
        "workloads/small.yaml": WORKLOAD_TEXT,
        "gates/good.yaml": GATE_TEXT,
    }.items():
        write(root / name, text)
    return root


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        call()
    return list(caught.value.problems)


def edited(text: str, line: str, replacement: str) -> str:
    assert text.count(line) == 1
    return text.replace(line, replacement)
