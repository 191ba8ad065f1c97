"""What the documents show is what the code does."""

import re
from pathlib import Path

import pytest

from pytest_qperf.adapters.recipe_file import GATE, RecipeLibrary, read_recipe
from pytest_qperf.adapters.resources import packaged_recipes_root
from pytest_qperf.adapters.result_store import read_result
from pytest_qperf.options import OPTIONS
from pytest_qperf.report.terminal import render_result

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
OUTPUT = re.compile(r"<!-- output: (\S+) -->\n```text\n(.*?)\n```\n<!-- end of output -->", re.S)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def code_blocks(language: str) -> list[str]:
    readme = (REPOSITORY / "README.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", readme, re.S)


def test_the_readmes_output_is_the_stored_results_table() -> None:
    shown = OUTPUT.findall((REPOSITORY / "README.md").read_text())
    assert len(shown) == 1
    path, text = shown[0]
    assert text == render_result(read_result(REPOSITORY / path)).rstrip()


def test_the_readme_names_every_option() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert [option.flag for option in OPTIONS if option.flag not in readme] == []


def test_the_readmes_recipe_is_a_gate_that_names_shipped_recipes(tmp_path: Path) -> None:
    (block,) = code_blocks("yaml")
    (tmp_path / "my-gate.yaml").write_text(block)
    gate = read_recipe(tmp_path / "my-gate.yaml", GATE)
    library = RecipeLibrary((packaged_recipes_root(),))
    assert library.load_engine(gate.baseline).name == "vllm-fp8"
    assert gate.workload == "case-2000-1000-32"


def test_the_readmes_python_compiles() -> None:
    (block,) = code_blocks("python")
    compile(block, "README.md", "exec")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    targets = [t for t in LINK.findall(document.read_text()) if "://" not in t]
    assert [t for t in targets if not (document.parent / t).exists()] == []
