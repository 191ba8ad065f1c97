"""The embedded engine as a real process over HTTP, and its server against a scripted scheduler."""

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from fakes.tiny_checkpoint import TINY, write_tiny

from pytest_qperf import __version__
from pytest_qperf.adapters.plugin_build import build_host_library
from pytest_qperf.checkpoint.reading import read_checkpoint
from pytest_qperf.checkpoint.safetensors_file import SafetensorsFile, write_safetensors
from pytest_qperf.checkpoint.tokenizer_file import read_tokenizer
from pytest_qperf.core.errors import EngineError
from pytest_qperf.embedded.api import ServedModel
from pytest_qperf.embedded.scheduler import GenerationRequest, Scheduler, TokenEvent
from pytest_qperf.embedded.server import CompletionServer, ServerSettings

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 30.0
PROMPT = [7, 300, 42, 11, 200]


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine process."""

    process: subprocess.Popen[str]
    port: int
    model: str

    def call(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Return status and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data if method == "POST" else None)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def complete(self, **body: Any) -> dict[str, Any]:
        """Return the answer to a completion request that must succeed."""
        status, data = self.call("POST", "/v1/completions", body)
        assert status == 200, data
        answer: dict[str, Any] = json.loads(data)
        return answer

    def stream(self, **body: Any) -> list[str]:
        """Return the events' data of a streamed completion."""
        status, data = self.call("POST", "/v1/completions", {"stream": True, **body})
        assert status == 200, data
        events = data.decode().split("\n\n")
        assert events.pop() == ""
        assert all(event.startswith("data: ") for event in events)
        return [event.removeprefix("data: ") for event in events]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _command(model: Path, port: int, *arguments: str) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest_qperf.embedded", "--model", str(model)),
        *("--port", str(port), "--num-threads", "1", "--max-batch-size", "4"),
        *arguments,
    ]


def _start(model: Path, *arguments: str) -> Engine:
    port = _free_port()
    process = subprocess.Popen(
        _command(model, port, *arguments), cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("embedded engine: serving"), line + process.stderr.read()
    return Engine(process, port, str(model))


def _stop(engine: Engine) -> None:
    engine.process.kill()
    engine.process.communicate(timeout=TIMEOUT_S)


def _run_to_end(model: Path, *arguments: str, port: int | None = None) -> tuple[int, str]:
    command = _command(model, _free_port() if port is None else port, *arguments)
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, cache_dir = REPOSITORY / "plugins" / "fp8_gemm", tmp_path_factory.mktemp("cache")
    return build_host_library(source, cache_dir=cache_dir, note=lambda _line: None).path


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    running = _start(model, "--precision", "fp32")
    yield running
    _stop(running)


@pytest.fixture(scope="module")
def fp8_engine(model: Path, library: Path) -> Iterator[Engine]:
    running = _start(model, "--precision", "fp8", "--library", str(library))
    yield running
    _stop(running)


def test_the_model_is_served_under_its_folders_name(engine: Engine) -> None:
    status, data = engine.call("GET", "/v1/models")
    served = json.loads(data)["data"]
    assert status == 200
    assert [(m["id"], m["max_model_len"]) for m in served] == [(engine.model, 256)]


def test_health_is_200(engine: Engine) -> None:
    assert engine.call("GET", "/health")[0] == 200


def test_version_confirms_the_backend(engine: Engine, fp8_engine: Engine) -> None:
    answers = [json.loads(e.call("GET", "/version")[1]) for e in (engine, fp8_engine)]
    assert [answer["linear_backend"] for answer in answers] == ["numpy-fp32", "fp8-gemm"]
    assert answers[0] == {
        "version": __version__,
        "linear_backend": "numpy-fp32",
        "num_threads": 1,
    }


def test_a_whole_answer_has_text_usage_and_a_reason(engine: Engine) -> None:
    answer = engine.complete(prompt=PROMPT, max_tokens=6, ignore_eos=True, return_token_ids=True)
    choice = answer["choices"][0]
    assert len(choice["token_ids"]) == 6
    assert choice["finish_reason"] == "length"
    assert answer["object"] == "text_completion"
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 6,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_stream_is_one_chunk_a_token_then_usage_then_done(engine: Engine) -> None:
    events = engine.stream(
        prompt=PROMPT,
        max_tokens=4,
        ignore_eos=True,
        return_token_ids=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    *tokens, last, done = events
    chunks = [json.loads(event) for event in tokens]
    assert done == "[DONE]"
    assert [len(chunk["choices"][0]["token_ids"]) for chunk in chunks] == [1, 1, 1, 1]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None, None, None, "length"]
    assert json.loads(last)["choices"] == []
    assert json.loads(last)["usage"]["total_tokens"] == 9


def test_a_stream_without_options_has_neither_usage_nor_token_ids(engine: Engine) -> None:
    *tokens, done = engine.stream(prompt=PROMPT, max_tokens=2, ignore_eos=True)
    chunks = [json.loads(event) for event in tokens]
    assert done == "[DONE]"
    assert [("usage" in c, "token_ids" in c["choices"][0]) for c in chunks] == [(False, False)] * 2


def test_streamed_and_whole_answers_are_the_same_text(engine: Engine) -> None:
    body = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True}
    chunks = [json.loads(event) for event in engine.stream(**body)[:-1]]
    streamed = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert streamed == engine.complete(**body)["choices"][0]["text"]


