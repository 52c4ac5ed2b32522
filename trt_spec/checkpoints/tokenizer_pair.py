"""Do two tokenizers mean the same by every id? Compared id by id; sizes alone prove nothing.

Equal tokenizers often come with models of different `vocab_size` (Qwen2: 151 936 and 152 064): the rows beyond the
tokenizer are padding, which no text uses. And equal sizes can hide a permutation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import PairError

NUM_SHOWN = 10
# Names of ids that a vocabulary keeps free: no text and no training uses them.
_RESERVED = re.compile(rb"(?i).*(reserved|unused|placeholder|extra_id|dummy|\bpad\b).*")


@dataclass(frozen=True)
class TokenizerPair:
    """Two tokenizers that agree on every id that both can generate.

    Attributes:
        num_shared: Ids that mean the same bytes in both.
        tolerated_ids: Special ids of different names, at least one of which is a reserved name.
        target_only_ids: Added ids at the end that only the target's tokenizer has.
        draft_only_ids: Added ids at the end that only the draft's tokenizer has; the target never emits them.
        target_padded_ids: Rows of the target model that no token uses, as [first, last + 1).
        draft_padded_ids: The same for the draft model.
    """

    num_shared: int
    tolerated_ids: tuple[int, ...]
    target_only_ids: tuple[int, ...]
    draft_only_ids: tuple[int, ...]
    target_padded_ids: tuple[int, int]
    draft_padded_ids: tuple[int, int]


def check_tokenizer_pair(
    target: Tokenizer,
    draft: Tokenizer,
    *,
    target_vocab_size: int | None = None,
    draft_vocab_size: int | None = None,
) -> TokenizerPair:
    """Compares the tokenizers of a target and a draft model; the sizes are rows of their output heads.

    Raises:
        PairError: Some id means different bytes; gives the count and the first ten. Drafting across tokenizers is not
            offered: it would have to re-encode text, and accepted ids would mean other words.
    """
    num_common = min(target.vocab_size, draft.vocab_size)
    differing: list[int] = []
    tolerated: list[int] = []
    for token_id in range(num_common):
        in_target, in_draft = ((one.has_id(token_id), one.raw_bytes(token_id)) for one in (target, draft))
        if in_target != in_draft:
            (tolerated if _is_tolerable(target, draft, token_id) else differing).append(token_id)
    target_only, draft_only = (
        tuple(token_id for token_id in range(num_common, one.vocab_size) if one.has_id(token_id))
        for one in (target, draft)
    )
    # Ids that one side lacks are harmless only where they are added tokens: an ordinary word there means that the
    # vocabularies are of different make, even though their beginnings agree.
    differing += [i for i in target_only if not target.is_added(i)] + [i for i in draft_only if not draft.is_added(i)]
    if differing:
        raise _mismatch(target, draft, differing)
    return TokenizerPair(
        num_shared=num_common - len(tolerated),
        tolerated_ids=tuple(tolerated),
        target_only_ids=target_only,
        draft_only_ids=draft_only,
        target_padded_ids=(target.vocab_size, max(target_vocab_size or 0, target.vocab_size)),
        draft_padded_ids=(draft.vocab_size, max(draft_vocab_size or 0, draft.vocab_size)),
    )


def _is_tolerable(target: Tokenizer, draft: Tokenizer, token_id: int) -> bool:
    """Whether at most one of the two can ever generate the id: it is free, or kept free, in the other."""
    names = [tokenizer.raw_bytes(token_id) for tokenizer in (target, draft)]
    if any(not tokenizer.has_id(token_id) for tokenizer in (target, draft)):
        return all(tokenizer.is_added(token_id) or not tokenizer.has_id(token_id) for tokenizer in (target, draft))
    both_special = token_id in target.special_ids and token_id in draft.special_ids
    return both_special and any(_RESERVED.fullmatch(name) for name in names)


def _mismatch(target: Tokenizer, draft: Tokenizer, differing: list[int]) -> PairError:
    shown = [
        f"id {token_id}: {_name(target, token_id)} in the target, {_name(draft, token_id)} in the draft"
        for token_id in differing[:NUM_SHOWN]
    ]
    rest = len(differing) - len(shown)
    return PairError(
        f"the tokenizers differ at {len(differing)} ids" if len(differing) > 1 else "the tokenizers differ at one id",
        where=f"{target.path} and {draft.path}",
        details=shown + ([f"and {rest} more"] if rest else []),
        expected="the same bytes for every id (padding at the end is no difference)",
        remedy="use a draft model of the target's own family, or a method that needs no second tokenizer: ngram, "
        "eagle3, medusa",
        code="E-VOCAB",
    )


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    if not tokenizer.has_id(token_id):
        return "nothing"
    raw = tokenizer.raw_bytes(token_id)
    try:
        return repr(raw.decode())
    except UnicodeDecodeError:
        return repr(raw)
