"""Packing, trees, slots, randomness and lookup: the small parts under the engine."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.models import cold_logits, tiny_model
from trt_spec.errors import ConfigError
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.drafters.ngram import NgramIndex
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.randomness import Draw, PhiloxRandomness, Role
from trt_spec.runtime.scheduler import Scheduler
from trt_spec.runtime.tree import DraftTree, tree_of_choices

trees = st.lists(st.integers(0, 100), max_size=9).map(
    lambda picks: [pick % (node + 1) - 1 for node, pick in enumerate(picks)]
)


@given(trees)
def test_tree_functions_agree_with_each_other(parents):
    tree = DraftTree.of(parents)
    paths = [tree.path(node) for node in range(len(parents))]
    assert [len(path) - 1 for path in paths] == list(tree.depths)
    assert all(path[-1] == node and sorted(path) == path for node, path in enumerate(paths))
    assert sorted(child for group in tree.children.values() for child in group) == list(range(len(parents)))
    assert tree.is_chain == (parents == list(range(-1, len(parents) - 1)))


@given(trees, st.integers(1, 3), st.integers(0, 3))
def test_a_tree_row_sees_what_its_own_path_would(parents, num_committed, num_cached):
    """Logits at every node equal those of a cold run over prompt, committed tokens and the node's path."""
    model = MODEL
    committed = [5, 9, 2, 11, 3, 8][: num_cached + num_committed]
    drafted = [(7 * node + 1) % 32 for node in range(len(parents))]
    cache = model.make_cache(3, 40)
    with torch.inference_mode():
        if num_cached:
            model.forward(pack([Rows(1, 0, committed[:num_cached])], 40, torch.float32, model.device), cache)
        rows = [
            Rows(0, 0, [4, 4, 4, 4]),
            Rows(1, num_cached, committed[num_cached:] + drafted, parents),
            Rows(2, 0, [1]),
        ]
        batch = pack(rows, 40, torch.float32, model.device)
        logits = model.logits(model.forward(batch, cache).last)[batch.offsets[1] : batch.offsets[2]]
    for node in range(len(parents)):
        path = [drafted[ancestor] for ancestor in DraftTree.of(parents).path(node)]
        torch.testing.assert_close(
            logits[num_committed + node], cold_logits(model, committed + path)[-1], atol=1e-4, rtol=1e-4
        )


@given(trees, st.integers(0, 4))
def test_nodes_fed_level_by_level_give_what_they_give_together(parents, num_cached):
    """Draft models feed a tree in pieces: nodes that are cached already are seen but not fed again."""
    committed, drafted = [5, 9, 2], [(7 * node + 1) % 32 for node in range(len(parents))]
    cut = min(num_cached, len(parents))

    def logits(rows):
        batch = pack([Rows(0, 0, [4, 4]), rows, Rows(2, 0, [1])], 40, torch.float32, MODEL.device)
        return MODEL.logits(MODEL.forward(batch, cache).last)[batch.offsets[1] : batch.offsets[2]]

    with torch.inference_mode():
        cache = MODEL.make_cache(3, 40)
        together = logits(Rows(1, 0, committed + drafted, parents))[3:]
        cache = MODEL.make_cache(3, 40)
        pieces = [logits(Rows(1, 0, committed + drafted[:cut], parents[:cut]))[3:]]
        if cut < len(parents):
            pieces.append(logits(Rows(1, 3, drafted[cut:], parents, cut)))
    torch.testing.assert_close(torch.cat(pieces), together, atol=1e-4, rtol=1e-4)


@given(trees)
def test_mask_and_path_say_the_same(parents):
    tree = DraftTree.of(parents)
    assert [row.nonzero()[:, 0].tolist() for row in tree.mask()] == [tree.path(node) for node in range(len(tree))]


def test_static_trees_of_choices():
    tree, ranks = tree_of_choices([[1], [0, 1], [0], [0, 0], [0, 1, 3]])
    assert tree.parents == (-1, -1, 0, 0, 3)
    assert ranks == (0, 1, 0, 1, 3)
    for bad in ([[0], [0]], [[0, 0]], [[]], [[-1]]):
        with pytest.raises(ConfigError, match="choice"):
            tree_of_choices(bad)


MODEL = tiny_model()


def test_segments_are_runs_of_neighbouring_slots_and_prompts_stand_alone():
    rows = [Rows(0, 3, [1]), Rows(1, 5, [1, 2], [-1]), Rows(3, 2, [1]), Rows(4, 0, list(range(70))), Rows(5, 0, [1, 2])]
    batch = pack(rows, 100, torch.float32, torch.device("cpu"))
    assert [(s.slot_start, s.slot_end) for s in batch.segments] == [(0, 2), (3, 4), (4, 5), (5, 6)]
    assert batch.offsets == [0, 1, 3, 4, 74, 76]
    assert batch.cache_rows.tolist()[:4] == [3, 105, 106, 302]


