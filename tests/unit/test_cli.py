"""The `qperf` command: every subcommand, every error, every exit status."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from fakes.recipe_texts import GATE_TEXT, edited, write, write_root
from fakes.small_gates import run_record, stored_run
from fakes.stored_results import gate_result

from pytest_qperf import __version__
from pytest_qperf.adapters.recipe_schema import recipe_schemas
from pytest_qperf.adapters.resources import packaged_recipes_root
from pytest_qperf.adapters.result_store import read_result
from pytest_qperf.checkpoint.shapes import SHAPES
from pytest_qperf.cli import main
from pytest_qperf.report.terminal import render_result

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = sorted((REPOSITORY / "docs" / "results").glob("*.json"))
Capture = pytest.CaptureFixture[str]


def refused_by_argparse(arguments: list[str], capsys: Capture) -> str:
    """Return what is said when the command line itself is wrong, which is exit status 2."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, so that only packaged and named recipes are in reach."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_version_is_the_packages(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"pytest-qperf {__version__}\n"


def test_a_command_is_required(capsys: Capture) -> None:
    assert "required: COMMAND" in refused_by_argparse([], capsys)


def test_an_unknown_command_is_refused(capsys: Capture) -> None:
    assert "invalid choice: 'repot'" in refused_by_argparse(["repot"], capsys)


def test_the_module_runs_as_the_command() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "pytest_qperf", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    assert finished.stdout == f"pytest-qperf {__version__}\n"


def test_validate_without_names_checks_every_packaged_gate(
    elsewhere: Path, capsys: Capture
) -> None:
    assert main(["validate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    gates = sorted(path.stem for path in (packaged_recipes_root() / "gates").glob("*.yaml"))
    assert [line.partition(": ok (")[0] for line in lines] == gates


def test_validate_finds_the_projects_own_recipes_and_named_folders(
    elsewhere: Path, capsys: Capture
) -> None:
    write_root(elsewhere / "engine_recipes")
    write(write_root(elsewhere / "more") / "gates" / "extra.yaml", GATE_TEXT)
    assert main(["validate", "good", "extra", "--recipes", "more"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ok (")[0] for line in lines] == ["good", "extra"]


def test_validate_shows_every_problem_of_every_gate_and_the_good_gates_too(
    elsewhere: Path, capsys: Capture
) -> None:
    root = write_root(elsewhere / "engine_recipes")
    write(root / "gates" / "first.yaml", edited(GATE_TEXT, "rounds: 4\n", "rounds: 0\n"))
    write(root / "gates" / "second.yaml", edited(GATE_TEXT, "baseline: slow", "baseline: slwo"))
    assert main(["validate", "first", "good", "second"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("good: ok (")
    first, second = captured.err.splitlines()
    assert first.startswith("qperf: engine_recipes/gates/first.yaml:5:")
    assert "rounds" in first
    assert second.startswith("engine_recipes/gates/second.yaml:3:")
    assert "did you mean 'slow'?" in second


def test_validate_refuses_a_name_that_no_gate_has(elsewhere: Path, capsys: Capture) -> None:
    assert main(["validate", "embeded"]) == 1
    assert "did you mean 'embedded'?" in capsys.readouterr().err


def test_validate_refuses_a_folder_that_is_not_there(elsewhere: Path, capsys: Capture) -> None:
    assert main(["validate", "embedded", "--recipes", "gone"]) == 1
    assert capsys.readouterr().err == (
        "qperf: --recipes: expected a folder, got gone; check the path\n"
    )


def test_schema_writes_every_schema_and_then_finds_them_up_to_date(
    tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "schema"
    assert main(["schema", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder / name) for name in recipe_schemas()]
    assert main(["schema", str(folder), "--check"]) == 0
    assert capsys.readouterr().err == ""


def test_schema_check_names_what_is_stale_or_missing_and_writes_nothing(
    tmp_path: Path, capsys: Capture
) -> None:
    main(["schema", str(tmp_path)])
    (tmp_path / "gate.schema.json").unlink()
    (tmp_path / "engine.schema.json").write_bytes(b"\xff")
    capsys.readouterr()
    assert main(["schema", str(tmp_path), "--check"]) == 1
    advice = (
        f"expected the schema of this version, got another or none; run `qperf schema {tmp_path}`"
    )
    assert capsys.readouterr().err.splitlines() == [
        f"qperf: {tmp_path}/engine.schema.json: {advice}",
        f"qperf: {tmp_path}/gate.schema.json: {advice}",
    ]
    assert not (tmp_path / "gate.schema.json").exists()


def test_schema_into_a_file_is_one_clear_error(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert main(["schema", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"qperf: {path}: expected to read or write it, got File exists; "
        "check the path, its permissions and the disk\n"
    )


def test_shapes_lists_every_named_shape(capsys: Capture) -> None:
    assert main(["checkpoint", "shapes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(SHAPES)
    assert "qwen2.5-7b: hidden 3584, intermediate 18944, 28 layers, vocabulary 152064" in lines


def test_synth_writes_a_checkpoint_and_prints_its_folder(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "model"
    arguments = ["checkpoint", "synth", "--shape", "qwen2-tiny", "--quant", "fp8-static"]
    assert main([*arguments, "--seed", "3", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    config = json.loads((out / "config.json").read_text())
    assert config["hidden_size"] == SHAPES["qwen2-tiny"].hidden_size


def test_synth_refuses_a_folder_with_other_contents(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path / "thesis.txt", "mine")
    arguments = ["checkpoint", "synth", "--shape", "qwen2-tiny", "--quant", "bf16"]
    assert main([*arguments, str(tmp_path)]) == 1
    assert "expected nothing or a checkpoint of this project" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_synth_refuses_an_unknown_shape(tmp_path: Path, capsys: Capture) -> None:
    arguments = ["checkpoint", "synth", "--shape", "qwen9", "--quant", "bf16"]
    assert main([*arguments, str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("qperf: shape: expected one of ")
    assert error.endswith("or a config.json, got 'qwen9'\n")


@pytest.mark.parametrize("seed", ["-1", "1.5", "x", ""])
def test_synth_refuses_a_seed_that_is_no_whole_number(seed: str, capsys: Capture) -> None:
    arguments = ["checkpoint", "synth", "--shape", "qwen2-tiny", "--quant", "bf16"]
    error = refused_by_argparse([*arguments, f"--seed={seed}", "out"], capsys)
    assert f"expected a whole number of 0 or more, got {seed!r}" in error


def test_synth_refuses_an_unknown_quantization(capsys: Capture) -> None:
    arguments = ["checkpoint", "synth", "--shape", "qwen2-tiny", "--quant", "int4", "out"]
    assert "invalid choice: 'int4'" in refused_by_argparse(arguments, capsys)


def test_report_shows_a_stored_result(tmp_path: Path, capsys: Capture) -> None:
    result = gate_result(
        [stored_run(1, arm, run_record()) for arm in ("baseline", "candidate")], num_rounds=1
    )
    path = write(tmp_path / "result.json", result.model_dump_json())
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out == render_result(result)


def test_report_of_a_missing_file_is_one_clear_error(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "gone.json"
    assert main(["report", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"qperf: {path}: expected a stored result, got No such file or directory; check the path\n"
    )


def test_report_of_a_folder_is_one_clear_error(tmp_path: Path, capsys: Capture) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "expected a stored result, got Is a directory" in capsys.readouterr().err


def test_report_of_something_else_is_one_clear_error(tmp_path: Path, capsys: Capture) -> None:
    path = write(tmp_path / "other.json", '{"schema_version": 2}')
    assert main(["report", str(path)]) == 1
    assert "expected a GateResult of this version" in capsys.readouterr().err


def test_the_committed_h200_result_can_be_shown(capsys: Capture) -> None:
    path = REPOSITORY / "docs" / "results" / "vllm-kv-h200.json"
    assert main(["report", str(path)]) == 0
    first_line = capsys.readouterr().out.splitlines()[0]
    assert first_line == "vllm-kv-h200: PASS"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_committed_result_loads_and_conforms_to_the_shipped_schema(path: Path) -> None:
    schema_path = REPOSITORY / "engine_recipes" / "schema" / "result.schema.json"
    schema = json.loads(schema_path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(path.read_text(encoding="utf-8")))
    assert read_result(path).gate == path.stem


def test_there_are_committed_results() -> None:
    assert "vllm-kv-h200.json" in [path.name for path in RESULTS]
