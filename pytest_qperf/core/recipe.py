"""Recipes: what to serve, what to ask of it, and what to require of the measurements.

Three kinds of file, each a frozen model: an engine, a workload, a gate. A recipe's name is its
file's stem. Everything is strict: unknown keys, wrong types and contradictions are errors.

A validator's message holds one problem a line, each ``key.path: expected X, got Y; how to fix``,
the key path relative to the model: readers print it at that key's line and column.
"""

import difflib
import hashlib
import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pytest_qperf.core.metrics import METRICS

Quantization = Literal["bf16", "fp8-static", "fp8-dynamic"]
MetricName = str


class StrictModel(BaseModel):
    """Refuses unknown keys (a typo must not become a default) and coercion (8 is not "8")."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the canonical JSON form, defaults included."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class SyntheticModel(StrictModel):
    """A seeded random checkpoint, made on first use: no download, same bytes for the same seed."""

    synthetic: str = Field(description="name of a shape, see `qperf checkpoint shapes`")
    quantization: Quantization = Field(description="of the checkpoint's linear layers")
    seed: int = Field(ge=0, description="of the random weights")


ModelSource = str | SyntheticModel
"""A hub id, a folder in Hugging Face layout, or a synthetic checkpoint."""


class EngineFacts(StrictModel):
    """What the running server itself must confirm; a fact left out is not checked."""

    version: str | None = Field(default=None, description="the engine's version, such as '0.25.1'")
    quantization: str | None = Field(default=None, description="weights, as the engine names them")
    kv_cache_dtype: str | None = Field(default=None, description="as the engine names it")
    prefix_caching: bool | None = Field(default=None, description="reuse of equal prompt prefixes")
    linear_backend: Literal["numpy-fp32", "fp8-gemm"] | None = Field(
        default=None, description="what multiplies the embedded engine's matrices"
    )


class EngineBase(StrictModel):
    """What every engine recipe says."""

    description: str = Field(description="one line on what this engine is")
    model: ModelSource = Field(
        description="hub id, folder in Hugging Face layout, or a synthetic checkpoint"
    )
    environment: dict[str, str] = Field(
        default={}, description="environment variables set for the server"
    )
    ready_timeout_s: float = Field(
        default=900.0, gt=0, description="from process start to the first generated token"
    )
    expect: EngineFacts = Field(
        default=EngineFacts(), description="facts the running server must confirm"
    )


class VllmEngine(EngineBase):
    """`vllm serve` from an interpreter (its environment has vllm) or from a container image."""

    kind: Literal["vllm"] = Field(description="which kind of engine this is")
    precision: Literal["bf16", "fp8"] = Field(description="of the linear layers' weights")
    interpreter: str | None = Field(default=None, description="python that can `import vllm`")
    image: str | None = Field(default=None, description="container image, run with docker")
    arguments: tuple[str, ...] = Field(default=(), description="passed to `vllm serve` as they are")
    plugin_source: str | None = Field(
        default=None, description="folder of a plugin's sources, beside the recipes folder"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> "VllmEngine":
        if (self.interpreter is None) == (self.image is None):
            got = "neither" if self.image is None else "both"
            raise ValueError(f"expected exactly one of 'interpreter' and 'image', got {got}")
        return self


class TrtllmEngine(EngineBase):
    """A TensorRT-LLM engine built with the patched GEMM plugin and served by `trtllm-serve`."""

    kind: Literal["trtllm"] = Field(description="which kind of engine this is")
    precision: Literal["bf16", "fp8"] = Field(description="of the linear layers' weights")
    image: str = Field(description="container image with `trtllm-build` and `trtllm-serve`")
    build_arguments: tuple[str, ...] = Field(
        default=(), description="passed to `trtllm-build` as they are"
    )
    arguments: tuple[str, ...] = Field(
        default=(), description="passed to `trtllm-serve` as they are"
    )
    plugin_source: str = Field(
        description="folder of the patched plugin's sources, beside the recipes folder"
    )


class EmbeddedEngine(EngineBase):
    """The NumPy engine that travels with this package; its results are labelled ``embedded``."""

    kind: Literal["embedded"] = Field(description="which kind of engine this is")
    precision: Literal["fp32", "fp8"] = Field(
        description="of the linear layers; fp8 runs them in the plugin"
    )
    plugin_source: str | None = Field(
        default=None,
        description="folder of the plugin's sources, beside the recipes folder; with fp8 only",
    )
    num_threads: int = Field(default=2, ge=1, description="threads of the linear layers")
    max_batch_size: int = Field(default=8, ge=1, description="requests decoded together")

    @model_validator(mode="after")
    def _fp8_needs_the_plugin(self) -> "EmbeddedEngine":
        if (self.precision == "fp8") != (self.plugin_source is not None):
            got = "none" if self.plugin_source is None else repr(self.plugin_source)
            raise ValueError(
                f"plugin_source: expected with precision fp8 and only with it, "
                f"got {got} with precision {self.precision}"
            )
        return self


class EndpointEngine(EngineBase):
    """A server that already runs; without a restart command its figures are descriptive only."""

    kind: Literal["endpoint"] = Field(description="which kind of engine this is")
    base_url: str = Field(
        pattern=r"^https?://", description="http:// or https:// address, without /v1"
    )
    restart_command: tuple[str, ...] | None = Field(
        default=None, description="program and arguments that restart the server before a run"
    )


EngineRecipe = Annotated[
    VllmEngine | TrtllmEngine | EmbeddedEngine | EndpointEngine, Field(discriminator="kind")
]


class RandomTokenPrompts(StrictModel):
    """Uniform random token ids in [min_token_id, max_token_id], the same in both arms."""

    source: Literal["random_tokens"] = Field(description="which source of prompts this is")
    min_token_id: int = Field(ge=0, description="lowest id drawn")
    max_token_id: int = Field(ge=1, description="highest id drawn; below the model's vocabulary")

    @model_validator(mode="after")
    def _ordered(self) -> "RandomTokenPrompts":
        if self.max_token_id <= self.min_token_id:
            raise ValueError(
                f"max_token_id: expected more than min_token_id {self.min_token_id}, "
                f"got {self.max_token_id}"
            )
        return self


class TokenFilePrompts(StrictModel):
    """Token-id lists from a JSON Lines file, one list of exactly isl_tokens ids a line."""

    source: Literal["token_file"] = Field(description="which source of prompts this is")
    path: str = Field(description="the file, relative to the recipe's folder")


Prompts = Annotated[RandomTokenPrompts | TokenFilePrompts, Field(discriminator="source")]


class WorkloadRecipe(StrictModel):
    """What is asked of an engine: equal requests, exact lengths, one arrival pattern."""

    description: str = Field(description="one line on what is asked")
    isl_tokens: int = Field(ge=1, description="input length of every request")
    osl_tokens: int = Field(
        ge=2, description="output length of every request; a rate needs two token times"
    )
    concurrency: int = Field(ge=1, description="requests in flight")
    num_requests: int = Field(ge=2, description="all requests, the dropped first wave included")
    arrival: Literal["burst", "closed"] = Field(
        description="burst: waves of `concurrency` together; closed: always that many in flight"
    )
    prompts: Prompts = Field(description="where the prompts' token ids come from")
    seed: int = Field(ge=0, description="of the random prompts")
    read_timeout_s: float = Field(default=120.0, gt=0, description="silence that counts as a stall")

    @model_validator(mode="after")
    def _waves(self) -> "WorkloadRecipe":
        if self.num_requests < 2 * self.concurrency:
            raise ValueError(
                f"num_requests: expected at least 2 x concurrency = {2 * self.concurrency} "
                f"(the first wave is dropped), got {self.num_requests}"
            )
        if self.arrival == "burst" and self.num_requests % self.concurrency:
            raise ValueError(
                f"num_requests: expected a multiple of concurrency {self.concurrency} "
                f"for arrival burst, got {self.num_requests}"
            )
        return self


class Threshold(StrictModel):
    """Limits on one metric; every limit given must hold for a PASS."""

    min_ratio_to_baseline: float | None = Field(
        default=None, gt=0, description="candidate / baseline, for metrics where higher is better"
    )
    max_ratio_to_baseline: float | None = Field(
        default=None, gt=0, description="candidate / baseline, for metrics where lower is better"
    )
    min_value: float | None = Field(
        default=None, gt=0, description="candidate's value, in the metric's unit; higher is better"
    )
    max_value: float | None = Field(
        default=None, gt=0, description="candidate's value, in the metric's unit; lower is better"
    )

    @model_validator(mode="after")
    def _some_limit(self) -> "Threshold":
        if not self.limits():
            raise ValueError("expected at least one limit, got none; nothing would be judged")
        return self

    def limits(self) -> dict[str, float]:
        """Return the limits that are set, by field name."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


