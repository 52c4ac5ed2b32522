"""Drafting with a smaller model of the same vocabulary.

Source: speculative decoding (Leviathan et al. 2023, Chen et al. 2023). The draft model samples with the request's own
parameters through the same function as the target, and its probabilities travel with the tokens drawn from them.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from trt_spec.runtime.acceptance import Draft, Verdict
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.models import Hidden, Model
from trt_spec.runtime.randomness import Randomness, Role
from trt_spec.runtime.sampling import logits_to_probs
from trt_spec.runtime.sequence import Sequence


class DraftModelDrafter:
    """Runs the draft model autoregressively over all drafting sequences at once.

    Args:
        vocab_size: V of the target. Draft logits are cut or extended with −inf to it: the two may pad one vocabulary
            differently.
    """

    capture = ()

    def __init__(self, model: Model, num_slots: int, slot_len: int, vocab_size: int):
        self.model, self.vocab_size = model, vocab_size
        self.max_positions = min(model.config.max_position_embeddings, slot_len)
        self.cache = model.make_cache(num_slots, slot_len)
        self.caches = (self.cache,)

    def observe(self, prompts: SequenceOf[tuple[Sequence, Rows]], hidden: Hidden) -> None:
        """Prefills the draft model with the same prompt chunks."""
        followed = [
            (sequence, rows) for sequence, rows in prompts if sequence.request.speculation and self._can_follow(rows)
        ]
        if followed:
            self._forward([rows for _, rows in followed])
        for sequence, rows in followed:
            sequence.num_draft_cached_tokens = rows.start + rows.num_rows

    def _can_follow(self, rows: Rows) -> bool:
        return rows.start + rows.num_rows <= self.max_positions

    def propose(self, sequences: SequenceOf[Sequence], max_lens: SequenceOf[int], source: Randomness) -> list[Draft]:
        """Feeds what the draft cache lacks, then one token per position; sequences drop out at their own length."""
        tokens: list[list[int]] = [[] for _ in sequences]
        laws: list[list[Tensor]] = [[] for _ in sequences]
        feed = [
            Rows(
                sequence.slot, sequence.num_draft_cached_tokens, sequence.token_ids[sequence.num_draft_cached_tokens :]
            )
            for sequence in sequences
        ]
        active = list(range(len(sequences)))
        for depth in range(max(max_lens)):
            logits = self._forward([feed[index] for index in active])
            for row, index in enumerate(active):
                token, law = self._draw(sequences[index], logits[row : row + 1], tokens[index], depth, source)
                tokens[index].append(token)
                laws[index].append(law)
                feed[index] = Rows(feed[index].slot, feed[index].start + feed[index].num_rows, [token])
            active = [index for index in active if depth + 1 < max_lens[index]]
        return [
            Draft.chain(chain, None if law[0] is None else torch.stack(law))
            for chain, law in zip(tokens, laws, strict=True)
        ]

    def _forward(self, rows: SequenceOf[Rows]) -> Tensor:
        """Runs packed rows; returns the logits [sequences, V] after each sequence's last row."""
        batch = pack(rows, self.cache.slot_len, self.model.dtype, self.model.device)
        last = torch.tensor(batch.offsets[1:], device=self.model.device) - 1
        logits = self.model.logits(self.model.forward(batch, self.cache).last[last])
        missing = self.vocab_size - logits.shape[-1]
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf")) if missing else logits

    def _draw(
        self, sequence: Sequence, logits: Tensor, drafted: list[int], depth: int, source: Randomness
    ) -> tuple[int, Tensor | None]:
        """A draft token and the law [V] it was drawn from; (argmax, None) for greedy requests."""
        logits = sequence.processor(logits, sequence.history, sequence.num_output_tokens, [drafted])
        if sequence.request.params.temperature == 0:
            return int(logits.argmax(-1)), None
        law = logits_to_probs(logits, sequence.request.params)[0]
        return sequence.stream(source).choose(law, Role.DRAFT, depth), law

    def commit(
        self,
        sequences: SequenceOf[Sequence],
        drafts: SequenceOf[Draft],
        verdicts: SequenceOf[Verdict],
        hidden: SequenceOf[Hidden],
    ) -> None:
        """Keeps the cached rows of accepted tokens; the last draft token was never fed."""
        for sequence, draft, verdict in zip(sequences, drafts, verdicts, strict=True):
            num_valid = min(len(verdict.path), len(draft.token_ids) - 1)
            sequence.num_draft_cached_tokens = len(sequence.token_ids) + num_valid

    def release(self, sequence: Sequence) -> None:
        pass
