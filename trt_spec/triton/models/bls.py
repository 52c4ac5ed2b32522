"""`tensorrt_llm_bls` of the inflight_batcher layout: one answer to a prompt, with drafts from an engine of their own.

With a draft model every request is drafted for, unless it sends num_draft_tokens 0; see triton.trtllm.external_drafts
for the loop. Without one it is `ensemble` for clients that want one whole answer.

Many requests run in the engines at a time. How depends on the engine, because of two things in Triton's Python backend:
what a decoupled model answers to BLS goes through a map without a lock in the server, and in the stub through one whose
lock is held while the interpreter's is awaited. Several threads that ask a decoupled model have crashed server 2.51 and
its stub, or waited for ever. So a thread of a pool serves each request where the engine answers once, as it does with a
draft model; where it is decoupled there are several instances of this model, each with one request at a time.
"""

from __future__ import annotations

import functools
import json
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import CapabilityError, MachineError, RequestError
from trt_spec.triton import repository
from trt_spec.triton.errortext import to_error
from trt_spec.triton.isolation import arrays_of, respond, send
from trt_spec.triton.served_request import seed_of
from trt_spec.triton.trtllm import engine_text, external_drafts, inflight_batcher

Arrays = dict[str, np.ndarray]
TO_PREPROCESSING, FROM_PREPROCESSING, TO_ENGINE = inflight_batcher.ensemble_maps()
NOT_WITH_DRAFTS = ("return_log_probs", "return_context_logits", "return_generation_logits", "use_draft_logits")
OTHER_MODELS = ("image_input", "image_bytes_input", "image_url_input", "video_bytes_input")


