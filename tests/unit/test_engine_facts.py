"""What a server says about itself, in the formats of vLLM 0.25.1."""

from pathlib import Path

import pytest
from fakes.fake_vllm import cache_config_metric, engine_config_line
from fakes.reply_server import serve_replies
from hypothesis import given
from hypothesis import strategies as st

from pytest_qperf.adapters.engine_facts import (
    cache_config_facts,
    confirmed_facts,
    engine_config_facts,
    fact_mismatches,
    fact_text,
    facts_error,
)
from pytest_qperf.core.recipe import EngineFacts


def test_cache_config_labels_name_the_kv_dtype_and_prefix_caching() -> None:
    metrics = cache_config_metric(cache_dtype="fp8", enable_prefix_caching="False")
    assert cache_config_facts(metrics) == {
        "kv_cache_dtype": "fp8",
        "prefix_caching": "false",
        "num_gpu_blocks": "121763",
    }


def test_a_label_on_which_data_parallel_engines_differ_is_left_out() -> None:
    metrics = cache_config_metric(num_gpu_blocks="100") + cache_config_metric(
        num_gpu_blocks="200", engine="1"
    )
    assert cache_config_facts(metrics) == {"kv_cache_dtype": "auto", "prefix_caching": "true"}


def test_a_label_value_with_escaped_quotes_does_not_hide_the_next_label() -> None:
    line = r'vllm:cache_config_info{a="x\",cache_dtype=\"no",cache_dtype="fp8"} 1.0'
    assert cache_config_facts(line) == {"kv_cache_dtype": "fp8"}


def test_metrics_without_the_cache_config_confirm_nothing() -> None:
    assert cache_config_facts('vllm:num_requests_running{engine="0"} 0.0\n') == {}


def test_the_engine_config_line_names_quantization_dtype_kv_dtype_and_prefix_caching() -> None:
    assert engine_config_facts(engine_config_line()) == {
        "dtype": "bfloat16",
        "quantization": "fp8",
        "kv_cache_dtype": "fp8",
        "prefix_caching": "false",
    }


def test_no_quantization_is_told_apart_from_an_unknown_one() -> None:
    assert engine_config_facts(engine_config_line(quantization="None"))["quantization"] == "none"
    assert "quantization" not in engine_config_facts("Initializing a V1 LLM engine (v1) with: x")


def test_the_last_engine_config_line_of_a_log_counts() -> None:
    log = "\n".join(
        ["first", engine_config_line(kv_cache_dtype="auto"), "between", engine_config_line(), "end"]
    )
    assert engine_config_facts(log)["kv_cache_dtype"] == "fp8"


def test_a_model_path_that_imitates_a_field_makes_that_field_unknown() -> None:
    line = engine_config_line(model="/m, quantization=awq, x")
    assert "quantization" not in engine_config_facts(line)
    assert engine_config_facts(line)["kv_cache_dtype"] == "fp8"


def test_a_log_without_the_engine_config_line_confirms_nothing() -> None:
    assert engine_config_facts("INFO quantization=fp8, kv_cache_dtype=fp8, \n") == {}


@given(st.text())
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    engine_config_facts(text)
    engine_config_facts("Initializing a V1 LLM engine (" + text)
    cache_config_facts("vllm:cache_config_info{" + text)


@given(st.sampled_from(["auto", "fp8", "fp8_e4m3", "bfloat16"]), st.booleans())
def test_log_line_and_metric_of_one_engine_agree(dtype: str, is_caching: bool) -> None:
    log = engine_config_facts(engine_config_line(kv_cache_dtype=dtype, prefix_caching=is_caching))
    metric = cache_config_facts(
        cache_config_metric(cache_dtype=dtype, enable_prefix_caching=str(is_caching))
    )
    for name in ("kv_cache_dtype", "prefix_caching"):
        assert log[name] == metric[name]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "true"),
        ("False", "false"),
        ("torch.bfloat16", "bfloat16"),
        ("'fp8'", "fp8"),
        (2, "2"),
    ],
)
def test_values_are_written_in_one_way(value: object, text: str) -> None:
    assert fact_text(value) == text


def test_a_contradicted_fact_names_both_values() -> None:
    expect = EngineFacts(kv_cache_dtype="fp8", prefix_caching=False)
    facts = {"kv_cache_dtype": "auto", "prefix_caching": "true"}
    assert fact_mismatches(expect, facts) == [
        "facts: expected kv_cache_dtype 'fp8', the server says 'auto'",
        "facts: expected prefix_caching 'false', the server says 'true'",
    ]


def test_a_fact_the_server_does_not_state_is_a_mismatch() -> None:
    assert fact_mismatches(EngineFacts(quantization="fp8"), {"version": "1"}) == [
        "facts: expected quantization 'fp8', the server does not say"
    ]


def test_confirmed_and_unexpected_facts_are_no_mismatch() -> None:
    assert fact_mismatches(EngineFacts(version="1"), {"version": "1", "dtype": "bfloat16"}) == []


def test_the_error_lists_every_mismatch_and_the_log() -> None:
    error = facts_error("base", ["facts: one", "facts: two"], log_path=Path("/logs/base.log"))
    assert str(error) == (
        "engine base: the running server is not what its recipe states (log: /logs/base.log); "
        "change the recipe's arguments or 'expect':\n  facts: one\n  facts: two"
    )


def test_facts_come_from_version_metrics_and_log() -> None:
    replies: dict[str, list[tuple[int, object]]] = {
        "/version": [(200, {"version": "0.25.1", "num_threads": 2, "nested": {}})],
        "/metrics": [(200, cache_config_metric(cache_dtype="fp8", enable_prefix_caching="False"))],
    }
    with serve_replies(replies) as server:
        facts = confirmed_facts(server.base_url, log_text=engine_config_line())
    assert facts == {
        "version": "0.25.1",
        "num_threads": "2",
        "dtype": "bfloat16",
        "quantization": "fp8",
        "kv_cache_dtype": "fp8",
        "prefix_caching": "false",
        "num_gpu_blocks": "121763",
    }


def test_sources_that_contradict_each_other_confirm_neither_value() -> None:
    with serve_replies({"/metrics": [(200, cache_config_metric(cache_dtype="auto"))]}) as server:
        facts = confirmed_facts(server.base_url, log_text=engine_config_line())
    assert facts["kv_cache_dtype"] == "auto (/metrics), fp8 (log)"


def test_a_server_without_version_and_metrics_confirms_nothing() -> None:
    with serve_replies({"/version": [(200, "not json")]}) as server:
        assert confirmed_facts(server.base_url, log_text=None) == {}
