"""One engine, several ways to draft: plain, as configured, with adaptive draft lengths, with lookup before the drafter.

Greedy, one request at a time; the ways take turns over the same prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from rich.console import RenderableType

from trt_spec.bench.kinds import Result, check_drafts
from trt_spec.clients.client import Params
from trt_spec.clients.engine import SteppedClient
from trt_spec.clients.prompts import DEMO_PROMPTS, Prompt
from trt_spec.clients.rounds import Advance, results, turns
from trt_spec.clients.trace import Totals, Trace
from trt_spec.config.drafting import NgramFirstConfig
from trt_spec.methods import METHODS
from trt_spec.report.console import Reporter
from trt_spec.report.tables import cells, table, titled
from trt_spec.run import Run, load_engine
from trt_spec.runtime.drafters.ngram import NgramDrafter
from trt_spec.runtime.drafters.ngram_first import NgramFirstDrafter
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.loading import draft_lengths
from trt_spec.runtime.request import SamplingParams
from trt_spec.runtime.step_costs import measure_step_costs
from trt_spec.runtime.synthetic import synthetic_acceptance
from trt_spec.tuning.calibration import engine_with

KINDS_OF_PROMPTS = ("chat", "copy", "edit")
DEFAULT_NUM_TOKENS = 96
DEFAULT_NUM_ROUNDS = 3


@dataclass(frozen=True)
class Figures:
    """What one way gave. `speedup` is over plain decoding; without drafts an acceptance length is 1, a rate 0."""

    tokens_per_s: float
    speedup: float
    mean_acceptance_length: float
    draft_tokens_per_draft: float
    acceptance_rate: float


_FORMATS = {"tokens_per_s": ".1f", "speedup": ".2f", "mean_acceptance_length": ".2f"}
_FORMATS |= {"draft_tokens_per_draft": ".1f", "acceptance_rate": ".0%"}


@dataclass(frozen=True)
class DraftingResult(Result):
    """`kinds`: kind of prompt to way to figures. `synthetic_acceptance`: coins in place of the acceptance rule."""

    dtype: str
    num_tokens: int
    kinds: Mapping[str, Mapping[str, Figures]]
    synthetic_acceptance: Sequence[float] | None

    def view(self) -> RenderableType:
        rows = [
            (kind, way, *cells(found, **_FORMATS)) for kind, ways in self.kinds.items() for way, found in ways.items()
        ]
        title = f"{self.dtype}, batch 1, greedy, {self.num_tokens} tokens out"
        if self.synthetic_acceptance:
            coins = ", ".join(map(str, self.synthetic_acceptance))
            title += f"; drafts stand by coin ({coins}): no text is the target's"
        header = ("prompts", "drafts", "tokens/s", "over plain", "accept. length", "drafted", "accepted")
        return titled(title, table(header, rows, numeric=(2, 3, 4, 5, 6)))


def run(run: Run, reporter: Reporter, *, acceptance: Sequence[float] | None = None) -> DraftingResult:
    """Each kind of the demo's prompts by itself; the run's engine is built.

    Args:
        acceptance: coins by draft position in place of the acceptance rule, see `runtime.synthetic`.

    Raises:
        UsageError: the run drafts nothing.
    """
    check_drafts([run])
    engine, kinds = load_engine(run, reporter), {}
    for kind in KINDS_OF_PROMPTS:
        prompts = [prompt for prompt in DEMO_PROMPTS if prompt.name.startswith(kind)]
        label = f"timing ways to draft on {kind} prompts, in turns"
        with reporter.progress(label) as advance, synthetic_acceptance(engine, acceptance):
            kinds[kind] = measure_drafting(engine, prompts, advance=advance)
    return DraftingResult(run.config.target.dtype, DEFAULT_NUM_TOKENS, kinds, acceptance)


def measure_drafting(
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    num_tokens: int = DEFAULT_NUM_TOKENS,
    num_rounds: int = DEFAULT_NUM_ROUNDS,
    advance: Advance = lambda part: None,
) -> dict[str, Figures]:
    """Figures by way, the first of which is "plain", of answers of `num_tokens`. The engine is idle, with a drafter."""
    step_costs = step_costs_of(engine)
    client, sampling = SteppedClient(engine), SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    ways = {"plain": {}, "fixed": {}, "adaptive": {"is_adaptive": True}}
    if METHODS[engine.config.speculation.method].is_neural:
        ways["ngram_first"] = {"has_ngram_first": True}
        ways["ngram_first, adaptive"] = {"has_ngram_first": True, "is_adaptive": True}

    def ask(way: str, prompt: Prompt) -> Trace:
        with _switched(engine, step_costs, **ways[way]):
            return client.ask(prompt, Params(sampling, speculation=way != "plain"))

    arms = {way: partial(ask, way) for way in ways}
    found = results(turns(arms, prompts, num_rounds=num_rounds, advance=advance))
    totals = {way: Totals.of(traces) for way, traces in found.items()}
    return {way: _figures(of_way, totals["plain"]) for way, of_way in totals.items()}


def step_costs_of(engine: Engine) -> Mapping[int, float]:
    """The costs of a step by which an engine adapts its drafts, or would: timed now where its build had no need to."""
    costs = engine.draft_lengths.costs
    return measure_step_costs(engine.target, engine.limits) if costs is None else costs.step


def _switched(
    engine: Engine, step_costs: Mapping[int, float], *, is_adaptive: bool = False, has_ngram_first: bool = False
) -> AbstractContextManager[None]:
    """The engine as a way wants it."""
    drafter = engine.drafter.inner if isinstance(engine.drafter, NgramFirstDrafter) else engine.drafter
    if has_ngram_first:
        first = engine.config.speculation.ngram_first or NgramFirstConfig()
        drafter = NgramFirstDrafter(NgramDrafter(first.min_ngram, first.max_ngram), drafter)
    speculation = engine.config.speculation.model_copy(update={"adaptive_draft_len": is_adaptive})
    return engine_with(engine, drafter=drafter, draft_lengths=draft_lengths(speculation, step_costs))


def _figures(found: Totals, plain: Totals) -> Figures:
    drafts = found.drafts
    assert drafts is not None
    return Figures(
        found.tokens_per_s,
        found.tokens_per_s / plain.tokens_per_s,
        drafts.mean_acceptance_length or 1.0,
        drafts.num_draft_tokens / drafts.num_drafts if drafts.num_drafts else 0.0,
        drafts.acceptance_rate or 0.0,
    )
