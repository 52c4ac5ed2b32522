"""A stand-in for TensorRT-LLM's LLM API: its names and signatures, and a made-up model.

Names are those of tests/data/llmapi_names.json; anything else is refused, as the library does. The "model" is a
function of the last two tokens, so that an answer can be computed by hand; it accepts drafts of 0, 1, 2, … in turn.
Environment: TRTLLM_STAND_IN_VERSION, TRTLLM_STAND_IN_STEP_S (seconds per step), TRTLLM_STAND_IN_FAIL (load).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from dataclasses import dataclass, field, make_dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

__version__ = os.environ.get("TRTLLM_STAND_IN_VERSION", "1.2.1")
NAMES = json.loads((Path(__file__).resolve().parents[2] / "data" / "llmapi_names.json").read_text())
SamplingParams = make_dataclass("SamplingParams", [(name, object, None) for name in NAMES["sampling_params"]])
VOCAB_SIZE = 320
opened: list[LLM] = []  # by tests in this process


def next_token(previous: int, last: int) -> int:
    """The most probable token: between 3 and 200, so never special."""
    return 3 + (31 * previous + 17 * last + 5) % 198


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class CompletionOutput:
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: object = None
    request_perf_metrics: object = None


class RequestOutput:
    """Grows while it is iterated."""

    def __init__(self, llm: LLM, prompt: list[int], params: object) -> None:
        self.outputs, self.finished = [CompletionOutput()], False
        self._llm, self._prompt, self._params, self._is_aborted = llm, prompt, params, False
        self._random = random.Random(params.seed)
        self._num_steps = self._num_accepted = 0

    def abort(self) -> None:
        self._is_aborted = True

    async def __aiter__(self):
        while not self.finished:
            await asyncio.sleep(self._llm.step_s)
            self._step()
            yield self

    def _step(self) -> None:
        output = self.outputs[0]
        if self._is_aborted:
            return self._finish("cancelled")
        if self._llm.failure is not None:
            raise self._llm.failure
        num_accepted = self._num_steps % (self._llm.draft_len + 1)
        self._num_steps += 1
        for _ in range(num_accepted + 1):
            token = self._draw()
            output.token_ids.append(token)
            if self._params.logprobs is not None:
                output.logprobs.append({token: Logprob(-0.5 - token / 1000)})
            if self._ends(token):
                return self._finish("stop")
            if len(output.token_ids) >= self._params.max_tokens:
                return self._finish("length")
        self._num_accepted += num_accepted
        return None

    def _draw(self) -> int:
        previous, last = [0, *self._prompt, *self.outputs[0].token_ids][-2:]
        greedy = next_token(previous, last)
        is_greedy = self._params.top_k == 1
        token = greedy if is_greedy else 3 + self._random.randrange(198)
        script = self._llm.script
        return script[len(self.outputs[0].token_ids)] if len(self.outputs[0].token_ids) < len(script) else token

    def _ends(self, token: int) -> bool:
        if len(self.outputs[0].token_ids) < (self._params.min_tokens or 0):
            return False
        return token in (self._params.stop_token_ids or ()) or (
            not self._params.ignore_eos and token == self._params.end_id
        )

    def _finish(self, reason: str) -> None:
        self.finished = True
        self.outputs[0].finish_reason = reason
        if self._params.return_perf_metrics:
            drafted = self._num_steps * self._llm.draft_len
            self.outputs[0].request_perf_metrics = SimpleNamespace(
                speculative_decoding=SimpleNamespace(
                    acceptance_rate=self._num_accepted / drafted if drafted else 0.0,
                    total_accepted_draft_tokens=self._num_accepted,
                    total_draft_tokens=drafted,
                ),
                timing_metrics=SimpleNamespace(
                    arrival_time=timedelta(seconds=5), first_scheduled_time=timedelta(seconds=5, microseconds=7)
                ),
                kv_cache_metrics=SimpleNamespace(
                    num_reused_blocks=1,
                    num_missed_blocks=2,
                    num_new_allocated_blocks=3,
                    num_total_allocated_blocks=4,
                    kv_cache_hit_rate=0.25,
                ),
            )


class LLM:
    """Checks its arguments by name, as the library does."""

    def __init__(self, **arguments: object) -> None:
        if os.environ.get("TRTLLM_STAND_IN_FAIL"):
            raise RuntimeError(os.environ["TRTLLM_STAND_IN_FAIL"])
        _refuse_others(arguments, names_of("llm_args"), "LLM")
        _refuse_others(arguments.get("kv_cache_config", {}), names_of("kv_cache_config"), "KvCacheConfig")
        assert (Path(arguments["model"]) / "config.json").is_file()
        speculative = arguments.get("speculative_config")
        self.arguments, self.is_open, self.thread = arguments, True, threading.current_thread().name
        self.draft_len = (speculative.max_draft_len or speculative.num_nextn_predict_layers) if speculative else 0
        self.step_s = float(os.environ.get("TRTLLM_STAND_IN_STEP_S", "0"))
        self.script: list[int] = []
        self.failure: Exception | None = None
        self.requests: list[tuple[list[int], object]] = []
        self.outputs: list[RequestOutput] = []
        opened.append(self)

    def generate_async(
        self, inputs, sampling_params=None, lora_request=None, prompt_adapter_request=None, streaming=False
    ):
        asyncio.get_running_loop()  # the library's results are bound to the loop of the caller
        assert streaming
        self.requests.append((inputs["prompt_token_ids"], sampling_params))
        self.outputs.append(RequestOutput(self, inputs["prompt_token_ids"], sampling_params))
        return self.outputs[-1]

    def shutdown(self) -> None:
        self.is_open = False


def names_of(section: str) -> list[str]:
    """Fields of a section in this version."""
    other = NAMES[f"{section}_of"].get(__version__, {"lacks": [], "adds": []})
    return sorted({*NAMES[section], *other["adds"]} - {*other["lacks"]})


def _refuse_others(given: dict, known: list[str], what: str) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"{what}: extra fields not permitted: {unknown}")


def decoding_config(data: dict) -> SimpleNamespace:
    """DecodingBaseConfig.from_dict of this version."""
    line = {"1.3.0rc29": "1.3.0rc22", "1.2.1": "1.2.0"}.get(__version__, __version__)
    data = dict(data)
    kind = data.pop("decoding_type")
    if kind not in NAMES["yaml_decoding_types"][line]:
        raise ValueError(f"Invalid decoding type: {kind}")
    known = NAMES["classes"][line][kind]
    if "speculative_model" in known and "speculative_model_dir" in data:
        data["speculative_model"] = data.pop("speculative_model_dir")
    _refuse_others(data, known, kind)
    return SimpleNamespace(**{**dict.fromkeys(known), "num_nextn_predict_layers": None, **data})
