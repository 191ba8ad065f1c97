"""Run the `qperf` command as `python -m pytest_qperf`."""

import sys

from pytest_qperf.cli import main

sys.exit(main())