def test_text_and_its_bytes_as_ids_are_the_same_prompt(engine: Engine) -> None:
    options = {"max_tokens": 5, "return_token_ids": True, "temperature": 0}
    answers = [
        engine.complete(prompt=prompt, **options)["choices"][0]["token_ids"]
        for prompt in ("hi", [104, 105], [[104, 105]])
    ]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("backend", ["engine", "fp8_engine"])
def test_requests_together_get_the_tokens_each_gets_alone(
    request: pytest.FixtureRequest, backend: str
) -> None:
    running: Engine = request.getfixturevalue(backend)
    rng = np.random.default_rng(0)
    bodies = [
        {
            "prompt": [int(id_) for id_ in rng.integers(0, TINY.vocab_size, 10 + 13 * number)],
            "max_tokens": 15,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        for number in range(7)
    ]
    url = f"http://127.0.0.1:{running.port}/v1/completions"

    async def together() -> list[list[int]]:
        async def one(session: aiohttp.ClientSession, body: object) -> list[int]:
            async with session.post(url, json=body) as response:
                answer = await response.json()
                ids: list[int] = answer["choices"][0]["token_ids"]
                return ids

        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(one(session, body) for body in bodies))

    alone = [running.complete(**body)["choices"][0]["token_ids"] for body in bodies]
    assert asyncio.run(together()) == alone


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "Invalid JSON"),
        ({"prompt": [1] * 250}, 400, "expected at most 256 tokens with max_tokens, got 250"),
        ({"prompt": [512]}, 400, "expected token ids from 0 to 511, got 512"),
        ({"prompt": [1], "temperature": 1.0}, 400, "expected 0 (this engine is greedy), got 1.0"),
        ({"prompt": [1], "model": "other"}, 404, "got 'other'"),
    ],
)
def test_a_wrong_request_gets_an_openai_error(
    engine: Engine, body: object, status: int, message: str
) -> None:
    got, data = engine.call("POST", "/v1/completions", body)
    error = json.loads(data)["error"]
    assert (got, error["code"]) == (status, status)
    assert message in error["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_at_once(model: Path, number: signal.Signals) -> None:
    engine = _start(model, "--precision", "fp32")
    engine.process.send_signal(number)
    engine.process.communicate(timeout=5.0)
    assert engine.process.returncode == -number


def test_a_failing_engine_answers_its_requests_and_ends_with_status_1(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "broken")
    shard = folder / "model-00003-of-00003.safetensors"
    file = SafetensorsFile(shard)
    contents = {name: file.tensor(name).tobytes() for name in file.headers}
    nan = np.full(TINY.hidden_size, 0x7FC0, dtype="<u2")
    contents["model.norm.weight"] = nan.tobytes()
    write_safetensors(shard, list(file.headers.values()), lambda header: [contents[header.name]])
    engine = _start(folder, "--precision", "fp32")
    events = engine.stream(prompt=PROMPT)
    _, log = engine.process.communicate(timeout=TIMEOUT_S)
    assert "expected numbers, got NaN" in json.loads(events[-1])["error"]["message"]
    assert engine.process.returncode == 1
    assert "engine: failed while generating: FloatingPointError" in log
    assert "Traceback" in log


def test_a_taken_port_is_named(engine: Engine, model: Path) -> None:
    status, log = _run_to_end(model, "--precision", "fp32", port=engine.port)
    assert status == 1
    assert f"127.0.0.1:{engine.port}: expected a free port" in log
    assert "Traceback" not in log


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    status, log = _run_to_end(tmp_path / "none", "--precision", "fp32")
    assert (status, "none: expected a model folder, got no folder" in log) == (1, True)


def test_a_library_that_does_not_load_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "x.so").write_text("no library")
    status, log = _run_to_end(model, "--precision", "fp8", "--library", str(tmp_path / "x.so"))
    assert (status, "x.so: expected an FP8 GEMM library" in log) == (1, True)


