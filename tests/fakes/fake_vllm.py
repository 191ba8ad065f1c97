"""A `vllm` that serves canned tokens, in the formats of vLLM 0.25.1, and misbehaves on request.

``install_fake_vllm(folder)`` writes a package `vllm` there; with the returned environment any
interpreter runs it as `python -m vllm.entrypoints.cli.main serve MODEL ...`. Variables:

FAKE_VLLM_MISBEHAVIOUR: die | never-ready | completions-500 | port-taken-once | port-taken-always |
  daemon | facts-dropped | version-dropped
FAKE_VLLM_VERSION, FAKE_VLLM_KV_CACHE_DTYPE: what it claims to be, whatever its arguments say
FAKE_VLLM_STATE: a folder for marks that outlive a start (daemon.pid, port-was-taken)
"""

import argparse
import errno
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CACHE_CONFIG_LABELS = {
    "_block_size_resolved": "True",
    "block_size": "16",
    "cache_dtype": "auto",
    "calculate_kv_scales": "False",
    "enable_prefix_caching": "True",
    "engine": "0",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_max_concurrency": "59.4",
    "kv_cache_memory_bytes": "None",
    "kv_cache_size_tokens": "1948208",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "auto",
    "num_cpu_blocks": "None",
    "num_gpu_blocks": "121763",
    "num_gpu_blocks_override": "None",
    "prefix_caching_hash_algo": "sha256",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "user_specified_block_size": "False",
    "user_specified_mamba_block_size": "False",
}

ENGINE_CONFIG = (
    "Initializing a V1 LLM engine (v{version}) with config: "
    "model={model!r}, speculative_config=None, tokenizer={model!r}, skip_tokenizer_init=False, "
    "tokenizer_mode=auto, revision=None, tokenizer_revision=None, trust_remote_code=False, "
    "dtype=torch.bfloat16, max_seq_len=32768, download_dir=None, load_format=auto, "
    "tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, "
    "decode_context_parallel_size=1, dcp_comm_backend=ag_rs, disable_custom_all_reduce=False, "
    "quantization={quantization}, quantization_config=None, enforce_eager=False, "
    "enable_return_routed_experts=False, kv_cache_dtype={kv_cache_dtype}, device_config=cuda, "
    "structured_outputs_config=StructuredOutputsConfig(backend='auto', "
    "disable_any_whitespace=False, disable_additional_properties=False, reasoning_parser='', "
    "reasoning_parser_plugin='', enable_in_reasoning=False), "
    "observability_config=ObservabilityConfig(show_hidden_metrics_for_version=None, "
    "otlp_traces_endpoint=None, collect_detailed_traces=None), seed=0, served_model_name=qperf, "
    "enable_prefix_caching={prefix_caching}, enable_chunked_prefill=True, pooler_config=None, "
    "compilation_config={{'mode': <CompilationMode.VLLM_COMPILE: 3>, 'debug_dump_path': None, "
    "'cache_dir': '', 'compile_cache_save_format': 'binary', 'backend': 'inductor'}}, "
    "kernel_config=KernelConfig(moe_backend='auto')"
)


def install_fake_vllm(folder: Path) -> dict[str, str]:
    """Write the package into ``folder``; return the variables that make an interpreter find it."""
    package = folder / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    for parent in (folder / "vllm", folder / "vllm" / "entrypoints", package):
        (parent / "__init__.py").touch()
    (package / "main.py").write_text("from fakes.fake_vllm import main\n\nmain()\n")
    tests_dir = Path(__file__).resolve().parent.parent
    return {"PYTHONPATH": f"{folder}{os.pathsep}{tests_dir}", "FAKE_VLLM_STATE": str(folder)}


def engine_config_line(
    *,
    version: str = "0.25.1",
    model: str = "/models/m",
    quantization: str = "fp8",
    kv_cache_dtype: str = "fp8",
    prefix_caching: bool = False,
) -> str:
    """Return the line EngineCore logs, without a line end."""
    message = ENGINE_CONFIG.format(
        version=version,
        model=model,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        prefix_caching=prefix_caching,
    )
    return f"(EngineCore pid=4242) INFO 12-01 10:20:30 [core.py:115] {message}"


