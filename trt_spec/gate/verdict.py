"""The latency gate's verdict, from raw records: plain and speculative blocks in pairs, judged against floors.

One load is one arrival process. Its blocks come as ABBA, then BAAB, and so on; neighbours of different arms are a pair.
What is compared is always a ratio, speculation over plain, with a paired bootstrap interval.

Speed-up against a floor. Let `effect` be the distance of the estimate from the floor, and `noise` what the same ratio
of plain against plain spreads (A/A, from the two plain blocks of each ABBA); both as logarithms.

    inconclusive  effect <= noise: the run cannot tell this effect from none
    pass          lower bound >= floor
    fail          upper bound <  floor
    inconclusive  otherwise: the floor lies inside the interval

TTFT p99 is a guard: it fails where the ratio's lower bound is above the limit and the excess is more than A/A noise;
passes where the estimate keeps the limit; and is inconclusive otherwise.

`ALPHA` is the probability that a run fails though every true ratio keeps its demand. It is split evenly over the checks
of a run, so each bound is missed with probability ALPHA / num_checks. An arm under a floor passes with at most that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_spec.clients.trace import Trace
from trt_spec.errors import UsageError
from trt_spec.gate import bootstrap, metrics
from trt_spec.gate.bootstrap import Interval
from trt_spec.gate.metrics import NO_SLO, Slo
from trt_spec.gate.records import ARMS, WARM_UP, Arm, Placed
from trt_spec.gate.result import Check, Judged, LoadResult, Verdict

ALPHA = 0.05
MIN_PAIRS = 20
_SEED = 20_240_607  # of the resampling: the same records have the same verdict


@dataclass(frozen=True)
class Demands:
    """What is demanded.

    Attributes:
        floors: load to least speed-up; loads without one are measured only.
        max_ttft_p99_ratio: most that TTFT p99 may be, as a multiple of plain.
        slo: for goodput, which is reported and not judged.
    """

    floors: Mapping[str, float] = field(default_factory=dict)
    max_ttft_p99_ratio: float = 1.05
    slo: Slo = NO_SLO


@dataclass(frozen=True)
class Blocks:
    """One arm's blocks by pair number, n of them with k requests each.

    Attributes:
        tokens, seconds, num_good: [n] per block.
        ttft_ms, tpot_ms: [n, k] per request.
    """

    tokens: np.ndarray
    seconds: np.ndarray
    num_good: np.ndarray
    ttft_ms: np.ndarray
    tpot_ms: np.ndarray

    def pick(self, index: np.ndarray) -> Blocks:
        """Some of the blocks, in this order."""
        return Blocks(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


def _pooled(values: np.ndarray, rows: np.ndarray, share: float) -> np.ndarray:
    """The quantile over all requests of the drawn blocks; [R, n] to [R]."""
    return np.quantile(values[rows].reshape(len(rows), -1), share, axis=1)


# From one arm's blocks and rows [R, n] of pair numbers to one value per row.
RATIOS: dict[str, Callable[[Blocks, np.ndarray], np.ndarray]] = {
    "speedup": lambda blocks, rows: blocks.tokens[rows].sum(-1) / blocks.seconds[rows].sum(-1),
    "tpot_p50": lambda blocks, rows: _pooled(blocks.tpot_ms, rows, 0.5),
    "tpot_p99": lambda blocks, rows: _pooled(blocks.tpot_ms, rows, 0.99),
    "ttft_p99": lambda blocks, rows: _pooled(blocks.ttft_ms, rows, 0.99),
    "goodput": lambda blocks, rows: blocks.num_good[rows].sum(-1) / blocks.seconds[rows].sum(-1),
}


@dataclass(frozen=True)
class Comparison:
    """The ratios of one load and how far plain over plain spreads, see `LoadResult`; by name of `RATIOS`."""

    ratios: Mapping[str, Interval | None]
    noise: Mapping[str, float | None]
    per_pair: tuple[float, ...]


def compare(
    plain: Blocks, speculation: Blocks, tail: float, generator: np.random.Generator, without: Sequence[str] = ()
) -> Comparison:
    """All ratios of one load.

    Args:
        plain, speculation: blocks by pair number; an even number of pairs.
        tail: probability with which each bound is missed.
        without: names of ratios that are left out.
    """
    num_pairs = len(plain.tokens)
    rows = bootstrap.draw(num_pairs, generator)
    half_rows = bootstrap.draw(num_pairs // 2, generator)
    # The two plain blocks of each ABBA or BAAB, first and last by turns, so that a drift is spread and no bias.
    starts = np.arange(0, num_pairs, 2)
    turn = (starts // 2) % 2
    first, second = plain.pick(starts + turn), plain.pick(starts + 1 - turn)
    ratios, noise = {}, {}
    for name in (name for name in RATIOS if name not in without):
        ratios[name] = _ratio(name, speculation, plain, rows, tail)
        control = _ratio(name, first, second, half_rows, tail)
        # Half of the pairs: a mean over all of them spreads less by the root of two.
        noise[name] = None if control is None else control.half_width / math.sqrt(2)
    each, singles = RATIOS["speedup"], np.arange(num_pairs)[:, None]
    return Comparison(ratios, noise, tuple((each(speculation, singles) / each(plain, singles)).tolist()))


def _ratio(name: str, above: Blocks, below: Blocks, rows: np.ndarray, tail: float) -> Interval | None:
    return bootstrap.interval(lambda some: RATIOS[name](above, some) / RATIOS[name](below, some), rows, tail)


def judge_speedup(load: str, ratio: Interval, noise: float, floor: float) -> Check:
    """The speed-up against its floor, by the rule above."""
    effect = abs(math.log(ratio.estimate / floor))
    shown = f"speed-up {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}], floor {floor:g}"
    verdict: Verdict = "inconclusive"
    if effect <= noise:
        shown += f": {effect:.1%} from the floor, and A/A spreads by {noise:.1%}"
    elif ratio.low < floor <= ratio.high:
        shown += ": the floor lies inside the interval"
    else:
        verdict = "pass" if ratio.low >= floor else "fail"
    return Check(f"speed-up, {load}", verdict, shown)


def judge_ttft(load: str, ratio: Interval, noise: float, limit: float) -> Check:
    """The guard of TTFT p99, by the rule above."""
    shown = f"TTFT p99 ratio {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}], limit {limit:g}"
    verdict: Verdict = "pass" if ratio.estimate <= limit else "fail"
    if verdict == "fail" and (ratio.low <= limit or math.log(ratio.estimate / limit) <= noise):
        verdict, shown = "inconclusive", f"{shown}: not shown to be worse; A/A spreads by {noise:.1%}"
    return Check(f"TTFT p99, {load}", verdict, shown)


def overall(checks: Iterable[Check]) -> Verdict:
    """Fail before inconclusive before pass."""
    verdicts = {check.verdict for check in checks}
    return next((verdict for verdict in ("fail", "inconclusive") if verdict in verdicts), "pass")


def evaluate(records: Sequence[Placed], demands: Demands) -> Judged:
    """Verdict, checks and every figure, from records alone.

    Raises:
        UsageError: records are missing, or a floor is for a load that was not measured.
    """
    loads = list(dict.fromkeys(record.load for record in records))
    unmeasured = [load for load in demands.floors if load not in loads]
    if unmeasured or not loads:
        raise UsageError(
            "the records have no blocks for a floor",
            where=", ".join(unmeasured) or "records",
            got=", ".join(loads) or "no records",
            remedy="measure at these loads, or take their floors out",
        )
    num_checks = len(loads) + len(demands.floors)
    tail, generator = ALPHA / num_checks, np.random.default_rng(_SEED)
    found, checks = [], []
    for load in loads:
        by_arm = {arm: _blocks_of(records, load, arm) for arm in ARMS}
        tables = {arm: _table(blocks, demands.slo) for arm, blocks in by_arm.items()}
        _check_shape(load, tables["plain"], tables["speculation"])
        without = () if demands.slo.is_stated else ("goodput",)
        comparison = compare(tables["plain"], tables["speculation"], tail, generator, without)
        own = list(_judge(load, comparison, demands))
        arms = {arm: metrics.summary(blocks, demands.slo) for arm, blocks in by_arm.items()}
        found.append(LoadResult(load, overall(own), demands.floors.get(load), **vars(comparison), arms=arms))
        checks += own
    return Judged(
        verdict=overall(checks),
        alpha=ALPHA,
        num_checks=num_checks,
        confidence=1 - 2 * tail,
        max_ttft_p99_ratio=demands.max_ttft_p99_ratio,
        slo=demands.slo if demands.slo.is_stated else None,
        checks=checks,
        loads=found,
    )


def _judge(load: str, comparison: Comparison, demands: Demands) -> Iterable[Check]:
    for name in ("speedup", "ttft_p99"):
        ratio, noise = comparison.ratios[name], comparison.noise[name]
        if name == "speedup" and load not in demands.floors:
            continue
        if ratio is None or noise is None:
            yield Check(f"{name}, {load}", "inconclusive", "times of zero: the clock is too coarse")
        elif name == "speedup":
            yield judge_speedup(load, ratio, noise, demands.floors[load])
        else:
            yield judge_ttft(load, ratio, noise, demands.max_ttft_p99_ratio)


def _blocks_of(records: Sequence[Placed], load: str, arm: Arm) -> list[list[Trace]]:
    """The counted blocks of one arm, by pair number."""
    pairs: dict[int, list[Trace]] = {}
    for record in records:
        if record.load == load and record.arm == arm and record.pair != WARM_UP:
            pairs.setdefault(record.pair, []).append(record.trace)
    return [pairs[number] for number in sorted(pairs)]


def _table(blocks: Sequence[Sequence[Trace]], slo: Slo) -> Blocks:
    sizes = {len(block) for block in blocks}
    if len(sizes) > 1:
        raise UsageError("blocks of different size", where="records", got=sorted(sizes), remedy="measure again")
    return Blocks(
        np.array([sum(trace.num_output_tokens for trace in block) for block in blocks], float),
        np.array([metrics.elapsed_s(block) for block in blocks], float),
        np.array([sum(map(slo.keeps, block)) if slo.is_stated else 0 for block in blocks], float),
        np.array([[trace.ttft_ms for trace in block] for block in blocks], float),
        np.array([[metrics.tpot_ms(trace) for trace in block] for block in blocks], float),
    )


def _check_shape(load: str, plain: Blocks, speculation: Blocks) -> None:
    counts = (len(plain.tokens), len(speculation.tokens))
    if counts[0] != counts[1] or counts[0] < MIN_PAIRS or counts[0] % 2:
        raise UsageError(
            "the records do not hold whole ABBA blocks",
            where=load,
            got=f"{counts[0]} plain and {counts[1]} speculative blocks",
            expected=f"as many of each, an even number of at least {MIN_PAIRS}",
        )
