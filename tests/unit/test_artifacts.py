"""A gate with one arm replaced."""

from dataclasses import replace
from pathlib import Path

from fakes.small_gates import small_gate

from pytest_qperf.core.artifacts import BuildArtifact, NamedEngine

GATE = small_gate()
OTHER: NamedEngine = replace(GATE.candidate, name="other", digest="digest-other")


def test_an_arm_is_replaced_and_the_other_stays() -> None:
    changed = GATE.with_engine("candidate", OTHER)
    assert (changed.candidate, changed.baseline) == (OTHER, GATE.baseline)
    changed = GATE.with_engine("baseline", OTHER)
    assert (changed.candidate, changed.baseline) == (GATE.candidate, OTHER)


def test_each_arm_answers_to_its_name() -> None:
    assert (GATE.engine("candidate").name, GATE.engine("baseline").name) == ("B", "A")


def test_the_digest_says_which_arm_was_replaced_and_by_what() -> None:
    digests = {
        GATE.digest,
        GATE.with_engine("candidate", OTHER).digest,
        GATE.with_engine("baseline", OTHER).digest,
        GATE.with_engine("candidate", replace(OTHER, digest="yet-another")).digest,
        replace(GATE, digest="another-gate").with_engine("candidate", OTHER).digest,
    }
    assert len(digests) == 5
    assert all(len(digest) == 64 for digest in digests - {GATE.digest})


def test_the_same_replacement_has_the_same_digest() -> None:
    first, second = (GATE.with_engine("candidate", OTHER) for _ in range(2))
    assert first == second


def test_a_replacement_leaves_the_gate_itself_alone() -> None:
    GATE.with_engine("candidate", OTHER)
    assert small_gate() == GATE


def test_content_hashes_leave_out_what_differs_from_build_to_build() -> None:
    artifact = BuildArtifact(
        model="org/model",
        provenance={"plugin_hash": "a", "model_config_sha256": "b", "plugin_build_s": "1.25"},
    )
    assert artifact.content_hashes() == {"plugin_hash": "a", "model_config_sha256": "b"}


def test_equal_recipes_in_two_folders_are_two_gates() -> None:
    gate = small_gate()
    elsewhere = replace(gate, path=Path("elsewhere") / gate.path.name)
    assert elsewhere.digest == gate.digest
    assert elsewhere.key != gate.key
