"""What is to be shown, and what it may cost."""

from __future__ import annotations

from dataclasses import dataclass

from trt_spec.runtime.request import SamplingParams


@dataclass(frozen=True)
class Settings:
    """Of one run of the check.

    Attributes:
        params: of every request but its seed; temperature > 0.
        tau, alpha, tolerance: see `sequential` and `deviation`.
        max_tokens: speculative tokens of this run, at most. max_seconds: of this run; None for any.
        batch_size: requests of one round.
        greedy_tolerance: largest gap of a tie, logits.
        logprob_noise: mean and largest change of a token's log-probability by rounding, nats.
        has_roles: keep evidence per role; for acceptance rules that judge token by token.
        varies_draft_len: every fourth request drafts one token a step, so that bonus tokens, which follow a draft that
            was accepted to its end, are not too rare to be judged.
        first_seed: seeds count up from here.
    """

    params: SamplingParams
    tau: float
    alpha: float
    tolerance: float
    max_tokens: int
    max_seconds: float | None = None
    batch_size: int = 16
    greedy_tolerance: float = 1e-4
    logprob_noise: tuple[float, float] = (0.0, 0.0)
    has_roles: bool = True
    varies_draft_len: bool = False
    first_seed: int = 1

    @property
    def arm_alpha(self) -> float:
        """Chance of a false alarm that each of the two arms may use up."""
        return self.alpha / 2