class TritonPythonModel:
    """Triton looks for this class by name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Reads which engines there are."""
        config, parameters = json.loads(args["model_config"]), repository.parameters_of(args)
        self.target = parameters["tensorrt_llm_model_name"]
        self.draft = parameters.get("tensorrt_llm_draft_model_name", "")
        self.max_draft_len = int(parameters.get("max_draft_len", "0"))
        self.serves_sampling = parameters["serves_sampling"] == "true"
        self.tokenizer = Tokenizer.load(parameters["tokenizer_dir"])
        names = {item["name"] for item in config["input"]}
        self.seed_name = "seed" if "seed" in names else "random_seed"  # by version of TensorRT-LLM
        self.min_name = "min_tokens" if "min_tokens" in names else "min_length"
        self.outputs = {item["name"] for item in config["output"]}
        self.is_decoupled = parameters["engine_is_decoupled"] == "true"
        self.pool = ThreadPoolExecutor(int(parameters["max_requests"]), thread_name_prefix="bls")
        self.has_warned = False  # that the draft failed
        self.sending = threading.Lock()  # two threads that send at once have crashed the stub

    def execute(self, requests: list[Any]) -> None:
        """Takes requests in; their responses come from the pool, or from here where the engine is decoupled."""
        for request in requests:
            if self.is_decoupled:
                self._serve(request, request.get_response_sender())
            else:
                self.pool.submit(self._serve, request, request.get_response_sender())

    def finalize(self) -> None:
        """Waits for the requests in flight."""
        self.pool.shutdown()

    def _serve(self, request: Any, sender: Any) -> None:
        def answer(inputs: Arrays) -> Arrays:
            outputs = self._answer(inputs, request)
            return {name: array for name, array in outputs.items() if name in self.outputs}

        response = respond(request, answer, pb_utils)
        with self.sending:
            send(sender, response, pb_utils)

    def _answer(self, arrays: Arrays, request: Any) -> Arrays:
        request_id = request.request_id()
        num_draft_tokens = self._num_draft_tokens(arrays)
        self._refuse(arrays, is_drafted=num_draft_tokens > 0)
        prepared = _call(
            "preprocessing",
            {TO_PREPROCESSING[name]: array for name, array in arrays.items() if name in TO_PREPROCESSING},
            list(FROM_PREPROCESSING),
            request_id,
        )
        engine = {FROM_PREPROCESSING[name]: array for name, array in prepared.items()}
        engine |= {TO_ENGINE[name]: _with_axis(array) for name, array in arrays.items() if name in TO_ENGINE}
        if num_draft_tokens:
            return self._drafted(engine, num_draft_tokens, request_id)
        engine.setdefault(self.seed_name, _seed(secrets.randbits(64)))  # by itself every request has the same one
        names = sorted(self.outputs - {"text_output"} | _IDS)
        call = functools.partial(_call_decoupled, request) if self.is_decoupled else _call
        outputs = call(self.target, engine, names, request_id)
        return outputs | {"text_output": self._text(outputs["output_ids"], outputs["sequence_length"])}

    def _num_draft_tokens(self, arrays: Arrays) -> int:
        asked = int(arrays["num_draft_tokens"].flat[0]) if "num_draft_tokens" in arrays else self.max_draft_len
        if not 0 <= asked <= self.max_draft_len:
            raise RequestError(
                "invalid request parameter num_draft_tokens",
                where="num_draft_tokens",
                got=asked,
                expected=f"from 0 to {self.max_draft_len}, what the engines were built for",
            )
        return asked

    def _refuse(self, arrays: Arrays, *, is_drafted: bool) -> None:
        if len(arrays["text_input"]) != 1:
            raise CapabilityError(
                "this model takes one prompt a request",
                where="text_input",
                got=len(arrays["text_input"]),
                remedy="send one request for each prompt; the engine batches them",
            )
        names = [name for name in OTHER_MODELS if name in arrays]
        names += [name for name in (NOT_WITH_DRAFTS if is_drafted else ()) if name in arrays and arrays[name].any()]
        if names:
            raise CapabilityError(
                f"request parameter {names[0]} is not supported" + (" with drafts" if is_drafted else ""),
                where=names[0],
                remedy="leave it out" + (", or send num_draft_tokens 0" if is_drafted else ""),
            )
        if not self.serves_sampling and (name := _asks_for_sampling(arrays)):
            raise RequestError(
                f"invalid request parameter {name}",
                where=name,
                got=float(arrays[name].flat[0]),
                expected="greedy decoding: this engine takes the best token whatever a request asks for",
                remedy="leave it out, or send top_k 1",
            )
        if "stream" in arrays and arrays["stream"].any():
            remedy = "leave it out" if self.draft else "stream from the model ensemble"
            raise RequestError("this model answers once", where="stream", remedy=remedy)

    def _drafted(self, engine: Arrays, num_draft_tokens: int, request_id: str) -> Arrays:
        """The rounds of draft and target, and the outputs that they add up to."""
        given = engine.pop(self.seed_name, None)
        seed = secrets.randbits(64) if given is None else int(given.flat[0])
        wants_metrics = bool(engine.pop("return_perf_metrics", np.array([False])).any())
        prompt = engine["input_ids"][0].tolist()
        min_tokens = int(engine.pop(self.min_name, np.array([0])).flat[0])

        def ask(model: str, ids: list[int], count: int, **others: np.ndarray) -> list[int]:
            inputs = engine | {
                "input_ids": np.array([ids], np.int32),
                "input_lengths": np.array([[len(ids)]], np.int32),
                "request_output_len": np.array([[count]], np.int32),
                "exclude_input_in_output": np.array([[True]]),
                **others,
            }
            found = _call(model, inputs, list(_IDS), request_id)
            return found["output_ids"][0][0][: int(found["sequence_length"].flat[0])].tolist()

        def at_least(count: int) -> Arrays:
            return {self.min_name: np.array([[count]], np.int32)}

        def draft(ids: list[int], count: int, number: int) -> list[int]:
            # The best token is the likeliest to be the one that the target will sample; no end before the draft's own.
            return ask(self.draft, ids, count, runtime_top_k=np.array([[1]], np.int32), **at_least(count))

        def verify(ids: list[int], drafted: list[int], number: int) -> list[int]:
            others = {self.seed_name: _seed(seed_of(seed, number))}
            if drafted:
                others["draft_input_ids"] = np.array([drafted], np.int32)
            missing = min_tokens - (len(ids) - len(prompt))
            if missing > 0:
                others |= at_least(min(missing, len(drafted) + 1))
            return ask(self.target, ids, len(drafted) + 1, **others)

        done = external_drafts.generate(
            prompt,
            int(engine["request_output_len"].flat[0]),
            num_draft_tokens,
            draft,
            verify,
            int(engine["end_id"].flat[0]),
            engine_text.words_of(engine["stop_words_list"][0]),
            self.tokenizer.vocab_size,
        )
        if done.draft_error is not None and not self.has_warned:
            self.has_warned = True
            error = f"{type(done.draft_error).__name__}: {done.draft_error}"
            pb_utils.Logger.log_warn(f"trt_spec: {self.draft} failed, its requests go on without drafts: {error}")
        length = len(done.token_ids)
        outputs = {"text_output": self._text(np.array([[done.token_ids]], np.int32), np.array([[length]]))}
        counts: dict[str, Any] = {"num_input_tokens": len(prompt), "num_output_tokens": length}
        if wants_metrics:
            counts |= {
                "acceptance_rate": done.acceptance_rate or 0.0,
                "total_accepted_draft_tokens": done.num_accepted_tokens,
                "total_draft_tokens": done.num_draft_tokens,
            }
        for name, value in counts.items():
            outputs[name] = np.array([[value]], np.float32 if isinstance(value, float) else np.int32)
        return outputs

    def _text(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return engine_text.postprocess(ids, lengths, self.tokenizer)


_IDS = {"output_ids", "sequence_length"}


def _asks_for_sampling(arrays: Arrays) -> str:
    """The parameter by which a request asks for more than the best token; empty where none does."""
    if "top_k" in arrays and arrays["top_k"].flat[0] == 1:
        return ""
    asked = {
        "top_k": lambda value: value > 1,
        "top_p": lambda value: 0 < value < 1,
        "temperature": lambda value: value > 0,
    }
    return next((name for name, holds in asked.items() if name in arrays and holds(arrays[name].flat[0])), "")


def _with_axis(array: np.ndarray) -> np.ndarray:
    """Inputs that are declared as scalars come without their own axis; the engine's model takes it off itself."""
    return array[:, None] if array.ndim == 1 else array


def _seed(value: int) -> np.ndarray:
    return np.array([[value]], np.uint64)


def _call(model: str, inputs: Arrays, outputs: list[str], request_id: str) -> Arrays:
    """What another model answers, which answers once."""
    return _arrays(_inner(model, inputs, outputs, request_id).exec())


def _call_decoupled(request: Any, model: str, inputs: Arrays, outputs: list[str], request_id: str) -> Arrays:
    """The only answer that holds tensors of a model that may send several.

    The answers are given up after a round trip about the client's `request`, which queues behind what they leave for
    the stub to clean up: cleaned up after them it would take a lock that the next request's answers need.
    """
    answers = _inner(model, inputs, outputs, request_id).exec(decoupled=True)
    try:
        parts = [found for response in answers if (found := _arrays(response))]
    finally:
        request.is_cancelled()
    if len(parts) != 1:
        raise MachineError(f"the model {model} sent {len(parts)} answers", expected=1)
    return parts[0]


def _inner(model: str, inputs: Arrays, outputs: list[str], request_id: str) -> Any:
    return pb_utils.InferenceRequest(
        model_name=model,
        request_id=request_id,
        requested_output_names=outputs,
        inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
    )


def _arrays(response: Any) -> Arrays:
    if response.has_error():
        raise to_error(response.error().message())  # ours say what they are; an engine's own is the machine's
    return arrays_of(response.output_tensors())
