"""Wrong recipes: every problem at once, at its line and column, with what to do about it."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipe_texts import (
    ENGINE_TEXT,
    GATE_TEXT,
    WORKLOAD_TEXT,
    edited,
    problems_of,
    write,
    write_root,
)

from pytest_qperf.adapters.recipe_file import ENGINE, GATE, WORKLOAD, RecipeKind, read_recipe
from pytest_qperf.core.recipe import VllmEngine


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with one good gate, in the current folder's `r`."""
    monkeypatch.chdir(tmp_path)
    return write_root(tmp_path / "r")


def problems_in(text: str, kind: RecipeKind[Any], root: Path) -> list[str]:
    path = write(root / "x.yaml", text)
    return [
        problem.removeprefix("r/x.yaml:")
        for problem in problems_of(lambda: read_recipe(path, kind))
    ]


def test_a_good_engine_is_read_into_its_kind(root: Path) -> None:
    recipe = read_recipe(root / "engines" / "slow.yaml", ENGINE)
    assert isinstance(recipe, VllmEngine)
    assert recipe.arguments == ("--slow",)


def test_an_integer_is_a_number_and_a_list_of_text_a_tuple(root: Path) -> None:
    path = write(root / "x.yaml", ENGINE_TEXT + "ready_timeout_s: 60\narguments: [--a, 'b']\n")
    recipe = read_recipe(path, ENGINE)
    assert isinstance(recipe, VllmEngine)
    assert (recipe.ready_timeout_s, recipe.arguments) == (60.0, ("--a", "b"))


@pytest.mark.parametrize(
    ("line", "replacement", "problem"),
    [
        (
            "kind: vllm\n",
            "kind: vlm\n",
            "2:1: kind: expected one of 'vllm', 'trtllm', 'embedded', 'endpoint', got 'vlm'; "
            "did you mean 'vllm'?",
        ),
        (
            "kind: vllm\n",
            "kind: 8\n",
            "2:1: kind: expected one of 'vllm', 'trtllm', 'embedded', 'endpoint', got 8",
        ),
        ("kind: vllm\n", "", "1:1: kind: expected this key, got none; add it"),
        ("precision: fp8\n", "", "1:1: precision: expected this key, got none; add it"),
        (
            "precision: fp8\n",
            "precision: fp16\n",
            "3:1: precision: expected 'bf16' or 'fp8', got 'fp16'; did you mean 'bf16'?",
        ),
        (
            "precision: fp8\n",
            "precision: fp8\nenviroment: {}\n",
            "4:1: enviroment: expected a known key, got 'enviroment'; did you mean 'environment'?",
        ),
        ("model: org/model\n", "model: 8\n", "4:1: model: expected text or a mapping, got 8"),
        ("model: org/model\n", "model:\n", "4:1: model: expected text or a mapping, got nothing"),
        (
            "model: org/model\n",
            "model:\n  synthetic: s\n  quantization: fp8-static\n  sede: 0\n  seed: 0\n",
            "7:3: model.sede: expected a known key, got 'sede'; did you mean 'seed'?",
        ),
        (
            "model: org/model\n",
            "model:\n  synthetic: s\n  quantization: fp8-static\n",
            "4:1: model.seed: expected this key, got none; add it",
        ),
        (
            "interpreter: python3\n",
            "",
            "1:1: expected exactly one of 'interpreter' and 'image', got neither",
        ),
        (
            "interpreter: python3\n",
            "interpreter: python3\nimage: x\n",
            "1:1: expected exactly one of 'interpreter' and 'image', got both",
        ),
        (
            "interpreter: python3\n",
            "interpreter: python3\nenvironment:\n  OMP_NUM_THREADS: 8\n",
            "7:3: environment.OMP_NUM_THREADS: expected text, got 8; put it in quotes",
        ),
        (
            "interpreter: python3\n",
            "interpreter: python3\nenvironment: [A]\n",
            "6:1: environment: expected a mapping, got a list",
        ),
        (
            "interpreter: python3\n",
            "interpreter: python3\narguments:\n  - --max-model-len\n  - 4096\n",
            "8:5: arguments[1]: expected text, got 4096; put it in quotes",
        ),
        (
            "interpreter: python3\n",
            "interpreter: python3\narguments: --a b\n",
            "6:1: arguments: expected a list, got '--a b'",
        ),
        (
            "interpreter: python3\n",
            "interpreter: python3\nready_timeout_s: 0\n",
            "6:1: ready_timeout_s: expected a value greater than 0, got 0",
        ),
        (
            "interpreter: python3\n",
            "interpreter: python3\nready_timeout_s: '9e2'\n",
            "6:1: ready_timeout_s: expected a number, got '9e2'; remove the quotes",
        ),
        (
            "interpreter: python3\n",
            "interpreter: python3\nexpect: {version: 0.25, prefix_caching: off}\n",
            "6:10: expect.version: expected text, got 0.25; put it in quotes",
        ),
        (
            "interpreter: python3\n",
            "interpreter: python3\nexpect:\n  prefix_caching: off\n",
            "7:3: expect.prefix_caching: expected true or false, got 'off'; "
            "only true and false are truth values here",
        ),
        (
            "interpreter: python3\n",
            "interpreter: python3\nexpect: fp8\n",
            "6:1: expect: expected a mapping, got 'fp8'",
        ),
        (
            "description: an engine\n",
            "description: true\n",
            "1:1: description: expected text, got true; put it in quotes",
        ),
    ],
)
def test_a_wrong_engine_says_where_and_how_to_mend_it(
    root: Path, line: str, replacement: str, problem: str
) -> None:
    assert problems_in(edited(ENGINE_TEXT, line, replacement), ENGINE, root)[0] == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "description: x\nkind: embedded\nmodel: m\nprecision: fp8\n",
            "1:1: plugin_source: expected with precision fp8 and only with it, "
            "got none with precision fp8",
        ),
        (
            "description: x\nkind: embedded\nmodel: m\nprecision: fp32\nplugin_source: p\n",
            "5:1: plugin_source: expected with precision fp8 and only with it, "
            "got 'p' with precision fp32",
        ),
        (
            "description: x\nkind: endpoint\nmodel: m\nbase_url: localhost:8000\n",
            "4:1: base_url: expected text that matches ^https?://, got 'localhost:8000'",
        ),
    ],
)
def test_a_wrong_engine_of_another_kind_says_where(root: Path, text: str, problem: str) -> None:
    assert problems_in(text, ENGINE, root) == [problem]


