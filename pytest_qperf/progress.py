"""Live progress: one updating line on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest

LOG_INTERVAL_S = 15.0
MAX_COLUMNS = 160
CLEAR_LINE = "\r\x1b[K"


@dataclass(slots=True)
class LineProgress:
    """Hands progress to a function that writes text.

    On a terminal an update overwrites the one before. In a log, updates are lines, one at most
    every ``LOG_INTERVAL_S`` seconds, so that a long build shows life without filling the log.
    """

    write: Callable[[str], None]
    is_terminal: bool
    columns: int = MAX_COLUMNS
    clock: Callable[[], float] = time.monotonic
    _line_is_open: bool = field(default=False, init=False)
    _last_line_s: float | None = field(default=None, init=False)

    def update(self, text: str) -> None:
        """Show what is happening now; may overwrite the previous update."""
        if self.is_terminal:
            shown = text if len(text) < self.columns else text[: self.columns - 2] + "…"
            self.write(f"{CLEAR_LINE}{shown}")
            self._line_is_open = True
            return
        now_s = self.clock()
        if self._last_line_s is None or now_s - self._last_line_s >= LOG_INTERVAL_S:
            self._last_line_s = now_s
            self.write(f"{text}\n")

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._last_line_s = self.clock()
        self.write((CLEAR_LINE if self._line_is_open else "") + f"{text}\n")
        self._line_is_open = False

    def clear(self) -> None:
        """Remove the updating line, if there is one."""
        if self._line_is_open:
            self.write(CLEAR_LINE)
            self._line_is_open = False


def pytest_progress(config: pytest.Config) -> LineProgress:
    """Return progress that writes where pytest's terminal reporter writes, past its capturing.

    Without a terminal reporter (``-p no:terminal``) it goes to the standard error.
    """
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")

    def write(text: str) -> None:
        # The standard error is looked up now: while pytest captures, it is another one.
        with nullcontext() if capture is None else capture.global_and_fixture_disabled():
            if reporter is None:
                _write_to_stderr(text)
                return
            # pytest writes a file's name without a line end before its tests run.
            reporter.ensure_newline()
            reporter.write(text, flush=True)

    if reporter is None:
        return LineProgress(write=write, is_terminal=False)
    columns = min(config.get_terminal_writer().fullwidth, MAX_COLUMNS)
    return LineProgress(write=write, is_terminal=bool(reporter.isatty), columns=columns)


def stderr_progress() -> LineProgress:
    """Return progress for a command: the standard error, one updating line if it is a terminal."""
    return LineProgress(write=_write_to_stderr, is_terminal=sys.stderr.isatty())


def _write_to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
