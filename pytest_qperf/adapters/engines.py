"""Which adapter serves which kind of engine."""

from pytest_qperf.adapters.engine_embedded import EmbeddedAdapter
from pytest_qperf.adapters.engine_endpoint import EndpointAdapter
from pytest_qperf.adapters.engine_trtllm import TrtllmAdapter
from pytest_qperf.adapters.engine_vllm import VllmAdapter
from pytest_qperf.core.artifacts import NamedEngine

Adapter = VllmAdapter | TrtllmAdapter | EmbeddedAdapter | EndpointAdapter


def adapter_for(engine: NamedEngine) -> Adapter:
    """Return the adapter of the engine's kind."""
    match engine.recipe.kind:
        case "vllm":
            return VllmAdapter()
        case "trtllm":
            return TrtllmAdapter()
        case "embedded":
            return EmbeddedAdapter()
        case "endpoint":
            return EndpointAdapter()
