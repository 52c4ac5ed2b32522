"""Which row of a step a served token came from.

The role of a token is decided before the token is: by where the drafts before it ended, and by whether anything was
drafted at its place. Under a rule that judges token by token it therefore says nothing about the token itself, and
the tokens of one role follow the target's law as all of them do. Block verification looks ahead: its tokens are
judged given the emitted prefix only, without roles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trt_spec.runtime.request import ACCEPTED, TARGET

ROLES = ("no draft", "first draft token", "later draft token", "bonus token")
DRAFTED = ROLES[1:3]  # where a draft token was judged
RULES = ("greedy", "rejection", "exact_match")  # that judge token by token
FULL_SHARE = 0.1  # roles with this share of the tokens have to be certified at τ itself


def roles_of(token_origins: Sequence[int]) -> NDArray[np.int64]:
    """[n] index into `ROLES` of each token, from `Chunk.token_origins`."""
    origins = np.asarray(token_origins, dtype=np.int64)
    is_first = np.concatenate([[True], origins[:-1] != ACCEPTED])[: len(origins)]
    is_drafted = origins != TARGET
    return np.select([is_drafted & is_first, is_drafted, ~is_first], [1, 2, 3], 0)


def bound_multiple(share: float) -> float:
    """In units of τ, the deviation per token of a role that a certificate has to exclude.

    1 for a role with a share of `FULL_SHARE` or more. A rarer one gets √(`FULL_SHARE` / share), so that it does not
    hold up the certificate; its part in the deviation of all tokens then is below τ · √(`FULL_SHARE` · share).
    """
    return max(1.0, (FULL_SHARE / share) ** 0.5)
