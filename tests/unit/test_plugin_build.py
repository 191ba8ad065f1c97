"""Building a plugin's host library: the cache, and every way it can fail."""

import ctypes
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_qperf.adapters import plugin_build
from pytest_qperf.adapters.plugin_build import PluginLibrary, build_host_library
from pytest_qperf.core.errors import BuildError


@pytest.fixture
def source_dir(tmp_path: Path) -> Path:
    """A plugin whose library answers 7."""
    folder = tmp_path / "plugins" / "tiny"
    (folder / "include").mkdir(parents=True)
    (folder / "src" / "host").mkdir(parents=True)
    (folder / "include" / "tiny.h").write_text('extern "C" int answer();\n')
    write_answer(folder, "7")
    return folder


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def write_answer(source_dir: Path, expression: str) -> None:
    code = f'#include "tiny.h"\nint answer() {{ return {expression}; }}\n'
    (source_dir / "src" / "host" / "tiny.cpp").write_text(code)


def write_compiler(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def build(source_dir: Path, cache_dir: Path, notes: list[str] | None = None) -> PluginLibrary:
    lines = [] if notes is None else notes
    return build_host_library(source_dir, cache_dir=cache_dir, note=lines.append)


def answer(library: PluginLibrary) -> int:
    result: int = ctypes.CDLL(str(library.path)).answer()
    return result


def test_a_built_library_loads_and_a_second_build_is_a_cache_hit(
    source_dir: Path, cache_dir: Path
) -> None:
    notes: list[str] = []
    first = build(source_dir, cache_dir, notes)
    second = build(source_dir, cache_dir, notes)
    assert answer(first) == 7
    assert (first.is_cache_hit, second.is_cache_hit) == (False, True)
    assert first.build_s > 0
    assert second.build_s == 0
    assert (second.path, second.content_hash) == (first.path, first.content_hash)
    assert notes == [f"plugins/tiny: building with {first.compiler}"]


def test_the_log_beside_the_library_names_the_command(source_dir: Path, cache_dir: Path) -> None:
    library = build(source_dir, cache_dir)
    command = (library.path.parent / "build.log").read_text().splitlines()[0]
    assert "-O3" in command
    assert "tiny.cpp" in command


def test_a_changed_source_gives_another_library(source_dir: Path, cache_dir: Path) -> None:
    first = build(source_dir, cache_dir)
    write_answer(source_dir, "8")
    second = build(source_dir, cache_dir)
    assert not second.is_cache_hit
    assert second.content_hash != first.content_hash
    assert (answer(first), answer(second)) == (7, 8)


def test_a_changed_header_gives_another_library(source_dir: Path, cache_dir: Path) -> None:
    first = build(source_dir, cache_dir)
    with (source_dir / "include" / "tiny.h").open("a") as header:
        header.write("// changed\n")
    assert build(source_dir, cache_dir).content_hash != first.content_hash


def test_a_moved_character_between_files_gives_another_hash(
    source_dir: Path, cache_dir: Path
) -> None:
    hashes = set()
    for first, second in (("ab", "c"), ("a", "bc")):
        (source_dir / "include" / "x.h").write_text(f"// {first}\n")
        (source_dir / "include" / "y.h").write_text(f"// {second}\n")
        hashes.add(build(source_dir, cache_dir).content_hash)
    assert len(hashes) == 2


def test_other_compiler_arguments_give_another_library(
    source_dir: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_answer(source_dir, "ANSWER")
    hashes = set()
    for value in (1, 2):
        monkeypatch.setenv("CXX", f"g++ -DANSWER={value}")
        library = build(source_dir, cache_dir)
        hashes.add(library.content_hash)
        assert answer(library) == value
    assert len(hashes) == 2


def test_the_compiler_is_named_with_its_version(source_dir: Path, cache_dir: Path) -> None:
    compiler = build(source_dir, cache_dir).compiler
    assert compiler.startswith("/")
    assert "g++" in compiler


def test_without_a_compiler_the_error_says_what_to_install(
    source_dir: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    message = (
        r"^plugins/tiny: expected a C\+\+ compiler \(g\+\+ or \$CXX\), found none on PATH; "
        r"install g\+\+ [^\n]*$"
    )
    with pytest.raises(BuildError, match=message):
        build(source_dir, cache_dir)


def test_a_cxx_that_does_not_exist_is_named(
    source_dir: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(BuildError, match=r"found none on PATH \(CXX is 'no-such-compiler'\)"):
        build(source_dir, cache_dir)


def test_a_cxx_that_is_no_compiler_is_named(
    source_dir: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = write_compiler(tmp_path / "cxx", "echo out of order >&2; exit 3")
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(
        BuildError, match=r"cxx --version to answer, got exit status 3: out of order"
    ):
        build(source_dir, cache_dir)


def test_a_compile_error_shows_the_exit_status_the_output_and_the_log(
    source_dir: Path, cache_dir: Path
) -> None:
    write_answer(source_dir, "undeclared_name")
    with pytest.raises(BuildError) as failure:
        build(source_dir, cache_dir)
    first_line, *output = str(failure.value).splitlines()
    log_path = Path(first_line.rpartition("log: ")[2])
    assert first_line.startswith(
        "plugins/tiny: expected the compiler to succeed, got exit status 1; log: "
    )
    assert any("undeclared_name" in line for line in output)
    assert "undeclared_name" in log_path.read_text()


def test_a_compile_error_shows_the_last_40_lines_only(
    source_dir: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'if [ "$1" = --version ]; then echo loud 1; exit 0; fi; seq 1000; exit 4'
    monkeypatch.setenv("CXX", str(write_compiler(tmp_path / "cxx", script)))
    with pytest.raises(BuildError, match="got exit status 4") as failure:
        build(source_dir, cache_dir)
    assert str(failure.value).splitlines()[1:] == [str(number) for number in range(961, 1001)]


def test_after_a_failed_build_the_mended_source_builds(source_dir: Path, cache_dir: Path) -> None:
    write_answer(source_dir, "undeclared_name")
    with pytest.raises(BuildError):
        build(source_dir, cache_dir)
    write_answer(source_dir, "9")
    assert answer(build(source_dir, cache_dir)) == 9


def test_what_a_killed_compiler_left_is_never_used(
    source_dir: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        'if [ "$1" = --version ]; then echo dying 1; exit 0; fi; '
        'for last; do :; done; echo half > "$last"; kill -9 $$'
    )
    monkeypatch.setenv("CXX", str(write_compiler(tmp_path / "cxx", script)))
    for _ in range(2):
        with pytest.raises(BuildError, match="got exit status -9"):
            build(source_dir, cache_dir)
    assert list(cache_dir.rglob("*.so")) == []


def test_a_compiler_that_does_not_end_is_stopped(
    source_dir: Path, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'if [ "$1" = --version ]; then echo slow 1; exit 0; fi; exec sleep 60'
    monkeypatch.setenv("CXX", str(write_compiler(tmp_path / "cxx", script)))
    monkeypatch.setattr(plugin_build, "COMPILE_TIMEOUT_S", 0.2)
    with pytest.raises(BuildError, match=r"to end within 0 s, it was stopped; log: .*build\.log$"):
        build(source_dir, cache_dir)


def test_concurrent_builds_compile_once(source_dir: Path, cache_dir: Path) -> None:
    with ThreadPoolExecutor(4) as executor:
        libraries = list(executor.map(lambda _: build(source_dir, cache_dir), range(4)))
    assert [library.is_cache_hit for library in libraries].count(False) == 1
    assert {answer(library) for library in libraries} == {7}


def test_a_missing_folder_is_named(tmp_path: Path, cache_dir: Path) -> None:
    with pytest.raises(
        BuildError, match=r"plugins/none: expected the folder .*include, found none"
    ):
        build(tmp_path / "plugins" / "none", cache_dir)


def test_a_plugin_without_host_sources_is_named(source_dir: Path, cache_dir: Path) -> None:
    (source_dir / "src" / "host" / "tiny.cpp").unlink()
    with pytest.raises(BuildError, match=r"plugins/tiny: expected C\+\+ files .*\.cpp, found none"):
        build(source_dir, cache_dir)


def test_the_plugin_compiles_without_warnings_and_on_other_processors(tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[2] / "plugins" / "fp8_gemm"
    # GCC 12's own AVX-512 headers trip -Wmaybe-uninitialized.
    warnings = "-Wall -Wextra -Werror -Wno-maybe-uninitialized"
    for number, flags in enumerate(("-O1", "-O1 -DQPERF_PORTABLE_ONLY")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CXX", f"{os.environ.get('CXX', 'g++')} {warnings} {flags}")
            build(source, tmp_path / str(number))
