"""Served tokens beside the target's law: one teacher-forced forward per sequence, and the laws to bet on.

The law is written here a second time, from the definitions of the parameters, and shares no code with the sampler
that serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from trt_spec.clients.client import Ask
from trt_spec.clients.trace import Trace
from trt_spec.equivalence.roles import roles_of
from trt_spec.equivalence.statistics.alternatives import Known, alternatives
from trt_spec.equivalence.statistics.sequential import Array, Positions
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.models import Model
from trt_spec.runtime.request import SamplingParams

NUM_CANDIDATES = 128  # larger vocabularies are scored as their likeliest tokens and one symbol for all others
_NUM_KEPT_PROMPTS = 64
_HASH = 2654435761  # Knuth's multiplicative hash: an order that has nothing to do with meaning or frequency


@dataclass(frozen=True)
class Served:
    """A request beside what a judge of its tokens needs of the answer.

    Attributes:
        prompt_ids, output_ids: as sent and received.
        prompt_index: which of the harness's prompts it was.
        logprobs, token_origins, finish_reason: see `Trace`; empty where the server said nothing.
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    params: SamplingParams
    prompt_index: int = 0
    logprobs: tuple[float, ...] = ()
    token_origins: tuple[int, ...] = ()
    finish_reason: str = ""

    @classmethod
    def of(cls, ask: Ask, trace: Trace, prompt_index: int = 0) -> Served:
        """Of a prompt that is ids."""
        return cls(
            ask.prompt.input_ids,
            trace.token_ids,
            ask.params.sampling,
            prompt_index,
            trace.logprobs or (),
            trace.token_origins or (),
            trace.finish_reason,
        )


class Scorer(Protocol):
    """Raw logits of a reference.

    Attributes:
        name: for the report.
    """

    name: str

    def logits(self, sequences: Sequence[Served]) -> list[Tensor]:
        """For each sequence, logits [n, V] float of its n output tokens given everything before them."""


class NativeScorer:
    """The runtime's own model, sequences packed into one forward, in a cache of its own.

    Keys and values of prompts are kept, for a harness serves the same prompts again and again.
    """

    def __init__(self, model: Model, name: str = "native runtime", max_rows: int = 1024):
        self.model, self.name, self.max_rows = model, name, max_rows
        self._prompts: dict[tuple[int, ...], Tensor] = {}

    @torch.inference_mode()
    def logits(self, sequences: Sequence[Served]) -> list[Tensor]:
        found: list[Tensor] = []
        group: list[Served] = []
        for sequence in sequences:
            if group and sum(_num_rows(item) for item in (*group, sequence)) > self.max_rows:
                found += self._forward(group)
                group = []
            group.append(sequence)
        return found + (self._forward(group) if group else [])

    def _forward(self, sequences: Sequence[Served]) -> list[Tensor]:
        slot_len = max(_num_rows(item) for item in sequences)
        cache = self.model.make_cache(len(sequences), slot_len)
        slots = cache.rows.view(len(cache.rows), len(sequences), slot_len, -1)
        rows = []
        for slot, item in enumerate(sequences):
            kept = self._prompts.get(item.prompt_ids)
            start = 0 if kept is None else kept.shape[1]
            if kept is not None:
                slots[:, slot, :start] = kept
            rows.append(Rows(slot, start, (*item.prompt_ids, *item.output_ids[:-1])[start:]))
        batch = pack(rows, slot_len, self.model.dtype, self.model.device)
        hidden = self.model.forward(batch, cache).last
        for slot, item in enumerate(sequences):
            if len(self._prompts) < _NUM_KEPT_PROMPTS and item.prompt_ids not in self._prompts:
                self._prompts[item.prompt_ids] = slots[:, slot, : len(item.prompt_ids) - 1].clone()
        wanted = [
            batch.offsets[slot + 1] - len(item.output_ids) + offset
            for slot, item in enumerate(sequences)
            for offset in range(len(item.output_ids))
        ]
        logits = self.model.logits(hidden[torch.tensor(wanted, device=hidden.device)])
        return list(logits.split([len(item.output_ids) for item in sequences]))


class TransformersScorer:
    """The target checkpoint in transformers: any architecture, and no code of this project."""

    def __init__(self, directory: str | Path, dtype: torch.dtype, device: torch.device):
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        self.name, self.device = "transformers", device
        was_enabled = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            self.model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=dtype, local_files_only=True)
        finally:
            if was_enabled:
                logging.enable_progress_bar()
        self.model.to(device).eval()

    @torch.inference_mode()
    def logits(self, sequences: Sequence[Served]) -> list[Tensor]:
        found = []
        for item in sequences:
            ids = torch.tensor([[*item.prompt_ids, *item.output_ids[:-1]]], device=self.device)
            rows = self.model(input_ids=ids, use_cache=False).logits[0]
            found.append(rows[-len(item.output_ids) :].float())
        return found


