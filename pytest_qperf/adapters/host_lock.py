"""One measurement at a time on a GPU, over all users and checkouts of a host.

The lock is the kernel's (flock on a file), so it is free as soon as its holder is dead, however it
died. The file itself stays; its content says who took the lock last. The folder does not follow
TMPDIR, which differs between users and jobs. Containers see each other's locks only if they share
the folder.

Not filelock: in a sticky folder it refuses a file that another user made (4.x), or opens it with
O_CREAT, which Linux refuses there (fs.protected_regular).
"""

import contextlib
import fcntl
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pytest_qperf.adapters.gpu import Patience
from pytest_qperf.core.errors import EnvironmentUnfitError

LOCKS_DIR = Path("/tmp/qperf-locks")
NOTE_INTERVAL_S = 60.0
LOCK_POLL_S = 0.5
MAX_COMMAND_CHARACTERS = 200


@contextmanager
def hold_host_lock(
    resource: str,
    *,
    timeout_s: float,
    note: Callable[[str], None],
    locks_dir: Path = LOCKS_DIR,
    patience: Patience | None = None,
) -> Iterator[None]:
    """Hold the host's lock on a resource: a GPU's UUID, or "cpu".

    While it waits, ``note`` is told who holds the lock, at once and then every 60 s.
    patience: the clock and the pause between attempts; its timeout is replaced by ``timeout_s``.
    Raises EnvironmentUnfitError, naming the holder, after ``timeout_s``.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", resource):
        raise ValueError(f"resource: expected letters, digits, '.', '_' and '-', got {resource!r}")
    fd = _open_lock_file(locks_dir, resource)
    try:
        _wait(fd, resource, timeout_s, note, patience or Patience(poll_s=LOCK_POLL_S))
        _write_holder(fd)
        yield
    finally:
        os.close(fd)


def _open_lock_file(locks_dir: Path, resource: str) -> int:
    path = locks_dir / f"{resource}.lock"
    try:
        with contextlib.suppress(FileExistsError):
            locks_dir.mkdir()
            locks_dir.chmod(0o1777)
        with contextlib.suppress(FileExistsError):
            created = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
            os.fchmod(created, 0o666)  # whatever the umask says
            return created
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        raise EnvironmentUnfitError(
            f"host lock {path}: expected a file that every user can write, got {error.strerror}; "
            "remove it or mend its permissions"
        ) from error


def _wait(
    fd: int, resource: str, timeout_s: float, note: Callable[[str], None], patience: Patience
) -> None:
    start_s = patience.clock()
    next_note_s = start_s
    while not _take(fd):
        now_s = patience.clock()
        if now_s >= start_s + timeout_s:
            raise EnvironmentUnfitError(
                f"host lock {resource}: expected it to be free within {timeout_s:.0f} s, got it "
                f"held by {_describe_holder(fd)}; wait for that to end"
            )
        if now_s >= next_note_s:
            note(f"waiting for {resource}, held by {_describe_holder(fd)}")
            next_note_s = now_s + NOTE_INTERVAL_S
        patience.sleep(patience.poll_s)


def _take(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(fd: int) -> None:
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:MAX_COMMAND_CHARACTERS]
    since = datetime.now(UTC).isoformat(timespec="seconds")
    holder = {"pid": os.getpid(), "command": command, "since": since}
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(holder).encode(), 0)


def _describe_holder(fd: int) -> str:
    """Return who holds the lock; the content may be half written or of an earlier holder."""
    try:
        holder = json.loads(os.pread(fd, 4096, 0))
        return f"pid {holder['pid']} ({holder['command']}) since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        return "a process that has not written its name yet"
