"""Rules over the whole tree: file lengths, workflows, changelog."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPO = Path(__file__).resolve().parents[2]
MAX_LINES = 400
SOURCE_SUFFIXES = {".py", ".cpp", ".h", ".cu"}
PINNED_ACTION = re.compile(r"^[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}$")
WORKFLOWS = sorted((REPO / ".github" / "workflows").glob("*.yml"))
REQUIRED_CHECKS = {"tests.yml": "tests", "qperf.yml": "qperf"}

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def project_files() -> list[Path]:
    """Return every file that is, or would be, committed."""
    completed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO,
        check=True,
        capture_output=True,
        text=True,
    )
    files = [REPO / name for name in completed.stdout.split("\0") if name]
    return [path for path in files if path.is_file()]


def load_workflow(path: Path) -> dict[str, Any]:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(workflow, dict)
    return workflow


def used_actions(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every job and step that runs somebody's action or reusable workflow."""
    for job in workflow["jobs"].values():
        for user in [job, *job.get("steps", [])]:
            if "uses" in user:
                yield user


def test_no_source_file_is_longer_than_400_lines() -> None:
    sources = [path for path in project_files() if path.suffix in SOURCE_SUFFIXES]
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources}
    assert Path(__file__).resolve() in lengths
    assert {path: count for path, count in lengths.items() if count > MAX_LINES} == {}


def test_test_file_names_are_unique() -> None:
    # Without __init__.py files mypy takes a test file's name for its module's.
    names = [path.name for path in (REPO / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_the_changelog_has_an_unreleased_section() -> None:
    changelog = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "\n## [Unreleased]\n" in changelog


def test_every_required_check_has_its_workflow() -> None:
    assert set(REQUIRED_CHECKS) <= {path.name for path in WORKFLOWS}


@every_workflow
def test_every_action_is_pinned_by_commit(path: Path) -> None:
    for user in used_actions(load_workflow(path)):
        assert PINNED_ACTION.match(user["uses"]), user["uses"]


@every_workflow
def test_no_checkout_leaves_a_token_behind(path: Path) -> None:
    for user in used_actions(load_workflow(path)):
        if user["uses"].startswith("actions/checkout@"):
            assert user["with"]["persist-credentials"] is False


@every_workflow
def test_a_workflow_may_only_read_the_repository(path: Path) -> None:
    workflow = load_workflow(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job.get("permissions", {}) == {} for job in workflow["jobs"].values())


@every_workflow
def test_every_job_ends_in_bounded_time(path: Path) -> None:
    for job in load_workflow(path)["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 60


@every_workflow
def test_no_workflow_runs_a_forks_code_with_the_base_repositorys_rights(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "pull_request_target" not in text
    assert "workflow_run" not in text
    assert "secrets." not in text


def test_the_gpu_host_is_reached_only_after_approval_of_the_very_commit() -> None:
    jobs = load_workflow(REPO / ".github" / "workflows" / "qperf.yml")["jobs"]
    assert jobs["approval"]["environment"] == "h200"
    on_the_host = [job for job in jobs.values() if "self-hosted" in job["runs-on"]]
    assert on_the_host == [jobs["measure"]]
    assert jobs["measure"]["needs"] == "approval"
    assert "if" not in jobs["measure"]
    checkout = jobs["measure"]["steps"][0]["with"]
    assert checkout["ref"] == "${{ github.event.pull_request.head.sha }}"
    assert jobs["measure"]["concurrency"]["cancel-in-progress"] is False


@pytest.mark.parametrize(("workflow", "check"), REQUIRED_CHECKS.items())
@pytest.mark.parametrize(
    ("result", "is_green"),
    [("success", True), ("failure", False), ("cancelled", False), ("skipped", False), ("", False)],
)
def test_a_required_check_is_green_only_on_success(
    workflow: str, check: str, result: str, is_green: bool
) -> None:
    job = load_workflow(REPO / ".github" / "workflows" / workflow)["jobs"][check]
    assert job["if"] == "always()"
    (step,) = job["steps"]
    assert step["env"] == {"RESULT": "${{ needs." + job["needs"] + ".result }}"}
    completed = subprocess.run(
        ["bash", "-e", "-c", step["run"]], env={"RESULT": result}, capture_output=True
    )
    assert (completed.returncode == 0) is is_green
