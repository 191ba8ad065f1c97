"""Progress on a terminal and in a log."""

import io
import sys

import pytest
from fakes.fake_nvml import FakeTime

from pytest_qperf.progress import CLEAR_LINE, LOG_INTERVAL_S, LineProgress, stderr_progress


class Terminal:
    """What was written, and a clock that the test moves."""

    def __init__(self, *, is_terminal: bool, columns: int = 20) -> None:
        self.written: list[str] = []
        self.time = FakeTime()
        self.progress = LineProgress(
            write=self.written.append,
            is_terminal=is_terminal,
            columns=columns,
            clock=self.time.clock,
        )


def test_on_a_terminal_an_update_overwrites_the_one_before() -> None:
    terminal = Terminal(is_terminal=True)
    terminal.progress.update("one")
    terminal.progress.update("two")
    assert terminal.written == [f"{CLEAR_LINE}one", f"{CLEAR_LINE}two"]


def test_on_a_terminal_a_note_replaces_the_update_and_stays() -> None:
    terminal = Terminal(is_terminal=True)
    terminal.progress.update("one")
    terminal.progress.note("done")
    terminal.progress.note("next")
    assert terminal.written[1:] == [f"{CLEAR_LINE}done\n", "next\n"]


@pytest.mark.parametrize(
    ("length", "shown"), [(19, "x" * 19), (20, "x" * 18 + "…"), (50, "x" * 18 + "…")]
)
def test_an_update_never_fills_the_line_so_that_it_can_be_overwritten(
    length: int, shown: str
) -> None:
    terminal = Terminal(is_terminal=True, columns=20)
    terminal.progress.update("x" * length)
    assert terminal.written == [f"{CLEAR_LINE}{shown}"]


def test_a_note_is_never_cut() -> None:
    terminal = Terminal(is_terminal=True, columns=20)
    terminal.progress.note("x" * 50)
    assert terminal.written == ["x" * 50 + "\n"]


def test_clearing_removes_an_update_once_and_nothing_else() -> None:
    terminal = Terminal(is_terminal=True)
    terminal.progress.clear()
    terminal.progress.update("one")
    terminal.progress.clear()
    terminal.progress.clear()
    assert terminal.written == [f"{CLEAR_LINE}one", CLEAR_LINE]


def test_in_a_log_the_first_update_is_a_line_and_the_next_comes_after_the_interval() -> None:
    log = Terminal(is_terminal=False)
    log.progress.update("one")
    log.time.now_s = LOG_INTERVAL_S - 1
    log.progress.update("two")
    log.time.now_s = LOG_INTERVAL_S
    log.progress.update("three")
    assert log.written == ["one\n", "three\n"]


def test_in_a_log_a_note_is_written_at_once_and_counts_as_a_sign_of_life() -> None:
    log = Terminal(is_terminal=False)
    log.progress.note("start")
    log.time.now_s = LOG_INTERVAL_S - 1
    log.progress.note("next")
    log.time.now_s = LOG_INTERVAL_S
    log.progress.update("too soon after the note")
    assert log.written == ["start\n", "next\n"]


def test_a_log_has_no_control_characters() -> None:
    log = Terminal(is_terminal=False)
    log.progress.update("x" * 50)
    log.progress.note("done")
    log.progress.clear()
    assert log.written == ["x" * 50 + "\n", "done\n"]


def test_a_command_shows_its_progress_on_the_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stderr_progress().note("building")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "building\n")


def test_a_command_overwrites_only_if_the_standard_error_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    tty = Tty()
    monkeypatch.setattr(sys, "stderr", tty)
    stderr_progress().update("building")
    assert tty.getvalue() == f"{CLEAR_LINE}building"


NOTING_TEST = """
from pytest_qperf.progress import pytest_progress

def test_that_notes(request):
    print("captured")
    pytest_progress(request.config).note("seen past the capturing")
"""


def test_a_test_run_shows_progress_although_output_is_captured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NOTING_TEST)
    result = pytester.runpytest("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["seen past the capturing"])
    result.stdout.no_fnmatch_line("captured")


def test_without_a_terminal_reporter_progress_goes_to_the_standard_error(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(NOTING_TEST)
    result = pytester.runpytest_subprocess("-p", "no:terminal", "-p", "no:cacheprovider", "-s")
    result.stderr.fnmatch_lines(["seen past the capturing"])
