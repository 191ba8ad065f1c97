"""docs/recipes.md: its tables come from the models and its examples are what really happens."""

import re
from pathlib import Path

import pytest

from pytest_qperf.adapters.recipe_file import GATE, WORKLOAD, RecipeLibrary, read_recipe
from pytest_qperf.adapters.recipe_schema import REFERENCE_BEGIN, with_reference
from pytest_qperf.adapters.resources import packaged_recipes_root
from pytest_qperf.core.errors import RecipeError

DOCUMENT = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
YAML_BLOCKS = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
OUTPUT_BLOCKS = re.findall(r"```text\n(.*?)```", DOCUMENT, re.DOTALL)
GATE_HEAD = """\
description: a gate
candidate: vllm-fp8
baseline: vllm-fp8
workload: case-2000-1000-32
rounds: 4
"""


def test_the_reference_is_up_to_date() -> None:
    assert with_reference(DOCUMENT) == DOCUMENT


def test_the_reference_replaces_what_stands_between_its_markers() -> None:
    stale = DOCUMENT.replace("| `isl_tokens` |", "| `islands` |")
    assert with_reference(stale) == DOCUMENT


def test_a_document_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the lines"):
        with_reference("# Recipes\n")
    with pytest.raises(ValueError, match="expected the lines"):
        with_reference(f"# Recipes\n{REFERENCE_BEGIN}\n")


def test_the_example_gate_is_valid(tmp_path: Path) -> None:
    engines = packaged_recipes_root() / "engines"
    mine = (engines / "vllm-fp8.yaml").read_text(encoding="utf-8")
    for folder in ("engines", "gates", "workloads"):
        (tmp_path / folder).mkdir()
    (tmp_path / "engines" / "my-engine.yaml").write_text(mine, encoding="utf-8")
    path = tmp_path / "gates" / "mine.yaml"
    path.write_text(YAML_BLOCKS[0], encoding="utf-8")
    gate = RecipeLibrary((packaged_recipes_root(),)).load_gate(str(path))
    assert (gate.candidate.name, gate.baseline.name) == ("my-engine", "vllm-fp8")


def test_the_examples_mistakes_give_the_output_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workload, gate = Path("workloads/mistakes.yaml"), Path("gates/mistakes.yaml")
    for path, text in ((workload, YAML_BLOCKS[1]), (gate, GATE_HEAD + YAML_BLOCKS[2])):
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as workload_error:
        read_recipe(workload, WORKLOAD)
    with pytest.raises(RecipeError) as gate_error:
        read_recipe(gate, GATE)
    assert [f"{workload_error.value}\n", f"{gate_error.value}\n"] == OUTPUT_BLOCKS