@pytest.mark.parametrize(
    ("line", "replacement", "problem"),
    [
        (
            "num_requests: 6\n",
            "num_requests: 3\n",
            "5:1: num_requests: expected at least 2 x concurrency = 4 "
            "(the first wave is dropped), got 3",
        ),
        (
            "num_requests: 6\n",
            "num_requests: 5\n",
            "5:1: num_requests: expected a multiple of concurrency 2 for arrival burst, got 5",
        ),
        (
            "num_requests: 6\n",
            "num_requests: 6.0\n",
            "5:1: num_requests: expected a whole number, got 6.0; write 6",
        ),
        (
            "max_token_id: 9\n",
            "max_token_id: 1\n",
            "10:3: prompts.max_token_id: expected more than min_token_id 1, got 1",
        ),
        (
            "source: random_tokens\n",
            "source: random_token\n",
            "8:3: prompts.source: expected one of 'random_tokens', 'token_file', "
            "got 'random_token'; did you mean 'random_tokens'?",
        ),
        (
            "  source: random_tokens\n",
            "",
            "7:1: prompts.source: expected this key, got none; add it",
        ),
        (
            "max_token_id: 9\n",
            "max_token_id: 9\n  zzz: 1\n",
            "11:3: prompts.zzz: expected a known key, got 'zzz'; "
            "keys: source, min_token_id, max_token_id",
        ),
        (
            "seed: 0\n",
            "seed: -1\n",
            "11:1: seed: expected a value greater than or equal to 0, got -1",
        ),
        ("seed: 0\n", "seed: x\n", "11:1: seed: expected a whole number, got 'x'"),
    ],
)
def test_a_wrong_workload_says_where_and_how_to_mend_it(
    root: Path, line: str, replacement: str, problem: str
) -> None:
    assert problems_in(edited(WORKLOAD_TEXT, line, replacement), WORKLOAD, root) == [problem]


