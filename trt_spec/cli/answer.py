"""One prompt in, one answer out: from the built engine in this process, or from a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trt_spec.clients import triton_wire as wire
from trt_spec.clients.client import Params
from trt_spec.clients.prompts import Prompt, chat_ids
from trt_spec.clients.triton import ServedClient
from trt_spec.errors import RequestError
from trt_spec.report.console import Reporter
from trt_spec.run import Run, find_tokenizer, load_engine
from trt_spec.runtime.request import Chunk
from trt_spec.triton import codec
from trt_spec.triton.contract import INPUT_BY_NAME, NUMPY_TYPES


def read_prompt(run: Run, text: str | None, input_ids: str | None, *, is_chat: bool) -> str | list[int]:
    """The prompt of a command line: text, or ids.

    Args:
        run: for the tokenizer and chat template, where `is_chat`.
        text: the prompt, or None.
        input_ids: ids separated by commas or spaces, or None.
        is_chat: wrap the text in the target's chat template, as one message of the user.

    Raises:
        RequestError: not exactly one prompt, or ids that are none.
        CheckpointError: no tokenizer or no chat template is to be found.
    """
    if (text is None) == (input_ids is None):
        raise RequestError("one prompt is needed", expected="either --prompt or --input-ids")
    if input_ids is not None:
        if is_chat:
            raise RequestError("--chat wraps text, not ids", where="--chat", remedy="give --prompt")
        try:
            return [int(item) for item in input_ids.replace(",", " ").split()]
        except ValueError:
            raise RequestError("these are no token ids", where="--input-ids", got=input_ids) from None
    if not is_chat:
        return text
    return list(chat_ids(find_tokenizer(run), text))


def read_stdin() -> str:
    """The text on stdin.

    Raises:
        RequestError: it is not UTF-8.
    """
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise RequestError("the text on stdin is not UTF-8", where="--prompt -", got=str(error)) from None


def generate_here(
    run: Run,
    prompt: str | Sequence[int],
    parameters: Mapping[str, Any],
    reporter: Reporter,
    acceptance: Sequence[float] | None = None,
) -> Chunk:
    """Streams one answer from the built engine, loaded into this process.

    The request goes through the same checks as one to the server.

    Args:
        acceptance: coins by draft position in place of the acceptance rule; the answer then means nothing.

    Raises:
        CheckpointError: no engine is built.
        ConfigError: it was built from another config.
        RequestError: the engine cannot serve this request.
    """
    values = wire.request_values(prompt, parameters)
    arrays = {name: np.array(items, NUMPY_TYPES[INPUT_BY_NAME[name].data_type]) for name, items in values.items()}
    served = codec.decode_request(arrays, {})
    engine = load_engine(run, reporter)
    from trt_spec.clients.engine import SteppedClient
    from trt_spec.runtime.synthetic import synthetic_acceptance

    with synthetic_acceptance(engine, acceptance):
        ids = served.input_ids if served.input_ids is not None else engine.tokenizer.encode(served.text)
        if acceptance is not None:
            reporter.warn("drafts stand by coin: what follows is not the target's text, and means nothing")
        echo = ""
        if not served.exclude_input_from_output:
            echo = served.text if served.text is not None else engine.tokenizer.decode(list(ids))
        params = Params(served.params, served.speculation, served.max_draft_len)
        chunks = SteppedClient(engine).stream(Prompt("cli", input_ids=tuple(ids)), params)
        return _collect(chunks, reporter.stream, echo)


def generate_there(
    run: Run, url: str, prompt: str | Sequence[int], parameters: Mapping[str, Any], reporter: Reporter
) -> Chunk:
    """Streams one answer from a server: over gRPC where `url` starts with grpc://, else over HTTP.

    Raises:
        RequestError, OverloadedError, MachineError: what the server said, or that there is none.
    """
    with ServedClient(url, run.config.serve.model_name) as client:
        return _collect(client.send(prompt, **parameters), reporter.stream)


def _collect(chunks: Iterable[Chunk], on_delta: Callable[[str], None], echo: str = "") -> Chunk:
    """All chunks as one; each delta is shown when it comes, `echo` before the first."""
    seen = []
    for chunk in chunks:
        on_delta(chunk.text if seen else echo + chunk.text)
        seen.append(chunk)
    on_delta("\n")
    return codec.merge(seen)


def outputs(chunk: Chunk, *, has_perf_metrics: bool) -> Mapping[str, Any]:
    """One whole answer as `generate --json` prints it: the outputs of the serving contract, and what follows from them.

    Added to the contract: `mean_acceptance_length` (tokens per drafted step), `ttft_ms` and `tpot_ms` (by the engine's
    clock; TPOT is None below two tokens). Counts and times are left out without `has_perf_metrics`.
    """
    done = chunk.completion
    assert done is not None
    shown = {"text_output": chunk.text, "output_ids": chunk.token_ids, "token_origins": chunk.token_origins}
    if chunk.logprobs is not None:
        shown |= {"logprobs": chunk.logprobs, "cumulative_logprob": done.cumulative_logprob}
    shown |= {name: getattr(done, name) for name in _ALWAYS}
    if has_perf_metrics:
        decode_ms = (done.last_token_time_ns - done.first_token_time_ns) / 1e6
        shown |= {name: getattr(done, name) for name in _PERF_METRICS}
        shown["ttft_ms"] = (done.first_token_time_ns - done.arrival_time_ns) / 1e6
        shown["tpot_ms"] = decode_ms / (done.num_output_tokens - 1) if done.num_output_tokens > 1 else None
    return shown


_ALWAYS = ("num_input_tokens", "num_output_tokens", "finish_reason", "stop_reason")
_PERF_METRICS = (
    "num_drafts",
    "total_draft_tokens",
    "total_accepted_draft_tokens",
    "accepted_per_position",
    "acceptance_rate",
    "mean_acceptance_length",
    "arrival_time_ns",
    "first_scheduled_time_ns",
    "first_token_time_ns",
    "last_token_time_ns",
)
