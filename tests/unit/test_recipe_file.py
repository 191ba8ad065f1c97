"""Recipes by name: a gate with its engines and workload, and all their problems at once."""

import hashlib
from pathlib import Path

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

from pytest_qperf.adapters.recipe_file import ENGINE, WORKLOAD, RecipeLibrary, read_recipe
from pytest_qperf.core.recipe import (
    EmbeddedEngine,
    SyntheticModel,
    TokenFilePrompts,
    WorkloadRecipe,
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with one good gate, in the current folder's `r`."""
    monkeypatch.chdir(tmp_path)
    return write_root(tmp_path / "r")


def test_a_gate_is_loaded_with_its_engines_and_workload(root: Path) -> None:
    gate = RecipeLibrary((root,)).load_gate("good")
    assert (gate.name, gate.path) == ("good", root / "gates" / "good.yaml")
    assert (gate.candidate.name, gate.baseline.name) == ("fast", "slow")
    assert (gate.workload_name, gate.workload.isl_tokens) == ("small", 8)
    assert gate.candidate.recipes_root == root
    assert gate.candidate.digest == gate.candidate.recipe.digest()
    parts = (gate.recipe, gate.candidate.recipe, gate.baseline.recipe, gate.workload)
    digests = "\n".join(part.digest() for part in parts)
    assert gate.digest == hashlib.sha256(digests.encode()).hexdigest()


@pytest.mark.parametrize(
    ("name", "line", "replacement"),
    [
        ("gates/good.yaml", "rounds: 4", "rounds: 5"),
        ("engines/fast.yaml", "precision: fp8", "precision: bf16"),
        ("engines/slow.yaml", "--slow", "--slower"),
        ("workloads/small.yaml", "seed: 0", "seed: 1"),
    ],
)
def test_a_gates_digest_changes_with_each_of_its_recipes(
    root: Path, name: str, line: str, replacement: str
) -> None:
    library = RecipeLibrary((root,))
    before = library.load_gate("good").digest
    path = root / name
    write(path, edited(path.read_text(), line, replacement))
    assert library.load_gate("good").digest != before


def test_a_comment_does_not_change_the_digest(root: Path) -> None:
    library = RecipeLibrary((root,))
    before = library.load_gate("good").digest
    write(root / "gates" / "good.yaml", "# note\n" + GATE_TEXT)
    assert library.load_gate("good").digest == before


def test_the_gates_model_replaces_both_engines_models(root: Path) -> None:
    model = "model: {synthetic: tiny, quantization: bf16, seed: 3}\n"
    write(root / "engines" / "fast.yaml", ENGINE_TEXT.replace("org/model", "org/other"))
    write(root / "gates" / "good.yaml", GATE_TEXT + model)
    gate = RecipeLibrary((root,)).load_gate("good")
    expected = SyntheticModel(synthetic="tiny", quantization="bf16", seed=3)
    assert gate.candidate.recipe.model == gate.baseline.recipe.model == expected
    assert gate.candidate.digest == gate.candidate.recipe.digest()


def test_arms_with_different_checkpoints_are_refused(root: Path) -> None:
    write(root / "engines" / "fast.yaml", ENGINE_TEXT.replace("org/model", "org/other"))
    assert problems_of(lambda: RecipeLibrary((root,)).load_gate("good")) == [
        "r/gates/good.yaml:2:1: candidate: expected the baseline's model (org/model), "
        "got org/other; both arms must load the same checkpoint: add `model` to the gate, "
        "or change one engine"
    ]


def test_an_endpoint_may_call_the_checkpoint_otherwise(root: Path) -> None:
    endpoint = "description: x\nkind: endpoint\nmodel: served\nbase_url: http://h:1\n"
    write(root / "engines" / "fast.yaml", endpoint)
    assert RecipeLibrary((root,)).load_gate("good").candidate.recipe.model == "served"


def test_all_problems_of_a_gates_four_files_come_at_once(root: Path) -> None:
    write(root / "gates" / "bad.yaml", edited(GATE_TEXT, "rounds: 4\n", "round: 4\nrounds: 4\n"))
    write(root / "engines" / "fast.yaml", ENGINE_TEXT.replace("fp8", "fp9"))
    write(root / "engines" / "slow.yaml", "a: 1\na: 2\n")
    write(root / "workloads" / "small.yaml", WORKLOAD_TEXT.replace("seed: 0", "seed: -1"))
    assert problems_of(lambda: RecipeLibrary((root,)).load_gate("bad")) == [
        "r/gates/bad.yaml:5:1: round: expected a known key, got 'round'; did you mean 'rounds'?",
        "r/engines/fast.yaml:3:1: precision: expected 'bf16' or 'fp8', got 'fp9'; "
        "did you mean 'fp8'?",
        "r/engines/slow.yaml:2:1: a: expected each key once, got it again after line 1; remove one",
        "r/workloads/small.yaml:11:1: seed: expected a value greater than or equal to 0, got -1",
    ]


def test_an_engine_in_both_arms_reports_its_problems_once(root: Path) -> None:
    write(root / "gates" / "good.yaml", edited(GATE_TEXT, "baseline: slow", "baseline: fast"))
    write(root / "engines" / "fast.yaml", ENGINE_TEXT.replace("fp8", "fp9"))
    assert len(problems_of(lambda: RecipeLibrary((root,)).load_gate("good"))) == 1


def test_names_that_no_recipe_has_are_reported_with_the_nearest_and_all_known(root: Path) -> None:
    text = edited(GATE_TEXT, "candidate: fast", "candidate: fats")
    write(root / "gates" / "good.yaml", edited(text, "workload: small", "workload: ../w"))
    assert problems_of(lambda: RecipeLibrary((root,)).load_gate("good")) == [
        "r/gates/good.yaml:2:1: candidate: expected the name of an engine recipe, got 'fats'; "
        "did you mean 'fast'? engines: fast, slow (from *.yaml in r/engines)",
        "r/gates/good.yaml:4:1: workload: expected the name of a workload recipe, got '../w'; "
        "workloads: small (from *.yaml in r/workloads)",
    ]


def test_an_unknown_gate_or_engine_lists_those_that_exist(root: Path) -> None:
    library = RecipeLibrary((root,))
    assert problems_of(lambda: library.load_gate("goood")) == [
        "gate 'goood': expected the name of a gate recipe, got 'goood'; "
        "did you mean 'good'? gates: good (from *.yaml in r/gates)"
    ]
    assert problems_of(lambda: library.load_engine("q")) == [
        "engine 'q': expected the name of an engine recipe, got 'q'; "
        "engines: fast, slow (from *.yaml in r/engines)"
    ]
    assert problems_of(lambda: RecipeLibrary(()).load_gate("good")) == [
        "gate 'good': expected the name of a gate recipe, got 'good'; "
        "gates: none (from *.yaml in no folder)"
    ]


def test_an_engine_is_loaded_by_name(root: Path) -> None:
    engine = RecipeLibrary((root,)).load_engine("fast")
    assert (engine.name, engine.recipes_root) == ("fast", root)
    assert engine.digest == engine.recipe.digest()


def test_gate_names_come_sorted_and_the_first_root_wins(root: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    write(mine / "gates" / "good.yaml", GATE_TEXT)
    write(mine / "gates" / "a.yaml", GATE_TEXT)
    assert RecipeLibrary((mine, root)).gate_names() == {
        "a": mine / "gates" / "a.yaml",
        "good": mine / "gates" / "good.yaml",
    }


def test_a_gate_by_path_prefers_the_engines_beside_it(root: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    write(mine / "gates" / "own.yaml", GATE_TEXT)
    write(mine / "engines" / "fast.yaml", ENGINE_TEXT + "arguments: [--mine]\n")
    (mine / "workloads").mkdir()
    gate = RecipeLibrary((root,)).load_gate("mine/gates/own.yaml")
    assert gate.candidate.recipes_root == mine
    assert gate.baseline.recipes_root == root
    assert gate.name == "own"


def test_a_gate_by_path_without_a_root_of_its_own_borrows_everything(
    root: Path, tmp_path: Path
) -> None:
    write(tmp_path / "loose.yaml", GATE_TEXT)
    assert RecipeLibrary((root,)).load_gate("loose.yaml").candidate.recipes_root == root


def with_token_file(root: Path) -> Path:
    prompts = (
        "prompts:\n  source: random_tokens\n  min_token_id: 1\n  max_token_id: 9\n",
        "prompts: {source: token_file, path: tokens.jsonl}\n",
    )
    return write(root / "workloads" / "small.yaml", edited(WORKLOAD_TEXT, *prompts))


def test_a_token_file_is_found_beside_its_workload(root: Path) -> None:
    tokens = write(with_token_file(root).parent / "tokens.jsonl", "[1]\n")
    prompts = RecipeLibrary((root,)).load_gate("good").workload.prompts
    assert prompts == TokenFilePrompts(source="token_file", path=str(tokens))


def test_a_missing_token_file_is_reported_at_its_path(root: Path) -> None:
    with_token_file(root)
    assert problems_of(lambda: RecipeLibrary((root,)).load_gate("good")) == [
        "r/workloads/small.yaml:7:31: prompts.path: expected a file, got none at "
        "r/workloads/tokens.jsonl; paths start at the recipe"
    ]


def test_the_digest_covers_the_tokens_and_not_their_place(root: Path, tmp_path: Path) -> None:
    def digest(folder: Path, tokens: str) -> str:
        write(with_token_file(write_root(folder)).parent / "tokens.jsonl", tokens)
        return RecipeLibrary((folder,)).load_gate("good").digest

    here = digest(root, "[1]\n")
    assert digest(tmp_path / "copy", "[1]\n") == here
    assert digest(tmp_path / "other", "[2]\n") != here


def test_the_models_accept_what_the_reader_returns(root: Path) -> None:
    workload = read_recipe(root / "workloads" / "small.yaml", WORKLOAD)
    assert WorkloadRecipe.model_validate_json(workload.model_dump_json()) == workload
    text = "description: x\nkind: embedded\nmodel: m\nprecision: fp32\n"
    assert isinstance(read_recipe(write(root / "x.yaml", text), ENGINE), EmbeddedEngine)
