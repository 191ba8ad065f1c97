"""The argv of `vllm serve`, as a process and as a container."""

import subprocess
from pathlib import Path

import pytest

from pytest_qperf.adapters.vllm_command import (
    ContainerRun,
    container_cleanup_command,
    container_command,
    gpus_argument,
    interpreter_command,
    reserved_argument_problems,
)
from pytest_qperf.core.recipe import VllmEngine


def container(**changes: object) -> ContainerRun:
    values = {"name": "qperf-1", "gpus": None, "hub_cache": None, "passed_variables": ()}
    return ContainerRun(**(values | changes))  # type: ignore[arg-type]


def image_recipe(**changes: object) -> VllmEngine:
    values: dict[str, object] = {
        "description": "d",
        "kind": "vllm",
        "model": "org/name",
        "precision": "fp8",
        "image": "vllm/vllm-openai:v0.25.1",
        "arguments": ("--kv-cache-dtype", "fp8"),
    }
    return VllmEngine.model_validate(values | changes)


def test_the_interpreter_serves_the_model_under_a_fixed_name_on_the_given_port() -> None:
    command = interpreter_command("/venv/bin/python", "/m", port=8123, arguments=("--seed", "0"))
    assert command == [
        *("/venv/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "/m", "--seed", "0"),
        *("--served-model-name", "qperf", "--host", "127.0.0.1", "--port", "8123"),
    ]


def test_the_container_serves_a_hub_model_with_all_gpus() -> None:
    assert container_command(image_recipe(), "org/name", port=8123, container=container()) == [
        *("docker", "run", "--rm", "--name", "qperf-1", "--gpus", "all"),
        *("--network", "host", "--ipc", "host", "-v", "qperf-vllm-cache:/qperf-cache"),
        *("-e", "XDG_CACHE_HOME=/qperf-cache", "-e", "HF_HOME=/qperf-cache/huggingface"),
        *("-e", "FLASHINFER_WORKSPACE_BASE=/qperf-cache"),
        *("--entrypoint", "vllm", "vllm/vllm-openai:v0.25.1", "serve", "org/name"),
        *("--kv-cache-dtype", "fp8"),
        *("--served-model-name", "qperf", "--host", "127.0.0.1", "--port", "8123"),
    ]


def test_a_model_folder_is_mounted_read_only_at_its_own_path() -> None:
    command = container_command(image_recipe(), "/data/m", port=1, container=container())
    assert command[command.index("/data/m:/data/m:ro") - 1] == "-v"
    assert command[command.index("serve") + 1] == "/data/m"


def test_downloads_variables_and_selected_gpus_reach_the_container() -> None:
    run = container(gpus="2,3", hub_cache=Path("/hf"), passed_variables=("HF_TOKEN",))
    recipe = image_recipe(environment={"VLLM_USE_X": "1"})
    command = container_command(recipe, "org/name", port=1, container=run)
    text = " ".join(command)
    assert "-v /hf:/qperf-cache/huggingface" in text
    assert "-e VLLM_USE_X=1 -e HF_TOKEN --entrypoint" in text
    assert command[command.index("--gpus") + 1] == '"device=2,3"'


def test_a_recipe_with_an_interpreter_is_no_container() -> None:
    recipe = image_recipe(image=None, interpreter="python3")
    with pytest.raises(ValueError, match="expected a recipe with 'image', got 'interpreter'"):
        container_command(recipe, "org/name", port=1, container=container())


def test_every_gpu_is_given_where_none_is_selected() -> None:
    assert gpus_argument(None) == "all"
    assert gpus_argument("GPU-0a1b") == '"device=GPU-0a1b"'


@pytest.mark.parametrize("argument", ["--port", "--port=80", "--served_model_name", "--api-key=k"])
def test_an_argument_the_adapter_sets_itself_is_refused(argument: str) -> None:
    (problem,) = reserved_argument_problems(("--seed", "0", argument))
    flag = argument.partition("=")[0]
    assert problem.startswith(f"arguments: expected no {flag} (")
    assert problem.endswith(f", got {argument!r}; remove it")


def test_other_arguments_and_values_that_look_like_reserved_ones_are_accepted() -> None:
    arguments = ("--model-impl", "auto", "-O3", "--compilation-config", '{"x": "--port"}')
    assert reserved_argument_problems(arguments) == []


def docker_script(folder: Path, *, listed: str, exit_code: int = 0) -> dict[str, str]:
    """Write a `docker` that records its arguments and lists ``listed`` as running."""
    script = folder / "docker"
    script.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/calls\n'
        f'[ "$1" = ps ] || exit 1\nprintf "%s" "{listed}"\nexit {exit_code}\n'
    )
    script.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_cleaning_up_succeeds_when_the_container_is_gone_already(tmp_path: Path) -> None:
    environment = docker_script(tmp_path, listed="")
    subprocess.run(container_cleanup_command("qperf-1"), env=environment, check=True)
    assert (tmp_path / "calls").read_text().splitlines() == [
        "kill qperf-1",
        "ps --quiet --filter name=^qperf-1$",
    ]


@pytest.mark.parametrize(("listed", "exit_code"), [("0a1b2c", 0), ("", 1)])
def test_cleaning_up_fails_while_the_container_runs_or_docker_cannot_tell(
    tmp_path: Path, listed: str, exit_code: int
) -> None:
    environment = docker_script(tmp_path, listed=listed, exit_code=exit_code)
    done = subprocess.run(container_cleanup_command("qperf-1"), env=environment, check=False)
    assert done.returncode != 0