class Hardware(StrictModel):
    """The hardware a gate is about; its figures mean nothing elsewhere."""

    gpu: str = Field(description="the GPU's name as NVML gives it, such as 'NVIDIA H200'")


class GateRecipe(StrictModel):
    """Candidate against baseline on one workload, with the limits that decide."""

    description: str = Field(description="one line on what is gated")
    candidate: str = Field(description="name of an engine recipe")
    baseline: str = Field(description="name of an engine recipe")
    workload: str = Field(description="name of a workload recipe")
    model: ModelSource | None = Field(default=None, description="replaces both engines' model")
    hardware: Hardware | None = Field(default=None, description="absent: any machine")
    rounds: int = Field(ge=1, description="one candidate run and one baseline run each")
    confidence: float = Field(default=0.95, gt=0.5, lt=1.0, description="of each one-sided bound")
    thresholds: dict[MetricName, Threshold] = Field(
        min_length=1, description="limits by metric name; every one must hold"
    )

    @field_validator("thresholds")
    @classmethod
    def _limits_fit_their_metrics(cls, thresholds: dict[str, Threshold]) -> dict[str, Threshold]:
        problems = [
            problem
            for name, threshold in thresholds.items()
            for problem in _threshold_problems(name, threshold)
        ]
        if problems:
            raise ValueError("\n".join(problems))
        return thresholds


def _threshold_problems(name: str, threshold: Threshold) -> list[str]:
    if name not in METRICS:
        nearest = difflib.get_close_matches(name, METRICS, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"metrics: {', '.join(METRICS)}"
        return [f"{name}: expected a metric, got {name!r}; {hint}"]
    right, wrong, better = ("max_", "min_", "lower")
    if METRICS[name].higher_is_better:
        right, wrong, better = ("min_", "max_", "higher")
    return [
        f"{name}.{limit}: expected a {right}* limit, as {better} is better, "
        f"got {limit}, which an improvement would fail; use {limit.replace(wrong, right)}"
        for limit in threshold.limits()
        if limit.startswith(wrong)
    ]
