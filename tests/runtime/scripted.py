"""A target whose logits are a table, and a drafter that knows the answer: blocks end and are cut where a test wants.

The target's cache holds the token ids themselves, so that what is cached of a sequence can be read off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trt_spec.runtime.acceptance import ACCEPTANCE_RULES, Draft
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.drafters.base import Drafter
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.models import Hidden

NUM_ROWS = 97  # of the table; prime, so that positions and tokens mix


class ScriptedTarget:
    """Logits of a row: a row of the table, chosen by its token and position, plus `boost` for the scripted token.

    Args:
        table: [NUM_ROWS, V].
        script: the likeliest token after each position, where `boost` is large.
    """

    dtype, device, num_positions = torch.float32, torch.device("cpu"), 10_000

    def __init__(self, table: Tensor, script: list[int] = (), boost: float = 0.0):
        self.table, self.script, self.boost = table, list(script), boost
        self.vocab_size = table.shape[1]

    def make_cache(self, num_slots, slot_len, num_layers=None):
        return KVCache(1, num_slots, slot_len, 1, self.dtype, self.device)

    def forward(self, batch, cache, capture=()):
        cache.layers[0][batch.cache_rows, 0] = batch.token_ids.float()
        rows = self.table[(batch.positions * 31 + batch.token_ids * 7) % NUM_ROWS].clone()
        for row, position in enumerate(batch.positions.tolist()):
            if position < len(self.script):
                rows[row, self.script[position]] += self.boost
        return Hidden(rows)

    def logits(self, hidden):
        return hidden


class KnowingDrafter(Drafter):
    """Proposes what it was told that a request will say, with a wrong token at some places.

    Attributes:
        answers: request id to all its tokens, prompt first.
        wrong: places in a sequence where another token is proposed.
        is_tree: a wrong sibling comes before every right token, which so lies at odd places of the tree.
    """

    def __init__(self, vocab_size: int):
        self.vocab_size, self.answers, self.wrong, self.is_tree = vocab_size, {}, frozenset(), False

    def propose(self, sequences, max_lens, source):
        return [self._draft(sequence, length) for sequence, length in zip(sequences, max_lens, strict=True)]

    def _draft(self, sequence, length):
        start = len(sequence.token_ids)
        answer = self.answers.get(sequence.request.request_id, [])[start : start + length]
        tokens = [self._other(token) if start + i in self.wrong else token for i, token in enumerate(answer)]
        if not self.is_tree:
            return Draft.chain(tokens)
        pairs = [item for token in tokens for item in (self._other(token), token)]
        parents = [parent for level in range(len(tokens)) for parent in [2 * level - 1] * 2]
        return Draft(torch.tensor(pairs, dtype=torch.int64), torch.tensor(parents, dtype=torch.int64))

    def _other(self, token):
        return (token + 1) % self.vocab_size


def scripted_engine(target: ScriptedTarget, *, max_draft_len: int = 4, max_seq_len: int = 64, **kwargs) -> Engine:
    limits = EngineLimits(4, max_seq_len, 16, 64, max_draft_len, 2 * max_draft_len)
    drafter = KnowingDrafter(target.vocab_size)
    return Engine(target, drafter, ACCEPTANCE_RULES["rejection"], limits, **kwargs)


def check_cache(engine: Engine) -> None:
    """Fails where a slot holds anything but its sequence's tokens."""
    for sequence in engine.scheduler.running:
        cached = engine.cache.slots(0, sequence.slot, sequence.slot + 1, sequence.num_cached_tokens)[0, :, 0]
        assert cached.int().tolist() == sequence.token_ids[: sequence.num_cached_tokens]
        if sequence.is_decoding:
            assert sequence.num_pending_tokens == 1
    assert [sequence.slot for sequence in engine.scheduler.running] == list(range(len(engine.scheduler.running)))


def run_one(engine: Engine, request) -> list:
    """All chunks of one request, with the cache checked after every step."""
    engine.add(request)
    chunks = []
    while engine.has_work:
        chunks += engine.step()
        check_cache(engine)
    return chunks
