"""What the last response of a request says: why each sequence ended, and what all of them together cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from trt_spec.runtime.request import Completion, KvCacheUse
from trt_spec.triton.served_request import ServedRequest


def completion_values(completions: Sequence[Completion], served: ServedRequest) -> dict[str, object]:
    """Values of the final outputs by name, without those that the request left out or the engine does not tell.

    Args:
        completions: of the sequences of the response, in its order.
        served: the request.
    """
    values: dict[str, object] = {"num_input_tokens": completions[0].num_input_tokens}
    if served.return_finish_reason:
        values["finish_reason"] = [done.finish_reason for done in completions]
    if served.return_stop_reason:
        values["stop_reason"] = ["" if done.stop_reason is None else str(done.stop_reason) for done in completions]
    if served.return_cumulative_logprob:
        logprobs = [done.cumulative_logprob for done in completions]
        values["cumulative_logprob"] = None if None in logprobs else logprobs
    if served.return_perf_metrics:
        values |= _metrics(completions)
    return {name: value for name, value in values.items() if value is not None}


def _metrics(completions: Sequence[Completion]) -> dict[str, object]:
    """Counts are added up; times are from the first arrival to the last token. None where the engine does not tell."""

    def over(name: str, combine: Callable[[Iterable[Any]], Any]) -> Any:
        values = [getattr(done, name) for done in completions]
        return None if None in values else combine(values)

    counts = {name: over(name, sum) for name in ("num_drafts", "total_draft_tokens", "total_accepted_draft_tokens")}
    drafted, accepted = counts["total_draft_tokens"], counts["total_accepted_draft_tokens"]
    times = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns")
    return {
        **counts,
        "acceptance_rate": None if drafted is None else accepted / drafted if drafted else 0.0,
        "accepted_per_position": over("accepted_per_position", _add_positions),
        **{name: over(name, min) for name in times},
        "last_token_time_ns": over("last_token_time_ns", max),
        **_cache([done.kv_cache for done in completions]),
    }


def _add_positions(lists: Iterable[list[int]]) -> list[int]:
    return [sum(counts) for counts in itertools.zip_longest(*lists, fillvalue=0)]


def _cache(uses: Sequence[KvCacheUse]) -> dict[str, object]:
    """Blocks are added up; the hit rate of several sequences follows from them."""
    values: dict[str, object] = {}
    for field in fields(KvCacheUse):
        found = [getattr(use, field.name) for use in uses]
        values[f"kv_cache_{field.name}"] = None if None in found else sum(found)
    reused, missed = values["kv_cache_reused_block"], values["kv_cache_missed_block"]
    if len(uses) > 1:
        known = reused is not None and missed is not None
        values["kv_cache_hit_rate"] = (reused / (reused + missed) if reused + missed else 0.0) if known else None
    return values
