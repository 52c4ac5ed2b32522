"""The check that every build ends with: the engine is loaded, and a few greedy outputs are compared with speculation
on and off.

It is a smoke test of this engine on this machine, not a proof: a handful of prompts, greedy only. Both arms compute
the same sums in other shapes, so two tokens whose logits nearly tie may change places. A first divergence is therefore
looked into, by asking the plain engine how likely both tokens are there, and called a tie only where they are that
close.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from trt_spec.engines.manifest import Check
from trt_spec.errors import GateFailure
from trt_spec.runtime.request import Request, SamplingParams

if TYPE_CHECKING:
    from trt_spec.runtime.engine import Engine

# Largest log-probability gap, in nats, of two tokens that may change places. In float32: what two orders of one sum
# leave. In bfloat16 logits have 8 bits, steps of 0.125 between 16 and 32, and each of the two may move by two steps,
# one from the head and one from the layers below. float16 has 3 bits more.
TIE_GAP = {"float32": 1e-4, "bfloat16": 0.5, "float16": 0.0625}
_FORCE = 1e4  # a bias beyond any logit; log-probabilities are those of the raw logits
_NUM_TOKENS = 24
_PROMPTS = (
    "The capital of France is",
    "one two three four five six seven eight one two three four five six seven",
    "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    return",
)


@dataclass(frozen=True)
class Divergence:
    """Where two greedy outputs part, at `position` tokens into the output.

    Attributes:
        plain_token, speculative_token: the ids there; None where one output has ended.
        gap: log-probability of the plain token less that of the speculative one under the plain engine, in nats; None
            where one output has ended, so that there is nothing to compare.
        is_tie: whether the gap is within `TIE_GAP` of the engine's dtype.
    """

    position: int
    plain_token: int | None
    speculative_token: int | None
    gap: float | None
    is_tie: bool

    def words(self) -> str:
        """The divergence in a few words; the position is counted in output tokens from 0."""
        if self.gap is None:
            return f"one ends at {self.position}"
        return f"{'tie' if self.is_tie else 'differs'} at {self.position}: {self.gap:.2g} nats"


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> int | None:
    """The first position at which the two differ, or None where they are equal."""
    pairs = enumerate(itertools.zip_longest(plain, speculative))
    return next((position for position, (one, other) in pairs if one != other), None)


def explain_divergence(
    engine: Engine, input_ids: Sequence[int], plain: Sequence[int], speculative: Sequence[int]
) -> Divergence | None:
    """What the first difference of two greedy outputs is: nothing, a tie, or a fault.

    Args:
        engine: an idle engine; it is asked for two single tokens, without speculation.
        input_ids: the prompt of both outputs.
        plain, speculative: the output ids without and with speculation.
    """
    position = first_difference(plain, speculative)
    if position is None:
        return None
    tokens = [ids[position] if position < len(ids) else None for ids in (plain, speculative)]
    if None in tokens:
        return Divergence(position, *tokens, gap=None, is_tie=False)
    one, other = (_logprob(engine, (*input_ids, *plain[:position]), token) for token in tokens)
    gap = one - other
    return Divergence(position, *tokens, gap, is_tie=abs(gap) <= TIE_GAP[engine.config.target.dtype])


def _logprob(engine: Engine, prefix: Sequence[int], token: int) -> float:
    """Log-probability of `token` after `prefix` under the plain engine, which a bias makes generate it."""
    params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=True, logit_bias={token: _FORCE})
    [result] = engine.generate([Request("divergence", tuple(prefix), params, speculation=False)])
    return result.logprobs[0]


def self_check(engine: Engine) -> Check:
    """Generates with speculation on and off; raises GateFailure where outputs differ by more than rounding explains."""
    prompts = _prompt_ids(engine)
    plain = _generate(engine, prompts, speculation=False)
    tokens = sum(len(ids) for ids in plain)
    if engine.config.speculation.method == "none":
        return Check("the engine loads and generates", f"{tokens} tokens from {len(prompts)} prompts")
    speculative = _generate(engine, prompts, speculation=True)
    found = [explain_divergence(engine, *arms) for arms in zip(prompts, plain, speculative, strict=True)]
    divergences = [divergence for divergence in found if divergence is not None]
    faults = [divergence for divergence in divergences if not divergence.is_tie]
    if faults:
        raise GateFailure(
            "greedy output changes with speculation, so this engine is not put in place",
            where=f"self-check of run {engine.config.name}",
            got=faults[0].words(),
            expected="the same tokens with speculation on and off",
            remedy="build with --set target.dtype=float32 to tell rounding from a fault, and report a fault",
        )
    num_equal = len(prompts) - len(divergences)
    ties = f", {len(divergences)} up to a tie" if divergences else ""
    return Check(
        "greedy tokens with speculation on and off",
        f"{num_equal} of {len(prompts)} prompts equal{ties}; {tokens} tokens in all",
        {"ties": [asdict(divergence) for divergence in divergences]},
    )


def _prompt_ids(engine: Engine) -> list[tuple[int, ...]]:
    """The prompts as ids, cut to what leaves the engine room to generate."""
    room = max(1, engine.config.build.max_seq_len - _NUM_TOKENS - engine.config.speculation.max_draft_len - 1)
    encoded = [tuple(engine.tokenizer.encode(prompt))[:room] for prompt in _PROMPTS]
    return [ids for ids in encoded if ids] or [(0,)]


def _generate(engine: Engine, prompts: Sequence[tuple[int, ...]], *, speculation: bool) -> list[list[int]]:
    longest = max(len(ids) for ids in prompts)
    params = SamplingParams(max_tokens=max(1, min(_NUM_TOKENS, engine.config.build.max_seq_len - longest - 1)))
    requests = [
        Request(f"self-check-{index}", ids, params, speculation=speculation) for index, ids in enumerate(prompts)
    ]
    return [result.token_ids for result in engine.generate(requests)]