def _num_rows(item: Served) -> int:
    return len(item.prompt_ids) + len(item.output_ids) - 1


@dataclass(frozen=True)
class Vocabulary:
    """What else decides the law.

    Attributes:
        num_valid_tokens: ids from here on are padding and have no probability.
        eos_token_ids: end an output unless the request ignores them.
    """

    num_valid_tokens: int
    eos_token_ids: tuple[int, ...] = ()

    def ending(self, params: SamplingParams) -> tuple[int, ...]:
        eos = () if params.ignore_eos else self.eos_token_ids
        return tuple(token for token in (*eos, *params.stop_token_ids) if token < self.num_valid_tokens)


def is_penalised(params: SamplingParams) -> bool:
    return bool(params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty)


def is_filtered(params: SamplingParams) -> bool:
    return bool(params.top_k or params.top_p < 1 or params.min_p)


def processed(logits: Tensor, served: Served, vocabulary: Vocabulary, lag: int = 0) -> Tensor:
    """Penalties, bias and masks on raw logits [n, V].

    Args:
        lag: penalties overlook this many of the latest tokens (0 is right; 1 is a known fault, to bet on).
    """
    params, (num, size) = served.params, logits.shape
    logits = logits.clone()
    if is_penalised(params):
        hot = torch.nn.functional.one_hot(torch.tensor(served.output_ids), size).to(logits)
        counts = torch.zeros_like(logits)
        if num > 1 + lag:
            counts[1 + lag :] = hot.cumsum(0)[: num - 1 - lag]
        seen = counts > 0
        seen[:, list(served.prompt_ids)] = True
        factor = params.repetition_penalty
        logits[seen] = torch.where(logits > 0, logits / factor, logits * factor)[seen]
        logits -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    for token, bias in params.logit_bias.items():
        logits[:, token] += bias
    logits[:, vocabulary.num_valid_tokens :] = -torch.inf
    for token in vocabulary.ending(params):
        logits[: params.min_tokens, token] = -torch.inf
    return logits


def filtered(probs: Tensor, params: SamplingParams) -> Tensor:
    """Top-k, top-p on what is left, min-p, of laws [n, S] whose columns fall from left to right (rest: a last column).

    Ties with the last token that is kept are kept.
    """
    probs = probs.clone()
    if params.top_k and params.top_k < probs.shape[1]:
        probs[probs < probs[:, params.top_k - 1 : params.top_k]] = 0
        probs /= probs.sum(-1, keepdim=True)
    if params.top_p < 1:
        before = probs.cumsum(-1) - probs
        threshold = torch.where(before < params.top_p, probs, torch.inf).amin(-1, keepdim=True)
        probs[probs < threshold] = 0
        probs /= probs.sum(-1, keepdim=True)
    if params.min_p:
        probs[probs < params.min_p * probs[:, :1]] = 0
        probs /= probs.sum(-1, keepdim=True)
    return probs


