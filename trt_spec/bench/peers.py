"""This runtime and transformers' `generate` beside each other: the same weights, prompt, dtype and number of tokens.

Greedy, batch 1, by turns. A time is the whole call, prompt included; the tokenizer is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from trt_spec.bench.kinds import Result, span, spread
from trt_spec.clients.prompts import DEMO_PROMPTS, chat_ids
from trt_spec.clients.rounds import Advance, by_arm, turns
from trt_spec.engines.torch.self_check import first_difference
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter
from trt_spec.report.tables import table, titled
from trt_spec.run import Run, load_engine
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.request import Request, SamplingParams

DEFAULT_PROMPT = "copy: notice"
DEFAULT_NUM_TOKENS = 64
DEFAULT_NUM_ROUNDS = 4
Generate = Callable[[Sequence[int]], list[int]]  # prompt ids -> output ids


@dataclass(frozen=True)
class Figures:
    """Output tokens per second, the median over rounds and their range; and how many output ids are those of the first
    arm before the first that is not."""

    tokens_per_s: float
    lowest: float
    highest: float
    num_equal_tokens: int


@dataclass(frozen=True)
class PeersResult(Result):
    """`arms`: runtime to its figures."""

    arms: Mapping[str, Figures]
    num_input_tokens: int
    num_tokens: int
    num_rounds: int
    dtype: str

    def view(self) -> RenderableType:
        rows = [
            (escape(name), f"{arm.tokens_per_s:.1f}", span(arm, ".1f"), f"{arm.num_equal_tokens} of {self.num_tokens}")
            for name, arm in self.arms.items()
        ]
        title = f"{self.dtype}, batch 1, greedy: {self.num_input_tokens} tokens in, {self.num_tokens} out"
        header = ("runtime", "tokens/s", f"range of {self.num_rounds}", "tokens as the first")
        note = "tokens/s: output tokens per second of the whole call, median; calls take turns. Near ties may part."
        return titled(title, table(header, rows, numeric=(1, 2, 3)), Text(note, style="dim"))


def run(run: Run, reporter: Reporter, *, prompt: str | None = None) -> PeersResult:
    """This runtime and transformers on one prompt; the run's engine is built, and has a chat template.

    Args:
        prompt: the user's message; by default the demo's text to copy.

    Raises:
        UsageError: prompt and output do not fit into the engine's context.
    """
    engine = load_engine(run, reporter)
    [default] = [one.text for one in DEMO_PROMPTS if one.name == DEFAULT_PROMPT]
    input_ids = chat_ids(engine.tokenizer, default if prompt is None else prompt)
    room = run.config.build.max_seq_len - DEFAULT_NUM_TOKENS
    if len(input_ids) > room:
        raise UsageError(
            "the prompt leaves too little room",
            where="--prompt",
            got=f"{len(input_ids)} tokens",
            expected=f"at most {room}",
        )
    with reporter.progress("timing trt_spec and transformers in turns") as advance:
        return measure_peers(engine, run.engine_dir / "target", input_ids, advance=advance)


def measure_peers(
    engine: Engine,
    target_dir: Path,
    input_ids: Sequence[int],
    *,
    num_tokens: int = DEFAULT_NUM_TOKENS,
    num_rounds: int = DEFAULT_NUM_ROUNDS,
    advance: Advance = lambda part: None,
) -> PeersResult:
    """Times every arm on one prompt, of this idle engine and of transformers on the same weights in a directory."""
    arms = _own_arms(engine, num_tokens) | _transformers_arms(engine, target_dir, num_tokens)
    found = by_arm(turns(arms, [input_ids], num_rounds=num_rounds, advance=advance))
    reference, figures = next(iter(found.values()))[0].result, {}
    for name, of_arm in found.items():
        parted = first_difference(of_arm[0].result, reference)
        num_equal = num_tokens if parted is None else parted
        figures[name] = Figures(*spread(num_tokens / turn.seconds for turn in of_arm), num_equal)
    return PeersResult(figures, len(input_ids), num_tokens, num_rounds, engine.config.target.dtype)


def _own_arms(engine: Engine, num_tokens: int) -> dict[str, Generate]:
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)

    def arm(speculation: bool) -> Generate:
        return lambda ids: engine.generate([Request("bench", tuple(ids), params, speculation)])[0].token_ids

    method = engine.config.speculation.method
    arms = {"trt_spec, plain": arm(False)}
    return arms if method == "none" else {**arms, f"trt_spec, {method}": arm(True)}


def transformers_generate(engine: Engine, target_dir: Path) -> Callable[..., list[list[int]]]:
    """transformers' greedy `generate` of the engine's target, in its dtype and on its device.

    What is returned takes prompts, which it pads to the left, the number of output tokens, at which alone it stops, and
    options of `generate`; it gives the output ids of each prompt.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # the caller shows its own
    dtype, device = getattr(torch, engine.config.target.dtype), engine.target.device
    model = AutoModelForCausalLM.from_pretrained(target_dir, dtype=dtype).to(device)
    model.generation_config.update(eos_token_id=None, bos_token_id=None, pad_token_id=0)

    def generate(prompts: Sequence[Sequence[int]], num_tokens: int, **options: int) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts], device=device)
        found = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=num_tokens, **options)
        return found[:, longest:].tolist()

    return generate


def _transformers_arms(engine: Engine, target_dir: Path, num_tokens: int) -> dict[str, Generate]:
    generate, speculation = transformers_generate(engine, target_dir), engine.config.speculation
    arms: dict[str, dict[str, int]] = {"transformers, generate": {}}
    if speculation.method == "ngram":
        arms["transformers, prompt lookup"] = {
            "prompt_lookup_num_tokens": speculation.max_draft_len,
            "max_matching_ngram_size": speculation.ngram.max_ngram,
        }
    return {
        name: lambda ids, options=options: generate([ids], num_tokens, **options)[0] for name, options in arms.items()
    }
