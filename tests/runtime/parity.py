"""What a native model has to share with transformers' model of the same checkpoint, whatever its family.

The reference sees whole sequences and no cache; the native model sees them packed, in chunks, in ragged batches and as
trees. Tolerance: float32 sums in another order over a few layers of logits below 10; what a wrong mask, position, scale
or expert does to them is larger by orders of magnitude, which `assert_sensitive` shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.models import Hidden, Model, load_model
from trt_spec.runtime.tree import DraftTree

MAX_LOGIT_GAP = 1e-4
NUM_POSITIONS = 160
CPU = torch.device("cpu")
PARENTS = (-1, -1, 0, 0, 1, 4, 2)  # two roots, a fork, and a path of three under each


class Pair:
    """One checkpoint, loaded by both sides."""

    def __init__(self, path: Path, reference):
        self.path, self.reference = path, reference
        self.model: Model = load_model(path, torch.float32, CPU, NUM_POSITIONS)

    def expected(self, tokens: Sequence[int]) -> Tensor:
        """The reference's logits [N, V] of a whole sequence."""
        with torch.inference_mode():
            return self.reference(torch.tensor([list(tokens)]), use_cache=False).logits[0]

    def tokens(self, count: int, seed: int = 0) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, self.model.vocab_size, (count,), generator=generator).tolist()

    def cache(self, num_slots: int = 1) -> KVCache:
        return self.model.make_cache(num_slots, NUM_POSITIONS)

    def run(self, cache: KVCache, rows: Sequence[Rows], capture: Sequence[int] = ()) -> Hidden:
        batch = pack(rows, cache.slot_len, self.model.dtype, self.model.device)
        with torch.inference_mode():
            return self.model.forward(batch, cache, capture)

    def logits(self, cache: KVCache, rows: Sequence[Rows]) -> list[Tensor]:
        """Logits [rows, V] of each sequence, in the order of `rows`, which has to be that of the slots."""
        hidden = self.run(cache, rows)
        with torch.inference_mode():
            return list(self.model.logits(hidden.last).split([item.num_rows for item in rows]))


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= MAX_LOGIT_GAP


def assert_sensitive(pair: Pair) -> None:
    """The logits depend on far tokens and on the order of near ones, by far more than the tolerance."""
    tokens = pair.tokens(90)
    expected = pair.expected(tokens)[-1]
    for changed in (
        [(tokens[0] + 1) % pair.model.vocab_size, *tokens[1:]],
        [*tokens[:-3], tokens[-2], tokens[-3], tokens[-1]],
    ):
        assert (pair.expected(changed)[-1] - expected).abs().max() > 10 * MAX_LOGIT_GAP


def assert_full_prompt(pair: Pair) -> None:
    """A prompt in one forward, and the residual stream that drafters capture."""
    tokens = pair.tokens(90)
    [actual] = pair.logits(pair.cache(), [Rows(0, 0, tokens)])
    assert_close(actual, pair.expected(tokens))
    num_layers = pair.model.config.num_hidden_layers
    hidden = pair.run(pair.cache(), [Rows(0, 0, tokens)], range(num_layers + 1))
    with torch.inference_mode():
        expected = pair.reference(torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states
    captured = hidden.aux.chunk(num_layers + 1, dim=-1)
    for actual, stream in zip(captured[:-1], expected[:-1], strict=True):
        assert_close(actual, stream[0])
    assert_close(pair.model.norm(captured[-1]), hidden.last)
    assert_close(hidden.last, expected[-1][0])


def assert_chunked_prompt(pair: Pair) -> None:
    """A prompt in chunks of odd sizes, one of them a single token."""
    tokens, cache, start, parts = pair.tokens(90), pair.cache(), 0, []
    for size in (7, 1, 66, 16):
        parts += pair.logits(cache, [Rows(0, start, tokens[start : start + size])])
        start += size
    assert_close(torch.cat(parts), pair.expected(tokens))


def assert_ragged_batch(pair: Pair) -> None:
    """Three sequences of different length prefill in one forward, then decode together with 1 to 3 rows each."""
    sequences = [pair.tokens(length + 8, seed=length) for length in (5, 17, 70)]
    cache, cached = pair.cache(3), [5, 17, 70]
    parts = [
        [part] for part in pair.logits(cache, [Rows(slot, 0, sequences[slot][: cached[slot]]) for slot in range(3)])
    ]
    for counts in ((1, 1, 1), (2, 1, 3), (3, 3, 1), (2, 3, 3)):
        rows = [
            Rows(slot, cached[slot], sequences[slot][cached[slot] : cached[slot] + count])
            for slot, count in enumerate(counts)
        ]
        for slot, part in enumerate(pair.logits(cache, rows)):
            parts[slot].append(part)
            cached[slot] += counts[slot]
    for tokens, found in zip(sequences, parts, strict=True):
        assert_close(torch.cat(found), pair.expected(tokens))


def assert_tree(pair: Pair) -> None:
    """A tree beside a chain in one forward: every node sees its own path and nothing else."""
    prompts = [pair.tokens(12, seed=1), pair.tokens(20, seed=2)]
    nodes = [pair.tokens(len(PARENTS), seed=3), pair.tokens(3, seed=4)]
    parents = [PARENTS, (-1, 0, 1)]
    cache = pair.cache(2)
    pair.run(cache, [Rows(slot, 0, prompt[:-1]) for slot, prompt in enumerate(prompts)])
    rows = [Rows(slot, len(prompts[slot]) - 1, prompts[slot][-1:] + nodes[slot], parents[slot]) for slot in range(2)]
    for slot, actual in enumerate(pair.logits(cache, rows)):
        assert_close(actual[0], pair.expected(prompts[slot])[-1])
        for node in range(len(nodes[slot])):
            path = [nodes[slot][ancestor] for ancestor in DraftTree.of(parents[slot]).path(node)]
            assert_close(actual[node + 1], pair.expected(prompts[slot] + path)[-1])


def assert_rollback(pair: Pair) -> None:
    """After a tree of which one path is kept, cache and next logits are those of a prefill from nothing."""
    prompt, nodes, following = pair.tokens(12, seed=1), pair.tokens(len(PARENTS), seed=3), pair.tokens(2, seed=5)
    cache = pair.cache()
    pair.run(cache, [Rows(0, 0, prompt)])
    pair.run(cache, [Rows(0, len(prompt), following[:1] + nodes, PARENTS)])
    path = [1, 4, 5]
    cache.keep(0, len(prompt) + 1, path)
    tokens = [*prompt, following[0], *(nodes[node] for node in path)]
    cold = pair.cache()
    pair.run(cold, [Rows(0, 0, tokens)])
    torch.testing.assert_close(cache.rows[:, : len(tokens)], cold.rows[:, : len(tokens)], atol=1e-5, rtol=1e-5)
    [actual] = pair.logits(cache, [Rows(0, len(tokens), following[1:])])
    assert_close(actual, pair.expected([*tokens, following[1]])[-1:])


CHECKS = [
    assert_sensitive,
    assert_full_prompt,
    assert_chunked_prompt,
    assert_ragged_batch,
    assert_tree,
    assert_rollback,
]
