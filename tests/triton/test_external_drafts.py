"""The loop of external drafts: the output is the target's own, whatever is drafted, and every count adds up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trt_spec.triton.served_request import seed_of
from trt_spec.triton.trtllm.external_drafts import generate

END = 0


def target_of(text):
    """A target that continues by position: plain decoding gives text[0], text[1], …"""

    def verify(ids, drafted, number, *, prompt_length=2, leaves_end_out=False):
        added = []
        for token in text[len(ids) - prompt_length :][: len(drafted) + 1]:
            if token == END and leaves_end_out:
                break
            added.append(token)
            if token == END or len(added) > len(drafted) or token != drafted[len(added) - 1]:
                break
        return added

    return verify


@given(
    text=st.lists(st.integers(1, 4), min_size=1, max_size=20),
    guesses=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    has_end=st.booleans(),
    leaves_end_out=st.booleans(),
    max_draft_len=st.integers(0, 5),
    max_tokens=st.integers(1, 25),
)
def test_it_is_plain_decoding(text, guesses, has_end, leaves_end_out, max_draft_len, max_tokens):
    text = [*text, END] if has_end else text * 30
    rounds, texts = [], set()

    def draft(ids, count, number):
        return [guesses[(len(ids) + place) % len(guesses)] for place in range(count)]

    def verify(ids, drafted, number):
        rounds.append((len(drafted), number))
        assert tuple(ids) not in texts  # nothing is asked twice
        texts.add(tuple(ids))
        return target_of(text)(ids, drafted, number, leaves_end_out=leaves_end_out)

    done = generate([9, 9], max_tokens, max_draft_len, draft, verify, END)
    plain = text[:max_tokens]
    assert done.token_ids == [token for token in plain if not (token == END and leaves_end_out)]
    assert [number for _, number in rounds] == list(range(len(rounds)))
    assert done.num_draft_tokens == sum(length for length, _ in rounds)
    assert done.num_drafts == sum(length > 0 for length, _ in rounds)
    # Of each round's tokens all but one are accepted drafts, except where the output ended inside a draft.
    assert 0 <= len(done.token_ids) - done.num_accepted_tokens <= len(rounds)


@pytest.mark.parametrize(("words", "length"), [([[3, 4]], 4), ([[9], [2]], 2), ([[4, 1]], 6), ([[]], 6)])
def test_stop_words_also_across_rounds(words, length):
    text = [1, 2, 3, 4, 5, 6]
    for max_draft_len in range(5):
        done = generate(
            [9, 9], 6, max_draft_len, lambda ids, n, _: text[len(ids) - 2 :][:n], target_of(text), END, words
        )
        assert done.token_ids == text[:length]


def test_a_draft_that_is_all_right_saves_rounds():
    text = list(range(1, 21))
    done = generate([9, 9], 20, 4, lambda ids, n, _: text[len(ids) - 2 :][:n], target_of(text), END)
    assert (done.num_drafts, done.num_draft_tokens, done.num_accepted_tokens) == (4, 16, 16)
    assert done.acceptance_rate == 1.0


def test_a_target_that_says_nothing_ends_it():
    assert generate([9], 5, 3, lambda *_: [1, 1, 1], lambda *_: [], END).token_ids == []


def test_no_longer_draft_than_asked_for_is_used():
    seen = []
    generate([9, 9], 4, 2, lambda *_: [7] * 9, lambda ids, drafted, _: seen.append(len(drafted)) or [1], END)
    assert seen == [2, 2, 1, 0]


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_draft_that_raises_is_not_asked_again(first):
    text, asked = list(range(1, 21)), []

    def draft(ids, count, number):
        asked.append(number)
        if number >= first:
            raise IndexError("index out of range in self")
        return text[len(ids) - 2 :][:count]

    done = generate([9, 9], 20, 2, draft, target_of(text), END)
    assert done.token_ids == text
    assert asked == list(range(first + 1))
    assert (done.num_drafts, done.num_draft_tokens, done.num_accepted_tokens) == (first, 2 * first, 2 * first)
    assert isinstance(done.draft_error, IndexError)


def test_a_draft_ends_before_an_id_that_the_target_lacks():
    seen = []

    def verify(ids, drafted, number):
        seen.append(drafted)
        return [1]

    drafts = [[5, 320, 6], [400, 1, 1], [7, -1, 2], [319, 2, 3]]
    done = generate([9, 9], 4, 3, lambda ids, count, number: drafts[number], verify, END, num_ids=320)
    assert seen == [[5], [], [7], []]  # nothing fits beside the last token
    assert (done.num_drafts, done.draft_error) == (2, None)


def test_every_round_has_its_own_seed():
    seeds = {seed_of(seed, number) for seed in (0, 1, 2**64 - 1) for number in range(50)}
    assert len(seeds) == 150
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert seed_of(7, 3) == seed_of(7, 3)
