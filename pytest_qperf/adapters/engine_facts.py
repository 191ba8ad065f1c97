"""What a running server says about itself, and whether it is what the recipe states.

vLLM (read in its 0.25.1 source) confirms without development mode: ``GET /version``; the labels of
``vllm:cache_config_info`` in ``GET /metrics`` (unless started with --disable-log-stats); and one
line of its log, "Initializing a V1 LLM engine (v...) with config: ...", the only place that names
the quantization in use.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from pytest_qperf.adapters.http_exchange import HttpReply, fetch
from pytest_qperf.core.errors import EngineError
from pytest_qperf.core.recipe import EngineFacts

CACHE_CONFIG_METRIC = "vllm:cache_config_info"
ENGINE_CONFIG_MARKER = "Initializing a V1 LLM engine ("

_CACHE_LABELS = {
    "kv_cache_dtype": "cache_dtype",
    "prefix_caching": "enable_prefix_caching",
    "num_gpu_blocks": "num_gpu_blocks",
}
_CONFIG_FIELDS = {
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "prefix_caching": "enable_prefix_caching",
}
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


def confirmed_facts(base_url: str, *, log_text: str | None) -> dict[str, str]:
    """Return what the server confirms, by fact name; what it does not say is absent.

    log_text: what this start of the server has logged so far, None if its log is not here.

    Where two sources contradict each other the fact holds both, so that no expectation matches.
    Raises OSError if the server does not answer.
    """
    facts = version_facts(fetch(f"{base_url}/version"))
    sources = {"/metrics": cache_config_facts(_text(fetch(f"{base_url}/metrics")))}
    if log_text is not None:
        sources["log"] = engine_config_facts(log_text)
    return facts | _joined(sources)


def version_facts(reply: HttpReply) -> dict[str, str]:
    """Return the scalar members of the answer to GET /version; empty if there is no such answer."""
    members = reply.json_object() if reply.status == 200 else None
    return {
        name: fact_text(value)
        for name, value in (members or {}).items()
        if isinstance(value, str | int | float | bool)
    }


def cache_config_facts(metrics_text: str) -> dict[str, str]:
    """Return the KV cache's facts from Prometheus text, one sample per data-parallel engine.

    A label on which the engines differ is left out.
    """
    samples = [
        dict(_LABEL.findall(line))
        for line in metrics_text.splitlines()
        if line.startswith(CACHE_CONFIG_METRIC + "{")
    ]
    facts = {}
    for fact, label in _CACHE_LABELS.items():
        values = {sample.get(label) for sample in samples}
        value = values.pop() if len(values) == 1 else None
        if value is not None and value != "None":
            facts[fact] = fact_text(value)
    return facts


def engine_config_facts(log_text: str) -> dict[str, str]:
    """Return the facts in the last engine configuration line of a vLLM log; empty without one.

    A field that is there more than once with different values is left out.
    """
    _, marker, config = log_text.rpartition(ENGINE_CONFIG_MARKER)
    if not marker:
        return {}
    line = config.partition("\n")[0]
    facts = {}
    for fact, field in _CONFIG_FIELDS.items():
        values = set(re.findall(rf", {field}=([^,]*),", line))
        if len(values) == 1:
            facts[fact] = fact_text(values.pop())
    return facts


def fact_text(value: object) -> str:
    """Return a value as facts are compared: 'fp8', 'bfloat16', 'none', 'true'."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    text = str(value).strip().strip("'\"").removeprefix("torch.")
    return text.lower() if text in ("None", "True", "False") else text


def fact_mismatches(expect: EngineFacts, facts: Mapping[str, str]) -> list[str]:
    """Return one line for each expected fact that is not confirmed."""
    return [
        mismatch(name, expected=fact_text(expected), facts=facts, asked=name)
        for name, expected in expect.model_dump(exclude_none=True).items()
        if facts.get(name) != fact_text(expected)
    ]


def mismatch(name: str, *, expected: str, facts: Mapping[str, str], asked: str) -> str:
    """Return the line for a fact ``asked`` of the server that does not confirm ``expected``."""
    if asked not in facts:
        return f"facts: expected {name} {expected!r}, the server does not say"
    says = f"{facts[asked]!r}" if asked == name else f"{asked} {facts[asked]!r}"
    return f"facts: expected {name} {expected!r}, the server says {says}"


def facts_error(engine_name: str, problems: list[str], *, log_path: Path | None) -> EngineError:
    """Return the error for a server that is not what its recipe states."""
    where = "" if log_path is None else f" (log: {log_path})"
    lines = "\n".join(f"  {problem}" for problem in problems)
    return EngineError(
        f"engine {engine_name}: the running server is not what its recipe states{where}; "
        f"change the recipe's arguments or 'expect':\n{lines}"
    )


def _joined(sources: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return each fact with the value its sources agree on, or with every value and its source."""
    said: dict[str, dict[str, str]] = {}
    for source, facts in sources.items():
        for name, value in facts.items():
            said.setdefault(name, {})[source] = value
    return {
        name: next(iter(values.values()))
        if len(set(values.values())) == 1
        else ", ".join(f"{value} ({source})" for source, value in values.items())
        for name, values in said.items()
    }


def _text(reply: HttpReply) -> str:
    return reply.body if reply.status == 200 else ""
