"""This runtime and transformers' `generate` beside each other: the same weights, prompt, dtype and number of tokens.

Greedy, batch 1. The arms take turns, in an order that is reversed every round, so that a drift of the machine falls on
all of them; each is warmed up once. A time is the whole call, prompt included; the tokenizer is not in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_spec.runtime.request import Request, SamplingParams

if TYPE_CHECKING:
    from trt_spec.runtime.engine import Engine

DEFAULT_NUM_TOKENS = 64
DEFAULT_NUM_ROUNDS = 4
Arm = Callable[[Sequence[int], int], list[int]]
Advance = Callable[[float], None]


def measure_peers(
    engine: Engine,
    target_dir: Path,
    input_ids: Sequence[int],
    *,
    num_tokens: int = DEFAULT_NUM_TOKENS,
    num_rounds: int = DEFAULT_NUM_ROUNDS,
    advance: Advance = lambda part: None,
) -> dict[str, Any]:
    """Times every arm on one prompt.

    Args:
        engine: idle.
        target_dir: the same weights as a Hugging Face directory, for transformers.
        input_ids: the prompt.
        num_tokens: output tokens of each call; the end of text does not stop it.
        num_rounds: timed calls of each arm.
        advance: called with the part done, 0 to 1.

    Returns:
        `arms`: name to `tokens_per_s` (median over rounds, with `lowest` and `highest`) and `num_equal_tokens` (how
        many output ids are those of the first arm before the first that is not); `num_input_tokens`, `num_tokens`,
        `num_rounds`, `dtype`.
    """
    arms = _own_arms(engine) | _transformers_arms(engine, target_dir)
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    found = {name: arm(input_ids, num_tokens) for name, arm in arms.items()}  # the warm-up
    for index in range(num_rounds):
        for name in list(arms) if index % 2 == 0 else reversed(list(arms)):
            started = time.perf_counter()
            arms[name](input_ids, num_tokens)
            seconds[name].append(time.perf_counter() - started)
        advance((index + 1) / num_rounds)
    reference = next(iter(found.values()))
    return {
        "arms": {
            name: {
                "tokens_per_s": num_tokens / statistics.median(times),
                "lowest": num_tokens / max(times),
                "highest": num_tokens / min(times),
                "num_equal_tokens": _num_equal(found[name], reference),
            }
            for name, times in seconds.items()
        },
        "num_input_tokens": len(input_ids),
        "num_tokens": num_tokens,
        "num_rounds": num_rounds,
        "dtype": engine.config.target.dtype,
    }


def _own_arms(engine: Engine) -> dict[str, Arm]:
    def arm(speculation: bool) -> Arm:
        def run(input_ids: Sequence[int], num_tokens: int) -> list[int]:
            params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
            [answer] = engine.generate([Request("bench", tuple(input_ids), params, speculation=speculation)])
            return answer.token_ids

        return run

    method = engine.config.speculation.method
    arms = {"trt_spec, plain": arm(False)}
    return arms if method == "none" else {**arms, f"trt_spec, {method}": arm(True)}


def load_transformers(engine: Engine, target_dir: Path) -> Any:
    """The target in transformers, in the engine's dtype and on its device; the end of text does not stop it."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # the caller shows its own
    dtype = getattr(torch, engine.config.target.dtype)
    model = AutoModelForCausalLM.from_pretrained(target_dir, dtype=dtype).to(engine.target.device)
    model.generation_config.update(eos_token_id=None, bos_token_id=None, pad_token_id=0)
    return model


def _transformers_arms(engine: Engine, target_dir: Path) -> dict[str, Arm]:
    import torch

    config, device = engine.config, engine.target.device
    model = load_transformers(engine, target_dir)

    def arm(**options: Any) -> Arm:
        def run(input_ids: Sequence[int], num_tokens: int) -> list[int]:
            ids = torch.tensor([list(input_ids)], device=device)
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens, **options
            )
            return out[0, ids.shape[1] :].tolist()

        return run

    arms = {"transformers, generate": arm()}
    if config.speculation.method == "ngram":
        lookup = {
            "prompt_lookup_num_tokens": config.speculation.max_draft_len,
            "max_matching_ngram_size": config.speculation.ngram.max_ngram,
        }
        arms["transformers, prompt lookup"] = arm(**lookup)
    return arms


def _num_equal(ids: Sequence[int], reference: Sequence[int]) -> int:
    for index, (one, other) in enumerate(zip(ids, reference, strict=False)):
        if one != other:
            return index
    return min(len(ids), len(reference))
