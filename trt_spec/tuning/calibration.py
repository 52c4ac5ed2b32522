"""An engine's own numbers: survival of its drafts, costs of its steps, and whether the prediction from both holds.

Survival comes from real drafts on real prompts. Costs come from steps whose drafts stand by coin, at the measured
rates, so that every kind of step can be had at will. The check runs real drafts again, at batch sizes that no cost was
measured at. Times are told by the engine's clock, see `clocked`.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from trt_spec.clients.rounds import Advance, results, turns
from trt_spec.errors import CapabilityError
from trt_spec.runtime.draft_lengths import DraftLengths
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.runtime.step import Now, StepRecord, synchronized_clock
from trt_spec.runtime.synthetic import synthetic_acceptance
from trt_spec.tuning.cost_model import CostCell, MeasuredCosts
from trt_spec.tuning.planner import Planner
from trt_spec.tuning.survival import AcceptanceProfile, PromptSteps

NUM_WARM_UP, NUM_TIMED = 2, 5  # steps of one kind in one pass
NUM_PASSES = 2  # over all kinds, there and back, so that a drift falls on all of them
MIN_CONTEXT = 8
Ids = Sequence[int]


@contextmanager
def engine_with(engine: Engine, **parts: Any) -> Iterator[None]:
    """While it lasts the engine has these parts (drafter, rule, draft_lengths) in place of its own."""
    before = {name: getattr(engine, name) for name in parts}
    vars(engine).update(parts)
    try:
        yield
    finally:
        vars(engine).update(before)


def drafts_of(engine: Engine, length: int) -> AbstractContextManager[None]:
    """While it lasts the engine drafts exactly so far, whatever its config says."""
    return engine_with(engine, draft_lengths=DraftLengths({1: length}, None))


def clocked(engine: Engine, now: Now | None = None) -> AbstractContextManager[None]:
    """While it lasts the engine times its steps by this clock, or by the machine's after what runs on a GPU."""
    return engine_with(engine, now=now or synchronized_clock(engine.target.device))


# ---- survival ----


def measure_survival(
    engine: Engine,
    prompts: Sequence[Ids],
    *,
    batch: int,
    num_tokens: int,
    temperature: float = 0.0,
    advance: Advance = lambda part: None,
) -> list[PromptSteps]:
    """Runs each prompt once with drafts of full length and counts, by prompt, how far they stood.

    Steps near the end of an output, whose drafts were cut to what may still come, are left out.

    Args:
        batch: prompts at once.
        num_tokens: output tokens of each; the end of text does not stop it.
    """
    longest = engine.limits.max_draft_len
    requests = [_request(f"tune-{index}", ids, num_tokens, temperature, index) for index, ids in enumerate(prompts)]
    steps: dict[str, list[tuple[int, int]]] = {request.request_id: [] for request in requests}
    done = 0
    with drafts_of(engine, longest):
        for record in _closed_loop(engine, requests, batch):
            for draft in record.drafts:
                if draft.asked == longest:
                    steps[draft.request_id].append((draft.drafted, draft.accepted))
            done += record.num_tokens
            advance(min(1.0, done / (len(prompts) * num_tokens)))
    return list(steps.values())


def _request(
    name: str, ids: Ids, num_tokens: int, temperature: float = 0.0, seed: int = 0, *, speculation: bool = True
) -> Request:
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=temperature, seed=seed)
    return Request(name, tuple(ids), params, speculation)


def _closed_loop(engine: Engine, requests: Sequence[Request], batch: int) -> Iterator[StepRecord]:
    """Steps until all requests are answered, `batch` of them in flight while there are as many."""
    waiting, in_flight = list(reversed(requests)), 0
    while waiting or in_flight:
        while waiting and in_flight < batch:
            engine.add(waiting.pop())
            in_flight += 1
        record = engine.step()
        for chunk in record:
            if chunk.error is not None:
                raise chunk.error
            in_flight -= chunk.is_last
        yield record


# ---- costs ----


