"""Shared by every test: the folder `tests/` is importable, so that `fakes` can be used."""

import sys
from pathlib import Path

TESTS_DIR = Path(__file__).resolve().parent
if str(TESTS_DIR) not in sys.path:
    sys.path.insert(0, str(TESTS_DIR))

pytest_plugins = ["pytester", "fakes.fp8_library"]
