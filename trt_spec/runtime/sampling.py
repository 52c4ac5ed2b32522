"""From logits to probabilities, for the target and for every drafter alike.

The order is fixed: repetition penalty, frequency and presence penalties, bias, masks (min_tokens, padding of the
vocabulary), temperature, top-k, top-p on what top-k left, min-p. Filters keep every token that ties with the last one
kept, so the result never depends on a sort order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trt_spec.runtime.request import SamplingParams

ARGMAX_BLOCK = 256  # tokens
NUCLEUS_CANDIDATES = 512  # top-p looks among this many tokens first; only flatter rows are sorted in full


def logits_to_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """Temperature, top-k, top-p and min-p on processed logits [R, V]; T = 0 is a one-hot at the first argmax."""
    if params.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    # Below the smallest number of the type, which a processor may take for 0, the result is that of its limit anyway.
    temperature = max(params.temperature, torch.finfo(logits.dtype).tiny)
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature
    if 0 < params.top_k < scaled.shape[-1]:
        smallest = scaled.topk(params.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < smallest, float("-inf"))
    probs = scaled.softmax(-1)
    if params.top_p < 1:
        probs = probs.where(probs >= nucleus_threshold(probs, params.top_p), 0)
    if params.min_p > 0:
        probs = probs.where(probs >= params.min_p * probs.amax(-1, keepdim=True), 0)
    if params.top_p < 1 or params.min_p > 0:
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def finite_rows(logits: Tensor) -> list[bool]:
    """Whether each row of logits [R, V] is finite throughout.

    A sum says so in one pass, a tenth of the time of looking at each number; where it is not finite, each is looked at,
    for a sum of finite numbers may overflow.
    """
    is_finite = logits.sum(-1).isfinite()
    return (is_finite if is_finite.all() else logits.isfinite().all(-1)).tolist()


def first_argmax(logits: Tensor) -> list[int]:
    """The first largest place of each row of logits [R, V]: argmax, several times faster on CPU.

    torch finds a largest value in vector operations, but not its place. So blocks are looked through for their largest
    values, and then one block for the place.
    """
    if logits.device.type != "cpu" or logits.shape[-1] % ARGMAX_BLOCK:
        return logits.argmax(-1).tolist()
    blocks = logits.unflatten(-1, (-1, ARGMAX_BLOCK))
    best = blocks.amax(-1).argmax(-1)
    inside = blocks[torch.arange(len(best)), best].argmax(-1)
    return (best * ARGMAX_BLOCK + inside).tolist()


def has_choice(logits: Tensor) -> bool:
    """Whether every row of processed logits [R, V] gives probabilities: a largest logit, which is finite."""
    return bool(logits.amax(-1).isfinite().all())


def nucleus_threshold(probs: Tensor, top_p: float) -> Tensor:
    """The smallest probability [R, 1] inside the smallest set of largest tokens whose mass reaches `top_p`."""
    num_candidates = min(NUCLEUS_CANDIDATES, probs.shape[-1])
    threshold, is_enough = _threshold_among(probs.topk(num_candidates, dim=-1).values, top_p)
    if num_candidates < probs.shape[-1] and not is_enough.all():
        flat = ~is_enough
        threshold[flat] = _threshold_among(probs[flat].sort(-1, descending=True).values, top_p)[0]
    return threshold[:, None]


def _threshold_among(descending: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """(threshold [R], whether these candidates reach the mass [R]) for candidates sorted downwards [R, C]."""
    mass = descending.cumsum(-1, dtype=torch.float64)
    last = ((mass - descending) < top_p).sum(-1, keepdim=True).clamp_(min=1) - 1  # the token that crosses top_p
    return descending.gather(-1, last)[:, 0], mass[:, -1] >= top_p


@dataclass
class History:
    """What penalties need to know of one request: which tokens the prompt holds, how often each was generated."""

    in_prompt: Tensor  # [V] bool
    counts: Tensor  # [V] float

    @classmethod
    def of(cls, prompt: Sequence[int], vocab_size: int, device: torch.device) -> History:
        in_prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        in_prompt[list(prompt)] = True
        return cls(in_prompt, torch.zeros(vocab_size, device=device))

    def add(self, token_ids: Sequence[int]) -> None:
        self.counts.index_put_(
            (torch.tensor(token_ids, dtype=torch.int64, device=self.counts.device),),
            torch.ones(len(token_ids), device=self.counts.device),
            accumulate=True,
        )


@dataclass(frozen=True)
class LogitsProcessor:
    """Penalties, bias and masks of one request.

    Attributes:
        num_valid_tokens: ids from here on are padding of the vocabulary and get no probability.
        ending_token_ids: ids that would end the output, masked until `min_tokens` are there.
    """

    params: SamplingParams
    num_valid_tokens: int
    ending_token_ids: tuple[int, ...]

    def needs_history(self) -> bool:
        p = self.params
        return p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0

    def __call__(
        self, logits: Tensor, history: History | None, num_output: int, drafted: Sequence[Sequence[int]]
    ) -> Tensor:
        """Processes logits [R, V] of this request.

        Args:
            history: committed tokens; needed where `needs_history`.
            num_output: tokens generated and committed so far.
            drafted: for each row, the draft tokens between the last committed token and that row.
        """
        logits = logits.clone()
        if history is not None and self.needs_history():
            logits = self._penalise(logits, history, drafted)
        if self.params.logit_bias:
            ids = torch.tensor(list(self.params.logit_bias), device=logits.device)
            values = torch.tensor(list(self.params.logit_bias.values()), dtype=logits.dtype, device=logits.device)
            logits[:, ids] += values
        if self.num_valid_tokens < logits.shape[-1]:
            logits[:, self.num_valid_tokens :] = float("-inf")
        if self.params.min_tokens > num_output:
            early = [row for row, tokens in enumerate(drafted) if num_output + len(tokens) < self.params.min_tokens]
            for token in self.ending_token_ids:
                logits[early, token] = float("-inf")
        return logits

    def is_identity(self, vocab_size: int, num_output: int) -> bool:
        """Whether the call would return the logits as they are."""
        return not (
            self.needs_history()
            or self.params.logit_bias
            or self.num_valid_tokens < vocab_size
            or self.params.min_tokens > num_output
        )

    def _penalise(self, logits: Tensor, history: History, drafted: Sequence[Sequence[int]]) -> Tensor:
        """Repetition (Keskar et al. 2019, over prompt and output), then frequency and presence (over the output)."""
        counts = history.counts.to(logits.dtype).repeat(len(drafted), 1)
        rows = [row for row, tokens in enumerate(drafted) for _ in tokens]
        if rows:
            ids = [token for tokens in drafted for token in tokens]
            index = (torch.tensor(rows, device=logits.device), torch.tensor(ids, device=logits.device))
            counts.index_put_(index, torch.ones(len(ids), dtype=counts.dtype, device=logits.device), accumulate=True)
        p = self.params
        if p.repetition_penalty != 1:
            seen = history.in_prompt | (counts > 0)
            logits = logits.where(
                ~seen, torch.where(logits > 0, logits / p.repetition_penalty, logits * p.repetition_penalty)
            )
        return logits - p.frequency_penalty * counts - p.presence_penalty * (counts > 0)
