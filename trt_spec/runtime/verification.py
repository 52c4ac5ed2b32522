"""From the target's rows to the verdict on one sequence's draft, and the errors of a sequence without a next token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from trt_spec.errors import MachineError, RequestError
from trt_spec.runtime.acceptance import AcceptanceRule, Draft, TargetProbs, Verdict
from trt_spec.runtime.randomness import Randomness
from trt_spec.runtime.sampling import has_choice, logits_to_probs
from trt_spec.runtime.sequence import Sequence


@dataclass(frozen=True)
class Verification:
    """Rows [start, end) of the packed batch whose logits decide the next tokens of one sequence.

    Attributes:
        asked: how long a draft the drafter was asked for; None where it was not.
    """

    sequence: Sequence
    draft: Draft
    start: int
    end: int
    asked: int | None = None

    @property
    def depth(self) -> int:
        """Draft tokens in a row."""
        return 1 + max(self.draft.tree.depths, default=-1)

    def process(self, raw: Tensor) -> Tensor | None:
        """Penalties, bias and masks on the rows of logits [1 + T, V]; None where they leave no token to choose."""
        sequence = self.sequence
        if sequence.processor.is_identity(raw.shape[-1], sequence.num_output_tokens):
            return raw
        tokens, draft_tree = self.draft.token_ids.tolist(), self.draft.tree
        drafted = [[tokens[node] for node in draft_tree.path(row - 1)] for row in range(len(raw))]
        logits = sequence.processor(raw, sequence.history, sequence.num_output_tokens, drafted)
        return logits if has_choice(logits) else None

    def decide(self, rule: AcceptanceRule, logits: Tensor, source: Randomness) -> Verdict:
        """Applies the acceptance rule to the rows of processed logits [1 + T, V]."""
        params = self.sequence.request.params
        to_probs = partial(logits_to_probs, params=params) if params.temperature > 0 else None
        return rule.decide(TargetProbs(logits, to_probs), self.draft, self.sequence.stream(source))


def not_finite(sequence: Sequence) -> MachineError:
    return MachineError(
        "the target's logits are not finite",
        where=f"request {sequence.request.request_id}, after {len(sequence.token_ids)} tokens",
        remedy="build the engine in float32 or bfloat16, or check the checkpoint's weights",
    )


def no_choice(sequence: Sequence) -> RequestError:
    return RequestError(
        "the request's penalties, bias and masks leave no token to choose",
        where=f"repetition_penalty, logit_bias or min_tokens, after {sequence.num_output_tokens} output tokens",
        expected="a finite logit for some token",
        remedy="use a repetition_penalty nearer to 1, or fewer stop_token_ids with min_tokens",
    )
