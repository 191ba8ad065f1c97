"""Loading the model and serving it: everything between the command line and the event loop."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from pytest_qperf.checkpoint.reading import read_checkpoint
from pytest_qperf.checkpoint.tokenizer_file import read_tokenizer
from pytest_qperf.core.errors import EngineError
from pytest_qperf.embedded.api import ServedModel
from pytest_qperf.embedded.linear import BACKENDS, LinearFactory, Precision
from pytest_qperf.embedded.model import Qwen2Model
from pytest_qperf.embedded.scheduler import PREFILL_ROWS, Scheduler
from pytest_qperf.embedded.server import CompletionServer, ServerSettings


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The command line, checked for types only."""

    model: str
    host: str
    port: int
    precision: Precision
    library: Path | None
    num_threads: int
    max_batch_size: int


def run_engine(options: EngineOptions) -> None:
    """Load the checkpoint and serve it until the process is killed.

    Raises BuildError or RecipeError for a checkpoint that cannot be loaded, EngineError for
    options that contradict each other, a port that is taken, or a failure while generating.
    """
    _check(options)
    folder = Path(options.model)
    checkpoint = read_checkpoint(folder)
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    linears = LinearFactory(checkpoint, options.library, num_threads=options.num_threads)
    model = Qwen2Model(checkpoint, linears, max_segments=options.max_batch_size)
    model.require_row_independence(num_rows=(PREFILL_ROWS, options.max_batch_size))
    scheduler = Scheduler(model, max_batch_size=options.max_batch_size)
    served = ServedModel(options.model, checkpoint.config.shape, tokenizer)
    settings = ServerSettings(
        host=options.host,
        port=options.port,
        linear_backend=BACKENDS[options.precision],
        num_threads=options.num_threads,
    )
    asyncio.run(_serve(served, scheduler, settings))


async def _serve(served: ServedModel, scheduler: Scheduler, settings: ServerSettings) -> None:
    await CompletionServer(served, scheduler, settings=settings).serve()


def _check(options: EngineOptions) -> None:
    if (options.precision == "fp8") != (options.library is not None):
        raise EngineError(
            f"--library: expected the plugin's library with --precision fp8, and only with it; "
            f"got --precision {options.precision} and --library {options.library}"
        )
    if options.num_threads < 1 or options.max_batch_size < 1:
        raise EngineError(
            f"--num-threads and --max-batch-size: expected 1 or more, got {options.num_threads} "
            f"and {options.max_batch_size}"
        )
