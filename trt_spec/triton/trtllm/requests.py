"""What requests a TensorRT-LLM engine can serve, and how they are said to it. Pure; the library is not imported.

A parameter that the engine would ignore is refused by name: the sources and documents of each version say which ones
its sampler applies. What they leave open is refused too, and marked as inferred below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trt_spec.config import versions
from trt_spec.errors import CapabilityError, RequestError
from trt_spec.methods import ACCEPTANCE
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.runtime.stats import EngineStats
from trt_spec.triton.contract import PREFIX

LATE = ("1.3-late", "1.4")
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_OFF = SamplingParams()


@dataclass(frozen=True)
class LlmEngine:
    """What has to be known of an engine to check a request and to word it.

    Attributes:
        line: of versions of TensorRT-LLM, see `config.versions.line_of`.
        placement: of its drafter: none, one_model or two_model.
        serves_sampling: whether its acceptance rule serves temperatures above 0.
        vocab_size: of the target.
        eos_token_ids: every id that ends a text.
        always_drafts: every step of every request has a draft (n-gram lookup finds one now and then).
        stats: of its finished requests, as far as TensorRT-LLM tells.
    """

    limits: EngineLimits
    line: str
    placement: str
    serves_sampling: bool
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    always_drafts: bool = False
    stats: EngineStats = field(default_factory=EngineStats)

    @classmethod
    def of(cls, manifest: Mapping[str, Any], eos_token_ids: Iterable[int]) -> LlmEngine:
        """The engine that a manifest describes; the ids that end a text are the tokenizer's."""
        engine, build = manifest["engine"], manifest["config"]["build"]
        limits = EngineLimits(
            max_batch_size=engine["max_batch_size"],
            max_seq_len=engine["max_seq_len"],
            max_num_tokens=build["max_num_tokens"],
            max_queue_size=build["max_queue_size"],
            max_draft_len=engine["max_draft_len"],
        )
        return cls(
            limits,
            line=versions.line_of(versions.parse(engine["tensorrt_llm_version"])),
            placement=engine["drafter_placement"],
            serves_sampling=ACCEPTANCE[engine["acceptance"]].serves_sampling,
            vocab_size=engine["vocab_size"],
            eos_token_ids=tuple(sorted(eos_token_ids)),
            always_drafts=engine["method"] not in ("none", "ngram"),
        )

    def check(self, request: Request) -> None:
        """Raises RequestError for a value that does not fit, and CapabilityError for what the engine would ignore."""
        self.limits.check_prompt(request, self.vocab_size)
        self._check_speculation(request)
        params = request.params
        if params.temperature > 0 and not self.serves_sampling:
            raise RequestError(
                "invalid request parameter temperature",
                where=f"{PREFIX}temperature",
                got=params.temperature,
                expected="0: the engine was built with acceptance greedy",
            )
        for name, reason in self.ignored_parameters(params.temperature > 0).items():
            if getattr(params, name) != getattr(_OFF, name):
                raise CapabilityError(
                    f"request parameter {name} is not supported by this engine",
                    where=f"{PREFIX}{name}",
                    got=getattr(params, name),
                    remedy=f"leave it out: {reason}",
                )
        self._check_min_tokens(params)

    def ignored_parameters(self, is_sampling: bool) -> dict[str, str]:
        """Sampling parameters that this engine would not apply, and why; greedy output follows no seed."""
        ignored: dict[str, str] = {}
        if self.line not in LATE:  # documented from 1.3.0rc24 on (features/sampling)
            ignored |= dict.fromkeys(_PENALTIES, f"the sampler of TensorRT-LLM {self.line} applies no penalties")
        if self.placement == "one_model":  # inferred: its own sampling is said to cover temperature, top_k and top_p
            ignored |= dict.fromkeys(("min_p", "logit_bias"), "sampling inside the drafter's graph does not apply it")
            if is_sampling:  # TensorRT-LLM#17599
                ignored["seed"] = "sampling inside the drafter's graph does not follow it"
        elif self.line in ("1.0", "1.1"):  # inferred: not in the list of features of these versions
            ignored |= dict.fromkeys(("min_p", "logit_bias"), f"not documented for TensorRT-LLM {self.line}")
        return ignored

    def _check_speculation(self, request: Request) -> None:
        own, is_plain = self.limits.max_draft_len, self.placement == "none"
        if request.max_draft_len not in (None, own) or not (request.speculation or is_plain):
            raise CapabilityError(
                "this engine drafts for every request alike",
                where="speculation" if not request.speculation else "max_draft_len",
                got=request.speculation and request.max_draft_len,
                expected=f"speculation true, max_draft_len {own}",
                remedy="serve a second run with speculation.method none, and compare the two",
            )

    def _check_min_tokens(self, params: SamplingParams) -> None:
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(self.eos_token_ids))
        if params.min_tokens > 0 and len(ends) > 1:
            raise CapabilityError(
                "request parameter min_tokens is not supported by this engine with several ids that end a text",
                where=f"{PREFIX}min_tokens",
                got=sorted(ends),
                remedy="TensorRT-LLM holds back one end id only; leave it out, or set ignore_eos and one stop id",
            )

    def sampling(self, request: Request, seed: int) -> dict[str, object]:
        """The arguments of TensorRT-LLM's `SamplingParams` for a checked request.

        Text, and where it ends, is decided here and not there (stop strings that cross tokens, EOS), so it gets ids
        only and includes whichever id ends the output. Greedy is said by top_k 1 alone: temperature 0 was an error in
        some versions.

        Args:
            request: checked.
            seed: the request's, or a fresh one; without any, every request would draw the same numbers.
        """
        params = request.params
        room = self.limits.max_seq_len - len(request.input_ids)
        ends = [] if params.ignore_eos else list(self.eos_token_ids)
        stops = sorted({*ends[1:], *params.stop_token_ids})
        given: dict[str, object] = {
            "max_tokens": min(params.max_tokens, room),
            "detokenize": False,
            "include_stop_str_in_output": True,
            "ignore_eos": params.ignore_eos,
            "return_perf_metrics": True,
            "seed": seed,
            **({"end_id": ends[0], "pad_id": ends[0]} if ends else {}),
            **({"stop_token_ids": stops} if stops else {}),
            **({"min_tokens": params.min_tokens} if params.min_tokens else {}),
            **({"logprobs": 0 if self.line in LATE else 1} if params.logprobs else {}),  # late: 0 is the chosen token's
            **({"min_p": params.min_p} if params.min_p else {}),
            **{name: getattr(params, name) for name in _PENALTIES if getattr(params, name) != getattr(_OFF, name)},
            **_bias(params.logit_bias, self.vocab_size),
        }
        if params.temperature == 0:
            return {**given, "top_k": 1}
        return {**given, "temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}


def _bias(bias: Mapping[int, float], vocab_size: int) -> dict[str, list[float]]:
    if not bias:
        return {}
    values = [0.0] * vocab_size
    for token, value in bias.items():
        values[token] = value
    return {"embedding_bias": values}
