"""The stored result: what it refuses, what it answers."""

import json

import jsonschema
import pytest
from fakes.small_gates import RATE, run_record, stored_run
from fakes.stored_results import gate_result
from pydantic import ValidationError

from pytest_qperf.adapters.recipe_schema import recipe_schemas
from pytest_qperf.core.result import GateResult, RunResult

TWO_ROUNDS = [
    stored_run(2, "candidate", run_record(rate_tokens_per_s=8.0)),
    stored_run(1, "baseline", run_record(rate_tokens_per_s=2.0)),
    stored_run(1, "candidate", run_record(rate_tokens_per_s=4.0)),
    stored_run(2, "baseline", run_record(rate_tokens_per_s=4.0)),
]


def test_run_values_come_in_round_order() -> None:
    result = gate_result(TWO_ROUNDS)
    assert result.run_values("candidate", RATE) == pytest.approx((4, 8))
    assert result.run_values("baseline", RATE) == pytest.approx((2, 4))


def test_a_metric_that_no_run_has_gives_no_values() -> None:
    assert gate_result(TWO_ROUNDS).run_values("candidate", "unknown") == ()


def test_a_verdict_is_found_by_its_metric() -> None:
    assert gate_result(TWO_ROUNDS).verdict(RATE).ratio.value == pytest.approx(2)


def test_a_metric_that_was_not_judged_has_no_verdict() -> None:
    with pytest.raises(KeyError, match="itl_p99_s: not judged by gate small-gate"):
        gate_result(TWO_ROUNDS).verdict("itl_p99_s")


def test_a_result_survives_its_json_and_conforms_to_the_schema() -> None:
    result = gate_result(TWO_ROUNDS)
    text = result.model_dump_json()
    assert GateResult.model_validate_json(text) == result
    schema = json.loads(recipe_schemas()["result.schema.json"])
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize("change", [{"unknown": 1}, {"schema_version": 2}, {"outcome": "MAYBE"}])
def test_a_document_of_another_version_is_refused(change: dict[str, object]) -> None:
    document = json.loads(gate_result(TWO_ROUNDS).model_dump_json()) | change
    with pytest.raises(ValidationError, match=next(iter(change))):
        GateResult.model_validate_json(json.dumps(document))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused_when_the_run_is_made(value: float) -> None:
    run = TWO_ROUNDS[0].model_dump()
    with pytest.raises(ValidationError, match="finite number"):
        RunResult.model_validate(run | {"metrics": {RATE: value}})
    with pytest.raises(ValidationError, match="finite number"):
        RunResult.model_validate(run | {"send_lag_max_s": value})
