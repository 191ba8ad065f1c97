"""The plugin's host library, built with the machine's C++ compiler and cached by content."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from pytest_qperf.core.errors import BuildError

COMPILE_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread")
COMPILE_TIMEOUT_S = 600.0
NUM_LOG_LINES = 40

_HEADERS = "include"
_SOURCES = "src/host"


@dataclass(frozen=True, slots=True)
class PluginLibrary:
    """A built library. ``content_hash`` (SHA-256, hex) covers sources, flags, compiler, machine.

    ``compiler`` is its path and version line. ``build_s`` is the time this call spent compiling.
    """

    path: Path
    content_hash: str
    compiler: str
    build_s: float
    is_cache_hit: bool


@dataclass(frozen=True, slots=True)
class _Compiler:
    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.version})"


def build_host_library(
    source_dir: Path, *, cache_dir: Path, note: Callable[[str], None]
) -> PluginLibrary:
    """Return the library of a plugin's ``include/`` and ``src/host/``, built unless cached.

    The compiler is $CXX, else g++. Concurrent builds of one content wait for the first. The log
    stays beside the library. ``note`` gets one line where something is compiled.
    Raises BuildError: no sources, no compiler, or the compiler's exit status, output and log.
    """
    where = f"{source_dir.parent.name}/{source_dir.name}"
    sources = _source_files(source_dir, where)
    compiler = _find_compiler(where)
    content_hash = _content_hash(source_dir, sources, compiler)
    folder = cache_dir / "plugins" / f"{source_dir.name}-{content_hash[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"lib{source_dir.name}.so"
    build_s = 0.0
    with FileLock(folder / "build.lock"):
        is_cache_hit = library.exists()
        if not is_cache_hit:
            note(f"{where}: building with {compiler}")
            started_perf_s = time.perf_counter()
            _compile(source_dir, compiler, library, where=where)
            build_s = time.perf_counter() - started_perf_s
    return PluginLibrary(library, content_hash, str(compiler), build_s, is_cache_hit)


def _source_files(source_dir: Path, where: str) -> list[Path]:
    folders = [source_dir / _HEADERS, source_dir / _SOURCES]
    for folder in folders:
        if not folder.is_dir():
            raise BuildError(
                f"{where}: expected the folder {folder}, found none; "
                "plugin_source must name a plugin's folder"
            )
    if not _translation_units(source_dir):
        raise BuildError(f"{where}: expected C++ files {folders[1]}/*.cpp, found none")
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


def _translation_units(source_dir: Path) -> list[Path]:
    return sorted((source_dir / _SOURCES).rglob("*.cpp"))


def _find_compiler(where: str) -> _Compiler:
    words = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    program = shutil.which(words[0])
    if program is None:
        asked = f" (CXX is {words[0]!r})" if os.environ.get("CXX") else ""
        raise BuildError(
            f"{where}: expected a C++ compiler (g++ or $CXX), found none on PATH{asked}; "
            "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)"
        )
    command = (program, *words[1:])
    answer = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise BuildError(
            f"{where}: expected {shlex.join(command)} --version to answer, got exit status "
            f"{answer.returncode}: {answer.stderr.strip()}; check $CXX"
        )
    return _Compiler(command, version=answer.stdout.partition("\n")[0].strip())


def _content_hash(source_dir: Path, sources: list[Path], compiler: _Compiler) -> str:
    digest = hashlib.sha256()
    build = (*COMPILE_FLAGS, *compiler.command, compiler.version, platform.machine())
    fields = [word.encode() for word in build]
    for path in sources:
        fields += [path.relative_to(source_dir).as_posix().encode(), path.read_bytes()]
    for field in fields:
        # The length keeps "ab", "c" apart from "a", "bc".
        digest.update(len(field).to_bytes(8, "little"))
        digest.update(field)
    return digest.hexdigest()


def _compile(source_dir: Path, compiler: _Compiler, library: Path, *, where: str) -> None:
    log_path = library.with_name("build.log")
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        unfinished = Path(scratch) / library.name
        command = [
            *compiler.command,
            *COMPILE_FLAGS,
            f"-I{source_dir / _HEADERS}",
            *map(str, _translation_units(source_dir)),
            "-o",
            str(unfinished),
        ]
        exit_status = _run_logged(command, log_path, where=where)
        if exit_status != 0:
            lines = log_path.read_text(errors="replace").splitlines()
            raise BuildError(
                f"{where}: expected the compiler to succeed, got exit status {exit_status}; "
                f"log: {log_path}\n" + "\n".join(lines[-NUM_LOG_LINES:])
            )
        # Renamed last, so that a library in its place is always a whole one.
        unfinished.replace(library)


def _run_logged(command: list[str], log_path: Path, *, where: str) -> int:
    with log_path.open("w") as log:
        log.write(shlex.join(command) + "\n")
        log.flush()
        try:
            return subprocess.run(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=COMPILE_TIMEOUT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise BuildError(
                f"{where}: expected the compiler to end within {COMPILE_TIMEOUT_S:.0f} s, "
                f"it was stopped; log: {log_path}"
            ) from error
