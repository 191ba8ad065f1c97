"""The command lines that start `vllm serve`, from an interpreter or from a container image."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_qperf.core.recipe import VllmEngine

HOST = "127.0.0.1"
SERVED_MODEL_NAME = "qperf"
# Where the image's caches live between rounds: without it every start compiles anew (170 s rather
# than 85 s, Qwen2.5-7B, one H200, vLLM 0.25.1).
CACHE_VOLUME = "qperf-vllm-cache"
CACHE_FOLDER = "/qperf-cache"
HUB_FOLDER = f"{CACHE_FOLDER}/huggingface"
# Named here, so that the caches do not depend on the home folder of the image's user.
CACHE_VARIABLES = {
    "XDG_CACHE_HOME": CACHE_FOLDER,
    "HF_HOME": HUB_FOLDER,
    "FLASHINFER_WORKSPACE_BASE": CACHE_FOLDER,
}
PASSED_TO_CONTAINER = ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_ENDPOINT")

_RESERVED = {
    "--api-key": "requests carry no key",
    "--grpc": "requests go over HTTP",
    "--headless": "requests go over HTTP",
    "--host": f"the server listens on {HOST} only",
    "--model": "the recipe's 'model' names it",
    "--port": "a free port is chosen at every start",
    "--root-path": "the server's paths are fixed",
    "--served-model-name": f"it is always {SERVED_MODEL_NAME!r}",
    "--ssl-certfile": "requests go over plain HTTP",
    "--ssl-keyfile": "requests go over plain HTTP",
    "--uds": "requests go over TCP",
}


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """What a container start needs besides the recipe.

    ``gpus``: a value of CUDA_VISIBLE_DEVICES, or None for all. ``hub_cache``: the host's folder of
    downloaded models, or None. ``passed_variables``: names of variables handed on by name.
    """

    name: str
    gpus: str | None
    hub_cache: Path | None
    passed_variables: tuple[str, ...]


def reserved_argument_problems(arguments: tuple[str, ...]) -> list[str]:
    """Return one line for each argument that a recipe may not set."""
    problems = []
    for argument in arguments:
        # vLLM reads --served_model_name as --served-model-name.
        flag = argument.partition("=")[0]
        flag = "--" + flag[2:].replace("_", "-") if flag.startswith("--") else flag
        if flag in _RESERVED:
            problems.append(
                f"arguments: expected no {argument.partition('=')[0]} ({_RESERVED[flag]}), "
                f"got {argument!r}; remove it"
            )
    return problems


def interpreter_command(
    interpreter: str, model: str, *, port: int, arguments: tuple[str, ...]
) -> list[str]:
    """Return the argv that serves ``model`` with the vllm of ``interpreter``'s environment."""
    return [
        interpreter,
        "-m",
        "vllm.entrypoints.cli.main",
        *_serve_arguments(model, port=port, arguments=arguments),
    ]


def container_command(
    recipe: VllmEngine, model: str, *, port: int, container: ContainerRun
) -> list[str]:
    """Return the argv that serves ``model`` with the recipe's image, in the foreground.

    A model folder is mounted read-only at its own path.
    """
    image = recipe.image
    if image is None:
        raise ValueError("container_command: expected a recipe with 'image', got 'interpreter'")
    mounts = ["-v", f"{CACHE_VOLUME}:{CACHE_FOLDER}"]
    if container.hub_cache is not None:
        mounts += ["-v", f"{container.hub_cache}:{HUB_FOLDER}"]
    if Path(model).is_absolute():
        mounts += ["-v", f"{model}:{model}:ro"]
    return [
        *("docker", "run", "--rm", "--name", container.name),
        *("--gpus", gpus_argument(container.gpus)),
        *("--network", "host", "--ipc", "host"),
        *mounts,
        # A recipe may set a cache variable otherwise.
        *_variables(CACHE_VARIABLES | recipe.environment, container.passed_variables),
        *("--entrypoint", "vllm", image),
        *_serve_arguments(model, port=port, arguments=recipe.arguments),
    ]


def container_cleanup_command(container_name: str) -> list[str]:
    """Return the argv that kills the container and succeeds only if it no longer runs."""
    script = (
        'docker kill "$0" >/dev/null 2>&1; '
        'left=$(docker ps --quiet --filter "name=^$0\\$") && test -z "$left"'
    )
    return ["sh", "-c", script, container_name]


def gpus_argument(visible_devices: str | None) -> str:
    """Return docker's --gpus value; docker reads it as CSV, so a device list needs quotes in it."""
    return "all" if visible_devices is None else f'"device={visible_devices}"'


def _serve_arguments(model: str, *, port: int, arguments: tuple[str, ...]) -> list[str]:
    # Ours come last: argparse takes the last value of an option.
    fixed = ["--served-model-name", SERVED_MODEL_NAME, "--host", HOST, "--port", str(port)]
    return ["serve", model, *arguments, *fixed]


def _variables(environment: Mapping[str, str], passed: tuple[str, ...]) -> list[str]:
    pairs = [f"{name}={value}" for name, value in environment.items()]
    return [part for value in (*pairs, *passed) for part in ("-e", value)]
