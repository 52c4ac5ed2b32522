"""Drafting with a smaller model of the same vocabulary.

Source: speculative decoding (Leviathan et al. 2023, Chen et al. 2023). The draft model samples with the request's own
parameters through the same function as the target, and its probabilities travel with the tokens drawn from them.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.drafters.autoregressive import AutoregressiveDrafter
from trt_spec.runtime.drafters.draft_shapes import DraftShape, GrowingTree
from trt_spec.runtime.drafters.inputs import DrafterInputs
from trt_spec.runtime.models import Hidden, Model, load_model
from trt_spec.runtime.sequence import Sequence


class DraftModelDrafter(AutoregressiveDrafter):
    """Runs the draft model over all drafting sequences at once. It keeps how many of a sequence's tokens it has cached.

    Args:
        vocab_size: V of the target. Draft logits are cut or extended with −inf to it: the two may pad one vocabulary
            differently.

    An id that the draft model has no row for, from a prompt or from the target, stands as id 0 in the draft model's own
    context. So positions stay the target's, and the request is drafted for on; only acceptance can suffer, since every
    draft carries the probabilities that it was drawn from.
    """

    def __init__(self, model: Model, draft_shape: DraftShape, num_slots: int, max_seq_len: int, vocab_size: int):
        self.model, self.draft_shape, self.vocab_size = model, draft_shape, vocab_size
        self.max_positions = min(model.config.max_position_embeddings, max_seq_len)
        self.cache = model.make_cache(num_slots, max_seq_len + draft_shape.max_fed)
        self.caches = (self.cache,)

    def prefill(self, prompts: SequenceOf[tuple[Sequence, Rows]], hidden: Hidden) -> None:
        """Prefills the draft model with the same prompt chunks."""
        followed = [
            (sequence, rows) for sequence, rows in prompts if sequence.speculates and rows.length <= self.max_positions
        ]
        if followed:
            self._forward([rows for _, rows in followed])
        for sequence, rows in followed:
            sequence.drafter_states[self] = rows.start + rows.num_rows

    def _read(self, sequences: SequenceOf[Sequence]) -> Tensor:
        rows = []
        for sequence in sequences:
            start = sequence.drafter_states.get(self, 0)
            rows.append(Rows(sequence.slot, start, sequence.token_ids[start:]))
            sequence.drafter_states[self] = len(sequence.token_ids)
        hidden, offsets = self._forward(rows)
        return self._logits(hidden[torch.tensor(offsets[1:], device=hidden.device) - 1])

    def _extend(self, trees: SequenceOf[GrowingTree]) -> Tensor:
        hidden, _ = self._forward([tree.rows(tree.sequence.drafter_states[self]) for tree in trees])
        return self._logits(hidden)

    def _forward(self, rows: SequenceOf[Rows]) -> tuple[Tensor, list[int]]:
        batch = pack(rows, self.cache.slot_len, self.model.dtype, self.model.device)
        if self.model.vocab_size < self.vocab_size:
            is_known = batch.token_ids < self.model.vocab_size
            batch = replace(batch, token_ids=batch.token_ids.where(is_known, 0))
        return self.model.forward(batch, self.cache).last, batch.offsets

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.model.logits(hidden)
        missing = self.vocab_size - logits.shape[-1]
        return F.pad(logits, (0, missing), value=float("-inf")) if missing else logits


def make(inputs: DrafterInputs) -> DraftModelDrafter:
    """The draft model of the engine, loaded."""
    draft_shape, limits, target = inputs.draft_shape(), inputs.limits, inputs.target
    model = load_model(inputs.draft_dir, target.dtype, target.device, limits.max_seq_len + draft_shape.max_fed)
    return DraftModelDrafter(model, draft_shape, limits.max_batch_size, limits.max_seq_len, target.vocab_size)
