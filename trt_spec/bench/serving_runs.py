"""`trt-spec bench --what serving`: the run's engine in this process, in Triton, and behind the OpenAI front."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trt_spec.atomic import terminate_as_interrupt
from trt_spec.bench.demo import PROMPTS
from trt_spec.clients.triton import TritonClient
from trt_spec.errors import MachineError
from trt_spec.report.console import Reporter
from trt_spec.run import REPOSITORIES_DIR, Run, load_engine
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.serve.openai.server import OpenAIServer
from trt_spec.serve.run import running_front, running_server, usable_ports
from trt_spec.triton.errortext import to_error
from trt_spec.triton.repository import emit

if TYPE_CHECKING:
    from trt_spec.bench.serving import Ask
    from trt_spec.runtime.engine import Engine

_OVERHEAD_PROMPTS = ("chat: explain", "copy: notice")


def serving(run: Run, reporter: Reporter) -> dict[str, Any]:
    """Overhead of one stream, and a load test, see `latency.serving`; the run's engine is built.

    To be run on a machine that does nothing else. Where cores are short, Linux shares them among sessions
    (sched_autogroup), and the server has one of its own: its arms then get more of the machine than this process's.

    Returns:
        `overhead`: by "off" and (where the run drafts) "on" what `measure_overhead` returns; `load`: what
            `measure_load` returns; and what they were measured with.
    """
    from trt_spec.bench.serving import DEFAULT_NUM_ROUNDS, DEFAULT_NUM_TOKENS

    engine = load_engine(run, reporter)
    repository = emit(run.config, run.engine_dir, REPOSITORIES_DIR)
    front = OpenAIServer(0)
    with (
        terminate_as_interrupt(),
        running_server(repository, usable_ports(run.config, reporter), reporter) as server,
        running_front(front, run.config, engine.tokenizer, server),
        TritonClient(server.http_url, server.grpc_url, run.config.serve.model_name) as client,
    ):
        overhead = _measure_overhead(run, engine, client, front, reporter)
        load = _measure_load(engine, client, reporter)
    return {
        "run": run.config.name,
        "dtype": run.config.target.dtype,
        "method": run.config.speculation.method,
        "num_tokens": DEFAULT_NUM_TOKENS,
        "num_rounds": DEFAULT_NUM_ROUNDS,
        "num_prompts": len(_OVERHEAD_PROMPTS),
        "overhead": overhead,
        "load": load,
    }


def _measure_overhead(
    run: Run, engine: Engine, client: TritonClient, front: OpenAIServer, reporter: Reporter
) -> dict[str, Any]:
    from trt_spec.bench.serving import measure_overhead

    prompts = [_chat_ids(engine, prompt.message) for prompt in PROMPTS if prompt.name in _OVERHEAD_PROMPTS]
    overhead = {}
    for speculation in (False,) if run.config.speculation.method == "none" else (False, True):
        word = "on" if speculation else "off"
        arms = {
            "engine": from_engine(engine, speculation),
            "Triton, gRPC": from_triton(client, speculation),
            "OpenAI front": from_front(front, run.config.serve.model_name, speculation),
        }
        with reporter.progress(f"timing one stream from each in turns, speculation {word}") as advance:
            overhead[word] = measure_overhead(arms, prompts, advance=lambda part, show=advance: show(part, None))
    return overhead


def _measure_load(engine: Engine, client: TritonClient, reporter: Reporter) -> list[dict[str, Any]]:
    from trt_spec.bench.serving import measure_load

    prompts = [_chat_ids(engine, prompt.message) for prompt in PROMPTS]
    with reporter.progress("many clients at once") as advance:
        return measure_load(from_triton(client, True), prompts, advance=lambda part: advance(part, None))


def _chat_ids(engine: Engine, message: str) -> list[int]:
    text = engine.tokenizer.apply_chat_template([{"role": "user", "content": message}])
    return engine.tokenizer.encode(text, add_special_tokens=False)


# --- where a stream comes from; each yields the number of tokens of every chunk ---


def from_engine(engine: Engine, speculation: bool) -> Ask:
    """The engine itself, stepped by the caller's thread."""

    def ask(prompt: Sequence[int], num_tokens: int) -> Iterator[int]:
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        engine.add(Request("bench", tuple(prompt), params, speculation))
        while engine.has_work:
            for chunk in engine.step():
                if chunk.error is not None:
                    raise chunk.error
                yield len(chunk.token_ids)

    return ask


def from_triton(client: TritonClient, speculation: bool) -> Ask:
    """The served model, streamed over gRPC."""

    def ask(prompt: Sequence[int], num_tokens: int) -> Iterator[int]:
        for chunk in client.stream(
            prompt, max_tokens=num_tokens, ignore_eos=True, temperature=0.0, speculation=speculation
        ):
            yield len(chunk.token_ids)

    return ask


def from_front(front: OpenAIServer, model_name: str, speculation: bool) -> Ask:
    """The OpenAI front, streamed as server-sent events over one connection; it tells its usage in every event."""
    connection = http.client.HTTPConnection(front.host, front.port, timeout=600)

    def ask(prompt: Sequence[int], num_tokens: int) -> Iterator[int]:
        body = {
            "model": model_name,
            "prompt": list(prompt),
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "speculation": speculation,
            "stream": True,
            "stream_options": {"continuous_usage_stats": True},
        }
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response, num_seen = connection.getresponse(), 0
        if response.status != 200:
            raise MachineError("the OpenAI front refused", got=response.read().decode(errors="replace"))
        while (line := response.readline()) != b"data: [DONE]\n":
            if not line:
                raise MachineError("the OpenAI front's stream ended early", where=front.url)
            if not line.startswith(b"data:"):
                continue
            event = json.loads(line[len(b"data:") :])
            if "error" in event:
                raise to_error(event["error"]["message"])
            yield event["usage"]["completion_tokens"] - num_seen
            num_seen = event["usage"]["completion_tokens"]
        response.read()

    return ask