@pytest.mark.parametrize(
    ("line", "replacement", "problem"),
    [
        (
            "    max_ratio_to_baseline: 1.1\n",
            "    min_ratio_to_baseline: 0.9\n",
            "8:5: thresholds.ttft_mean_s.min_ratio_to_baseline: expected a max_* limit, as lower "
            "is better, got min_ratio_to_baseline, which an improvement would fail; "
            "use max_ratio_to_baseline",
        ),
        (
            "  ttft_mean_s:\n    max_ratio_to_baseline: 1.1\n",
            "  output_throughput_tokens_per_s:\n    max_value: 9\n",
            "8:5: thresholds.output_throughput_tokens_per_s.max_value: expected a min_* limit, as "
            "higher is better, got max_value, which an improvement would fail; use min_value",
        ),
        (
            "  ttft_mean_s:\n",
            "  ttft_mean:\n",
            "7:3: thresholds.ttft_mean: expected a metric, got 'ttft_mean'; "
            "did you mean 'ttft_mean_s'?",
        ),
        (
            "  ttft_mean_s:\n",
            "  qqq:\n",
            "7:3: thresholds.qqq: expected a metric, got 'qqq'; metrics: "
            "generation_rate_mean_tokens_per_s, generation_rate_p50_tokens_per_s, ttft_mean_s, "
            "ttft_p50_s, tpot_mean_s, itl_p50_s, itl_p99_s, e2e_latency_mean_s, "
            "output_throughput_tokens_per_s",
        ),
        (
            "    max_ratio_to_baseline: 1.1\n",
            "    {}\n",
            "7:3: thresholds.ttft_mean_s: expected at least one limit, got none; "
            "nothing would be judged",
        ),
        (
            "    max_ratio_to_baseline: 1.1\n",
            "    max_ratio: 1.1\n",
            "8:5: thresholds.ttft_mean_s.max_ratio: expected a known key, got 'max_ratio'; "
            "did you mean 'max_ratio_to_baseline'?",
        ),
        (
            "thresholds:\n  ttft_mean_s:\n    max_ratio_to_baseline: 1.1\n",
            "thresholds: {}\n",
            "6:1: thresholds: expected at least 1 entry, got 0",
        ),
        (
            "rounds: 4\n",
            "rounds: 4\nconfidence: 1.0\n",
            "6:1: confidence: expected a value less than 1, got 1.0",
        ),
        (
            "rounds: 4\n",
            "rounds: 4\nhardware: NVIDIA H200\n",
            "6:1: hardware: expected a mapping, got 'NVIDIA H200'",
        ),
    ],
)
def test_a_wrong_gate_says_where_and_how_to_mend_it(
    root: Path, line: str, replacement: str, problem: str
) -> None:
    assert problem in problems_in(edited(GATE_TEXT, line, replacement), GATE, root)


def test_several_mistakes_come_together_in_the_files_order(root: Path) -> None:
    text = edited(WORKLOAD_TEXT, "isl_tokens: 8\n", "isl_tokens: '8'\n")
    text = edited(text, "arrival: burst\n", "arival: burst\n")
    text = edited(text, "  min_token_id: 1\n", "  min_token_id: no\n")
    assert problems_in(text, WORKLOAD, root) == [
        "1:1: arrival: expected this key, got none; add it",
        "2:1: isl_tokens: expected a whole number, got '8'; remove the quotes",
        "6:1: arival: expected a known key, got 'arival'; did you mean 'arrival'?",
        "9:3: prompts.min_token_id: expected a whole number, got 'no'",
    ]


def test_every_wrong_threshold_is_named_even_beside_other_mistakes(root: Path) -> None:
    text = edited(GATE_TEXT, "rounds: 4\n", "rounds: four\n")
    text += "  ttft: {max_value: 1}\n  tpot_mean_s: {min_value: 1}\n"
    assert [problem.split(": expected")[0] for problem in problems_in(text, GATE, root)] == [
        "5:1: rounds",
        "9:3: thresholds.ttft",
        "10:17: thresholds.tpot_mean_s.min_value",
    ]


def test_a_long_value_is_cut_in_the_message(root: Path) -> None:
    text = edited(WORKLOAD_TEXT, "seed: 0\n", f"seed: {'x' * 100}\n")
    assert problems_in(text, WORKLOAD, root) == [
        f"11:1: seed: expected a whole number, got '{'x' * 59}..."
    ]


def test_a_duplicate_key_is_refused_before_the_rest_is_checked(root: Path) -> None:
    text = WORKLOAD_TEXT + "seed: 1\nunknown: 1\n"
    assert problems_in(text, WORKLOAD, root) == [
        "12:1: seed: expected each key once, got it again after line 11; remove one"
    ]


def test_a_file_outside_the_current_folder_is_shown_with_its_whole_path(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(root / "x.yaml", "")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert problems_of(lambda: read_recipe(path, GATE))[0].startswith(f"{path}:1:1: expected")


def test_a_missing_file_and_a_folder_are_one_problem_each(root: Path) -> None:
    assert problems_of(lambda: read_recipe(root / "none.yaml", GATE)) == [
        "r/none.yaml: expected a readable recipe file, got: No such file or directory"
    ]
    assert problems_of(lambda: read_recipe(root, GATE)) == [
        "r: expected a readable recipe file, got: Is a directory"
    ]