@pytest.mark.parametrize(
    ("counts", "runs"),
    [
        ([1] * 8, [(0, 8)]),
        ([1, 3, 1, 3], [(0, 4)]),
        ([1] * 8 + [9] + [1] * 7, [(0, 8), (8, 9), (9, 16)]),  # 64 and 56 rows of padding
        ([1] * 4 + [9] + [1] * 3, [(0, 4), (4, 8)]),  # 32 and 24
        ([9] * 4 + [1] * 16 + [9] * 4, [(0, 4), (4, 20), (20, 24)]),
    ],
)
def test_few_long_drafts_do_not_pad_many_short_ones(counts, runs):
    chains = [Rows(slot, 4, list(range(count)), list(range(-1, count - 2))) for slot, count in enumerate(counts)]
    batch = pack(chains, 20, torch.float32, torch.device("cpu"))
    assert [(s.slot_start, s.slot_end) for s in batch.segments] == runs
    assert [(s.row_start, s.row_end) for s in batch.segments] == [
        (batch.offsets[start], batch.offsets[end]) for start, end in runs
    ]


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_logits_do_not_depend_on_how_slots_are_grouped(counts):
    def logits(most):
        cache = MODEL.make_cache(6, 20)
        rows = [Rows(slot, 0, [slot + 1, *range(count - 1)]) for slot, count in enumerate(counts)]
        with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
            patch.setattr("trt_spec.runtime.batch.MAX_PADDED_ROWS", most)
            batch = pack(rows, 20, torch.float32, MODEL.device)
            return MODEL.logits(MODEL.forward(batch, cache).last)

    torch.testing.assert_close(logits(0), logits(1000), atol=1e-4, rtol=1e-4)


def test_keep_and_move():
    cache = KVCache(2, 3, 8, 1, torch.float32, torch.device("cpu"))
    cache.rows[:] = torch.arange(24.0)[None, :, None]
    cache.keep(1, 3, [1, 3])
    assert cache.rows[1, 8:16, 0].tolist() == [8, 9, 10, 12, 14, 13, 14, 15]
    cache.keep(2, 0, [0, 1])
    assert cache.rows[0, 16:, 0].tolist() == list(range(16, 24))
    cache.move(1, 0, 5)
    assert cache.rows[0, :5, 0].tolist() == [8, 9, 10, 12, 14]


class _Fake:
    """A sequence as the scheduler sees it."""

    def __init__(self, prompt):
        self.slot, self.num_pending_tokens, self.is_decoding = -1, prompt, False


@given(st.integers(0, 10_000))
def test_slots_stay_dense_and_decoding_ones_in_front(seed):
    rng = random.Random(seed)
    contents: dict[int, _Fake] = {}

    def move(source, destination, sequence):
        assert contents[source] is sequence
        contents[destination] = sequence

    scheduler = Scheduler(4, 9, move)
    for _ in range(40):
        if rng.random() < 0.6:
            scheduler.waiting.append(_Fake(rng.randint(1, 20)))
        work = scheduler.schedule(2)
        contents.update({sequence.slot: sequence for sequence in scheduler.running})
        assert [s.slot for s in scheduler.running] == list(range(len(scheduler.running)))
        flags = [s.is_decoding for s in scheduler.running]
        assert flags == sorted(flags, reverse=True)
        assert work.decoding == [s for s in scheduler.running if s.is_decoding]
        assert sum(count for _, count in work.prefills) <= max(9 - 2 * len(work.decoding), 1)
        for sequence, count in work.prefills:
            sequence.num_pending_tokens -= count
            sequence.is_decoding = sequence.num_pending_tokens == 0
        for sequence in [s for s in scheduler.running if rng.random() < 0.2]:
            scheduler.release(sequence)
        for sequence in [s for s in scheduler.waiting if rng.random() < 0.1]:
            scheduler.release(sequence)
        assert all(contents[s.slot] is s for s in scheduler.running)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 3), st.integers(0, 2), st.integers(1, 7))
def test_ngram_lookup_equals_a_search(tokens, min_size, extra, length):
    """The index, grown token by token, gives what a search over the whole text gives."""
    index = NgramIndex(min_size, min_size + extra)
    for end in range(1, len(tokens) + 1):
        got = index.lookup(tokens[:end], length)
    want = []
    for size in range(min_size + extra, min_size - 1, -1):
        ends = [end for end in range(size, len(tokens)) if tokens[end - size : end] == tokens[len(tokens) - size :]]
        if size <= len(tokens) and ends:
            text = list(tokens)
            for _ in range(length):
                text.append(text[ends[-1] + len(text) - len(tokens)])
            want = text[len(tokens) :]
            break
    assert got == want


def test_random_numbers_are_uniform_and_keys_independent():
    """χ² over bins of 22 500 draws, and of pairs of neighbouring keys. False alarm 1e-6 each; no seed but the keys."""
    from scipy.stats import chi2

    source = PhiloxRandomness()
    keys = [
        Draw(seed, step, role, index)
        for seed in range(10)
        for step in range(250)
        for role in Role
        for index in range(3)
    ]
    values = [source.uniform(key) for key in keys]
    assert len(set(values)) == len(values)
    assert all(0 <= value < 1 for value in values)
    pairs = [int(a * 8) * 8 + int(b * 8) for a, b in itertools.pairwise(values)]
    for cells, bins in (([int(value * 32) for value in values], 32), (pairs, 64)):
        counts = torch.bincount(torch.tensor(cells), minlength=bins).double()
        expected = len(cells) / bins
        assert float(((counts - expected) ** 2 / expected).sum()) < chi2.isf(1e-6, bins - 1)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_choose_follows_the_row_and_never_takes_a_zero(scale):
    """20 000 draws from 6 tokens: χ² at false alarm 1e-6 sees a TV of 0.03; rows need no normalisation."""
    from scipy.stats import chi2

    law = torch.tensor([0.0, 0.5, 0.2, 0.0, 0.3, 0.0])
    draws = [Draw(1, step, Role.TARGET, 0) for step in range(20_000)]
    chosen = PhiloxRandomness().choose((law * scale).expand(len(draws), -1), draws)
    counts = torch.bincount(torch.tensor(chosen), minlength=6).double()
    assert counts[law == 0].sum() == 0
    expected = law[law > 0].double() * len(draws)
    assert float(((counts[law > 0] - expected) ** 2 / expected).sum()) < chi2.isf(1e-6, 2)