def measure_costs(
    engine: Engine,
    text: Ids,
    rates: Sequence[float],
    *,
    batches: Sequence[int],
    draft_lens: Sequence[int],
    context: int,
    advance: Advance = lambda part: None,
) -> MeasuredCosts:
    """Times steps of every batch size and draft length, at the workload's context and at twice that.

    Args:
        text: token ids that prompts are cut from, again from the beginning where it ends.
        rates: how drafts are to stand, see `synthetic_acceptance`; as long as the longest draft.
        draft_lens: rising from 0.
        context: cached tokens of a sequence, on average over the workload.

    Raises:
        CapabilityError: the engine's context is too short for any of it.
    """
    expected = AcceptanceProfile.given(rates).expected_tokens  # to be gained while all kinds of steps are timed:
    growth = round(NUM_PASSES * (NUM_WARM_UP + NUM_TIMED) * sum(expected[length].estimate for length in draft_lens))
    with synthetic_acceptance(engine, rates):
        room = engine.limits.max_seq_len - growth // 2 - 2 * len(rates) - 2
        if room < MIN_CONTEXT + growth // 2:
            raise CapabilityError(
                "the engine's context is too short to time steps in",
                where="build.max_seq_len",
                got=engine.limits.max_seq_len,
                expected=f"at least {growth + MIN_CONTEXT + 2 * len(rates) + 2}",
                remedy="build the engine with a larger build.max_seq_len",
            )
        contexts = sorted({max(MIN_CONTEXT + growth // 2, min(each, room)) for each in (context, 2 * context)})
        places = list(itertools.product(batches, contexts))
        cells, prefill = [], []
        for done, (batch, each) in enumerate(places, 1):
            length = max(MIN_CONTEXT, each - growth // 2)  # so that the context is right on average
            tokens = itertools.cycle(text)
            texts = [list(itertools.islice(tokens, length)) for _ in range(batch)]
            requests = [_request(f"tune-{index}", ids, engine.limits.max_seq_len) for index, ids in enumerate(texts)]
            read_s, steps = _time_steps(engine, requests, draft_lens)
            prefill.append(1e3 * read_s / length)
            cells += [_cell(engine, batch, draft_len, each, steps[draft_len]) for draft_len in draft_lens]
            advance(done / len(places))
    return MeasuredCosts(cells, context, statistics.median(prefill))


def _time_steps(
    engine: Engine, requests: Sequence[Request], draft_lens: Sequence[int]
) -> tuple[float, dict[int, list[StepRecord]]]:
    """Seconds to read the first prompt alone; and steps of all requests at once, by draft length. Ends the requests."""
    with drafts_of(engine, 0):
        read_s = _read(engine, requests[:1])
        _read(engine, requests[1:])
    arms = {length: partial(_steps, engine, length) for length in draft_lens}
    found = results(turns(arms, [len(requests)], num_rounds=NUM_PASSES, num_warm_up=0))
    for request in requests:
        engine.cancel(request.request_id)
    engine.step()
    return read_s, {length: list(itertools.chain(*passes)) for length, passes in found.items()}


def _steps(engine: Engine, length: int, batch: int) -> list[StepRecord]:
    """Those that count: warm, and of the whole batch."""
    with drafts_of(engine, length):
        steps = [engine.step() for _ in range(NUM_WARM_UP + NUM_TIMED)]
    return [step for step in steps[NUM_WARM_UP:] if step.batch == batch]


def _read(engine: Engine, requests: Sequence[Request]) -> float:
    """Seconds until all of them have their first token."""
    seconds, scheduler = 0.0, engine.scheduler
    for request in requests:
        engine.add(request)
    while scheduler.waiting or not all(sequence.is_decoding for sequence in scheduler.running):
        seconds += engine.step().total_s
    return seconds


def _cell(engine: Engine, batch: int, length: int, context: int, records: Sequence[StepRecord]) -> CostCell:
    if not records:
        raise CapabilityError(
            "sequences ended while their steps were timed",
            where="build.max_seq_len",
            got=engine.limits.max_seq_len,
            remedy="build the engine with a larger build.max_seq_len",
        )
    parts = ("draft_s", "target_s", "overhead_s")
    medians = (1e3 * statistics.median(getattr(record, part) for record in records) for part in parts)
    return CostCell(batch, length, context, *medians)


# ---- the check ----


@dataclass(frozen=True)
class Checked:
    """One batch size and draft length: predicted and measured, in steps that only decode, at full batch."""

    batch: int
    draft_len: int
    predicted: float
    measured: float
    plain_tokens_per_s: float
    predicted_plain_tokens_per_s: float

    @property
    def error(self) -> float:
        """Of the speed-up, relative to what was measured."""
        return self.predicted / self.measured - 1


def check_prediction(
    engine: Engine,
    prompts: Sequence[Ids],
    planner: Planner,
    wanted: Sequence[tuple[int, int]],
    *,
    num_tokens: int,
    temperature: float = 0.0,
    advance: Advance = lambda part: None,
) -> list[Checked]:
    """Runs every prompt plain and with real drafts, by turns (ABBA), at each (batch size, draft length)."""
    found = []
    for done, (batch, length) in enumerate(wanted, 1):
        arms = {
            arm: partial(_decode, engine, prompts, arm, num_tokens=num_tokens, temperature=temperature)
            for arm in (0, length)
        }
        plain, drafting = map(_tokens_per_s, results(turns(arms, [batch], num_rounds=2, num_warm_up=0)).values())
        speedup, predicted_plain = planner.forecast(batch, length).speedup, planner.forecast(batch, 0).tokens_per_s
        found.append(Checked(batch, length, speedup, drafting / plain, plain, predicted_plain))
        advance(done / len(wanted))
    return found


def _tokens_per_s(passes: Sequence[Sequence[StepRecord]]) -> float:
    records = list(itertools.chain(*passes))
    return sum(record.num_tokens for record in records) / sum(record.total_s for record in records)


def _decode(
    engine: Engine, prompts: Sequence[Ids], length: int, batch: int, *, num_tokens: int, temperature: float
) -> list[StepRecord]:
    """The steps that count: all clients decode, and nobody reads a prompt."""
    places = [index % len(prompts) for index in range(max(2 * batch, len(prompts)))]
    requests = [
        _request(f"check-{index}", prompts[place], num_tokens, temperature, place, speculation=length > 0)
        for index, place in enumerate(places)
    ]
    with drafts_of(engine, length):
        records = list(_closed_loop(engine, requests, batch))
    return [record for record in records if record.batch == batch and not record.has_prompt]
