"""Acceptance profiles as the command line takes them: `0.8,0.7,0.6`. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from trt_spec.errors import UsageError
from trt_spec.methods import MAX_DRAFT_LEN_LIMIT

OPTION = "--acceptance"


def check_rates(rates: Sequence[float], got: str | None = None) -> tuple[float, ...]:
    """The coins of an acceptance profile: by position, the probability to stand given that all before it do.

    Raises:
        UsageError: no rate, too many, or one that is no probability.
    """
    if not 1 <= len(rates) <= MAX_DRAFT_LEN_LIMIT or not all(0 <= rate <= 1 for rate in rates):
        raise _no_profile(", ".join(f"{rate:g}" for rate in rates) if got is None else got)
    return tuple(rates)


def parse_rates(text: str | None) -> tuple[float, ...] | None:
    """The rates in a text; None where there is none.

    Raises:
        UsageError: as `check_rates`, or not numbers.
    """
    if text is None:
        return None
    try:
        return check_rates([float(part) for part in text.split(",")], text)
    except ValueError:
        raise _no_profile(text) from None


def _no_profile(got: str) -> UsageError:
    return UsageError(
        "an acceptance profile is a probability per draft position",
        where=OPTION,
        got=got or "nothing",
        expected=f"1 to {MAX_DRAFT_LEN_LIMIT} numbers from 0 to 1, such as 0.8,0.7,0.6",
    )