@pytest.mark.parametrize(
    "arguments", [("--precision", "fp8"), ("--precision", "fp32", "--library", "x.so")]
)
def test_the_library_belongs_to_precision_fp8(model: Path, arguments: tuple[str, ...]) -> None:
    status, log = _run_to_end(model, *arguments)
    assert status == 1
    assert "--library: expected the plugin's library with --precision fp8, and only with it" in log


def test_no_threads_are_refused(model: Path) -> None:
    status, log = _run_to_end(model, "--precision", "fp32", "--num-threads", "0")
    assert (status, "expected 1 or more, got 0 and 4" in log) == (1, True)


def test_the_command_line_is_read_before_numpy_is_loaded() -> None:
    code = "import sys, pytest_qperf.embedded.__main__ as m; print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


class EndlessScheduler(Scheduler):
    """Gives the last request one token after another until it is cancelled."""

    def __init__(self, event_loop: asyncio.AbstractEventLoop) -> None:
        self._active_id: str | None = None
        self._event_loop = event_loop
        self.cancelled: asyncio.Future[str] = event_loop.create_future()

    @property
    def has_work(self) -> bool:
        return self._active_id is not None

    def add(self, request: GenerationRequest) -> None:
        self._active_id = request.request_id

    def cancel(self, request_id: str) -> None:
        self._active_id = None
        self._event_loop.call_soon_threadsafe(self.cancelled.set_result, request_id)

    def prefill(self) -> list[TokenEvent]:
        return []

    def decode(self) -> list[TokenEvent]:
        return [] if self._active_id is None else [TokenEvent(self._active_id, 1, None)]


def test_a_client_that_goes_away_cancels_its_request(model: Path) -> None:
    async def scenario() -> str:
        scheduler = EndlessScheduler(asyncio.get_running_loop())
        settings = ServerSettings("127.0.0.1", _free_port(), "numpy-fp32", 1)
        shape = read_checkpoint(model).config.shape
        served = ServedModel("tiny", shape, read_tokenizer(model / "tokenizer.json"))
        server = asyncio.create_task(CompletionServer(served, scheduler, settings=settings).serve())
        url = f"http://127.0.0.1:{settings.port}/v1/completions"
        body = {"prompt": [1], "stream": True}
        async with aiohttp.ClientSession() as session:
            await _until_listening(settings.port)
            async with session.post(url, json=body) as response:
                await response.content.readany()
                response.close()
        cancelled = await asyncio.wait_for(scheduler.cancelled, TIMEOUT_S)
        server.cancel()
        with pytest.raises(asyncio.CancelledError):
            await server
        return cancelled

    assert asyncio.run(scenario()) == "cmpl-0"


def test_a_server_on_a_taken_port_raises_an_engine_error(engine: Engine) -> None:
    async def scenario() -> None:
        scheduler = EndlessScheduler(asyncio.get_running_loop())
        served = ServedModel("tiny", TINY, read_tokenizer(Path(engine.model) / "tokenizer.json"))
        settings = ServerSettings("127.0.0.1", engine.port, "numpy-fp32", 1)
        await CompletionServer(served, scheduler, settings=settings).serve()

    with pytest.raises(EngineError, match="expected a free port"):
        asyncio.run(scenario())


async def _until_listening(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0)
            continue
        writer.close()
        await writer.wait_closed()
        return