def cache_config_metric(**labels: str) -> str:
    """Return the lines of GET /metrics about the KV cache."""
    pairs = ",".join(f'{key}="{value}"' for key, value in (CACHE_CONFIG_LABELS | labels).items())
    name = "vllm:cache_config_info"
    return (
        "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="qperf"} 0.0\n'
        f"# HELP {name} Information of the LLMEngine CacheConfig\n"
        f"# TYPE {name} gauge\n"
        f"{name}{{{pairs}}} 1.0\n"
    )


def main() -> None:
    """Serve until killed, or misbehave."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--quantization")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--no-enable-prefix-caching", action="store_true")
    parser.add_argument("--disable-log-stats", action="store_true")
    args = parser.parse_args()
    misbehaviour = os.environ.get("FAKE_VLLM_MISBEHAVIOUR", "")
    log("APIServer", "api_utils.py:273", f"non-default args: {vars(args)}")
    _misbehave_at_start(misbehaviour)
    config = {
        "version": os.environ.get("FAKE_VLLM_VERSION", "0.25.1"),
        "quantization": str(args.quantization),
        "kv_cache_dtype": os.environ.get("FAKE_VLLM_KV_CACHE_DTYPE", args.kv_cache_dtype),
    }
    prefix_caching = not args.no_enable_prefix_caching
    if misbehaviour != "facts-dropped":
        print(
            engine_config_line(model=args.model, prefix_caching=prefix_caching, **config),
            flush=True,
        )
    metrics = cache_config_metric(
        cache_dtype=config["kv_cache_dtype"], enable_prefix_caching=str(prefix_caching)
    )
    _serve(args, misbehaviour, version=config["version"], metrics=metrics)


def log(process: str, source: str, message: str) -> None:
    """Print a line as vLLM's logger does with output going to a file."""
    print(f"({process} pid={os.getpid()}) INFO 12-01 10:20:30 [{source}] {message}", flush=True)


def _misbehave_at_start(misbehaviour: str) -> None:
    state = Path(os.environ["FAKE_VLLM_STATE"])
    if misbehaviour == "die":
        for number in range(1, 61):
            log("EngineCore", "core.py:900", f"line {number} of 60")
        sys.exit(7)
    if misbehaviour == "never-ready":
        log("EngineCore", "gpu_model_runner.py:4000", "Starting to load model")
        while True:
            time.sleep(60)
    if misbehaviour == "port-taken-once" and not (state / "port-was-taken").exists():
        (state / "port-was-taken").touch()
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    if misbehaviour == "port-taken-always":
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    if misbehaviour == "daemon":
        # A new session, output elsewhere: what a worker that wants to outlive its parent does.
        daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (state / "daemon.pid").write_text(str(daemon.pid))


def _serve(args: argparse.Namespace, misbehaviour: str, *, version: str, metrics: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if misbehaviour == "version-dropped" and self.path == "/version":
                return
            card = {"id": args.served_model_name, "object": "model", "root": args.model}
            bodies = {
                "/health": "",
                "/version": json.dumps({"version": version}),
                "/v1/models": json.dumps({"object": "list", "data": [card]}),
            }
            if misbehaviour != "facts-dropped" and not args.disable_log_stats:
                bodies["/metrics"] = metrics
            self._answer(200, bodies[self.path]) if self.path in bodies else self._answer(404, "")

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if misbehaviour == "completions-500":
                error = {"message": "EngineCore encountered an issue.", "code": 500}
                self._answer(500, json.dumps({"error": error}))
                return
            num_prompt, num_out = len(request["prompt"]), request["max_tokens"]
            usage = {
                "prompt_tokens": num_prompt,
                "completion_tokens": num_out,
                "total_tokens": num_prompt + num_out,
            }
            choice = {"index": 0, "text": " a" * num_out, "finish_reason": "length"}
            self._answer(200, json.dumps({"choices": [choice], "usage": usage}))

        def _answer(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            log("APIServer", "httptools_impl.py:1", format % args)

    with ThreadingHTTPServer((args.host, args.port), Handler) as server:
        log("APIServer", "launcher.py:37", f"Starting vLLM server on {args.host}:{args.port}")
        server.serve_forever()
