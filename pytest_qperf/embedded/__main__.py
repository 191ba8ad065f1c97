"""Command line of the embedded engine; ends with status 1 and one line for an expected error."""

import argparse
import os
import signal
import sys
from pathlib import Path

from pytest_qperf.core.errors import QperfError

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def main(arguments: list[str]) -> int:
    """Serve until killed; return the exit status of a failure."""
    parsed = _parser().parse_args(arguments)
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(parsed.num_threads)
    # Nothing is worth saving: SIGTERM and SIGINT end the process at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # BLAS reads its thread count when NumPy is first imported, so not before this line.
    from pytest_qperf.embedded.start import EngineOptions, run_engine

    try:
        run_engine(EngineOptions(**vars(parsed)))
    except QperfError as error:
        sys.stderr.write(f"embedded engine: {error}\n")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pytest_qperf.embedded", description=__doc__)
    parser.add_argument("--model", required=True, help="checkpoint folder; also the served name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--precision", choices=("fp32", "fp8"), required=True)
    parser.add_argument("--library", type=Path, help="the FP8 GEMM plugin's host library")
    parser.add_argument("--num-threads", type=int, required=True)
    parser.add_argument("--max-batch-size", type=int, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