def score(
    served: Served,
    logits: Tensor,
    vocabulary: Vocabulary,
    *,
    draft_logits: Tensor | None = None,
    twins: Sequence[int] | None = None,
    num_candidates: int = NUM_CANDIDATES,
    logsumexp: Tensor | None = None,
) -> Positions:
    """The positions of one output with temperature > 0.

    Args:
        logits: raw logits [n, V] of the reference.
        draft_logits: raw logits [n, V'] of a draft model at the same places, where there is one.
        twins: see `Known`.
        logsumexp: of the raw logits, [n], where it is known already.
    """
    params = served.params
    is_processed = is_penalised(params) or bool(params.logit_bias)
    is_masked = params.min_tokens > 0 or vocabulary.num_valid_tokens < logits.shape[1]
    full = processed(logits, served, vocabulary) if is_processed or is_masked else logits
    full = full.double() if full.shape[1] <= num_candidates else full
    width = min(num_candidates, full.shape[1])
    top = full.topk(width, dim=-1)
    is_cut = width < full.shape[1]

    def cut(raw: Tensor, temperature: float) -> Array:
        """The law of logits [n, V] as the candidates and the rest."""
        if temperature == 1 and raw is logits and logsumexp is not None:
            total = logsumexp[:, None]
        else:
            total = (raw if temperature == 1 else raw / temperature).logsumexp(-1, keepdim=True)
        near = (raw.gather(-1, top.indices) / temperature - total).exp().double().cpu().numpy()
        return np.concatenate([near, (1 - near.sum(-1, keepdims=True)).clip(min=0)], axis=-1) if is_cut else near

    unfiltered = cut(full, params.temperature)
    if is_cut and (params.top_k > width or (params.top_p < 1 and (unfiltered[:, -1] > 1 - params.top_p).any())):
        options = {"draft_logits": draft_logits, "twins": twins, "logsumexp": logsumexp}
        return score(served, logits, vocabulary, num_candidates=4 * num_candidates, **options)
    ordered = torch.from_numpy(unfiltered)
    has_filter = is_filtered(params)
    target = _keep_rest_last(ordered, params, is_cut).numpy() if has_filter else unfiltered
    known = Known(
        target_probs=target / target.sum(-1, keepdims=True),
        token_ids=top.indices.numpy(),
        temperature=params.temperature,
        unfiltered=unfiltered if has_filter else None,
        untempered=cut(full, 1.0) if params.temperature != 1 else None,
        unprocessed=cut(logits, params.temperature) if is_processed else None,
        late=cut(processed(logits, served, vocabulary, lag=1), params.temperature) if is_penalised(params) else None,
        draft=None if draft_logits is None else _draft_probs(draft_logits, served, vocabulary, top.indices, is_cut),
        ending=vocabulary.ending(params),
        context=(*served.prompt_ids, *served.output_ids),
        num_prompt_tokens=len(served.prompt_ids),
        twins=tuple(twins) if twins is not None else (-1,) * len(served.output_ids),
    )
    tokens = _places(top.indices.numpy(), np.array(served.output_ids), is_cut)
    roles = roles_of(served.token_origins) if len(served.token_origins) == len(tokens) else None
    return Positions(known.target_probs, tokens, alternatives(known), orderings(known, is_cut), roles)


def _keep_rest_last(ordered: Tensor, params: SamplingParams, is_cut: bool) -> Tensor:
    if not is_cut:
        return filtered(ordered, params)
    near, rest = ordered[:, :-1], ordered[:, -1:]
    if not params.top_k and params.top_p == 1:  # min-p alone: the rest is gone if its largest token is
        smallest = near[:, -1:]
        rest = torch.where(smallest < params.min_p * near[:, :1], 0.0, rest)
        kept = torch.cat([near * (near >= params.min_p * near[:, :1]), rest], dim=-1)
        return kept / kept.sum(-1, keepdim=True)
    scale = 1.0 if params.top_k else near.sum(-1, keepdim=True) + rest
    return torch.cat([filtered(near / scale, params), torch.zeros_like(rest)], dim=-1)


def _draft_probs(logits: Tensor, served: Served, vocabulary: Vocabulary, candidates: Tensor, is_cut: bool) -> Array:
    """The draft model's law under the request's own parameters, as drafters compute it."""
    params, missing = served.params, vocabulary.num_valid_tokens - logits.shape[1]
    logits = torch.nn.functional.pad(logits, (0, max(missing, 0)), value=-torch.inf)
    probs = (processed(logits, served, vocabulary) / params.temperature).softmax(-1)
    if is_filtered(params):
        ordered = probs.sort(-1, descending=True)
        probs = torch.zeros_like(probs).scatter(-1, ordered.indices, filtered(ordered.values, params))
    inside = candidates < probs.shape[1]
    near = probs.gather(-1, candidates.clamp(max=probs.shape[1] - 1)).where(inside, 0).double().cpu().numpy()
    return np.concatenate([near, (1 - near.sum(-1, keepdims=True)).clip(min=0)], axis=-1) if is_cut else near


def _places(candidates: np.ndarray, tokens: np.ndarray, is_cut: bool) -> np.ndarray:
    """Column of every served token; the last one where it is no candidate."""
    match = candidates == tokens[:, None]
    return np.where(match.any(-1), match.argmax(-1), candidates.shape[1] if is_cut else 0)


def orderings(known: Known, is_cut: bool) -> dict[str, Array]:
    """Sort keys by name, with all others last: by probability, by id (as samplers invert cumulative laws), by a hash
    of the id, and by q/p where q is known."""
    p, ids = known.target_probs, known.token_ids.astype(np.float64)
    keys = {"probability": -p[:, : ids.shape[1]], "id": ids, "hash": known.token_ids * _HASH % 2**32}
    if known.draft is not None:
        keys["draft ratio"] = (-known.draft / np.maximum(p, 1e-30))[:, : ids.shape[1]]
    return {name: np.pad(key, ((0, 0), (0, int(is_cut))), constant_values=2.0**33) for name, key in keys.items()}
