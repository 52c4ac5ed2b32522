"""Served outputs in, evidence out: scores each output once and keeps what it shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from trt_spec.equivalence.certificate import Violation
from trt_spec.equivalence.reference import reported
from trt_spec.equivalence.reference.scoring import Scorer, Served, Vocabulary, is_filtered, is_penalised, score
from trt_spec.equivalence.statistics import alternatives
from trt_spec.equivalence.statistics.evidence import Evidence
from trt_spec.equivalence.statistics.sequential import Array, Positions
from trt_spec.runtime.request import SamplingParams

ORDERINGS = ("probability", "id", "hash")


@dataclass(frozen=True)
class Scored:
    """One output with what it did to the evidence.

    Attributes:
        violation: what no law allows, in words; None where there is nothing.
        logprob_errors: see `reported.errors`.
    """

    served: Served
    positions: Positions
    log_e: Array
    log_e_omnibus: Array
    directed: Array
    violation: str | None
    logprob_errors: Array


def new_evidence(
    params: SamplingParams,
    vocabulary: Vocabulary,
    *,
    has_draft: bool,
    tau: float,
    tolerance: float,
    has_roles: bool = False,
) -> Evidence:
    """Empty evidence with every alternative that exists for such requests."""
    names = alternatives.names(
        has_filter=is_filtered(params),
        has_temperature=params.temperature != 1,
        has_penalties=is_penalised(params),
        has_bias=bool(params.logit_bias),
        has_ending=bool(vocabulary.ending(params)),
        has_draft=has_draft,
    )
    made = Evidence.with_roles if has_roles else Evidence
    return made(names, (*ORDERINGS, "draft ratio") if has_draft else ORDERINGS, tau, tolerance)


@dataclass
class Ledger:
    """The evidence of one arm and how outputs get into it.

    Attributes:
        scorer: the reference. draft_scorer: the draft model, where bets may use it.
        has_deviations: keep what a certificate needs; the self-check does without.
    """

    evidence: Evidence
    vocabulary: Vocabulary
    scorer: Scorer
    draft_scorer: Scorer | None = None
    has_deviations: bool = True
    _tokens_after: dict[int, int] = field(default_factory=dict)

    def add(self, outputs: Sequence[Served]) -> list[Scored]:
        """Scores outputs in the order in which they are given. None may be empty or have ids that do not exist."""
        return self.add_scored(outputs, self.scorer.logits(outputs)) if outputs else []

    def add_scored(self, outputs: Sequence[Served], logits: Sequence[Tensor]) -> list[Scored]:
        """`add` with the reference's logits given."""
        draft_logits = self.draft_scorer.logits(outputs) if self.draft_scorer else [None] * len(outputs)
        found = []
        for served, rows, draft_rows in zip(outputs, logits, draft_logits, strict=True):
            twins = self._twins(served)
            total = rows.logsumexp(-1)
            positions = score(served, rows, self.vocabulary, draft_logits=draft_rows, twins=twins, logsumexp=total)
            update = self.evidence.update(positions, with_deviations=self.has_deviations)
            broken = violation(served, self.vocabulary)
            off = reported.errors(served, rows, total)
            found.append(Scored(served, positions, update.log_e, update.log_e_omnibus, update.directed, broken, off))
        return found

    def _twins(self, served: Served) -> list[int]:
        """Tokens that the latest earlier output had after the same prefix; then remembers this output's."""
        twins, prefix = [], hash(served.prompt_ids)
        for token in served.output_ids:
            twins.append(self._tokens_after.get(prefix, -1))
            self._tokens_after[prefix] = token
            prefix = hash((prefix, token))
        return twins


def unscorable(served: Served, vocabulary: Vocabulary) -> str | None:
    """Why an output has no law at all: it is empty, or has ids that do not exist."""
    if not served.output_ids:
        return "no tokens"
    output = np.array(served.output_ids)
    outside = output[(output < 0) | (output >= vocabulary.num_valid_tokens)]
    return f"token {outside[0]} is not in the vocabulary" if outside.size else None


def scorable(outputs: Iterable[Served], vocabulary: Vocabulary) -> tuple[list[Served], list[Violation]]:
    """The outputs that have a law, and what is wrong with the others."""
    kept, broken = [], []
    for served in outputs:
        if what := unscorable(served, vocabulary):
            broken.append(Violation(served.prompt_index, what))
        else:
            kept.append(served)
    return kept, broken


def violation(served: Served, vocabulary: Vocabulary) -> str | None:
    """What is wrong with an output whatever the law: see `unscorable`; too many tokens, some after its end, or no end.

    Servers that do not tell where tokens came from may leave the id that ended the output out (TensorRT-LLM does so
    with stop words), and say in its place why it ended.
    """
    if broken := unscorable(served, vocabulary):
        return broken
    output, params = np.array(served.output_ids), served.params
    for name, values in (("log-probabilities", served.logprobs), ("origins", served.token_origins)):
        if len(values) not in (0, len(output)):
            return f"{len(values)} {name} for {len(output)} tokens"
    if not np.isfinite(served.logprobs).all():
        return f"log-probabilities that are not finite: {next(x for x in served.logprobs if not np.isfinite(x))}"
    if len(output) > params.max_tokens:
        return f"{len(output)} tokens where max_tokens is {params.max_tokens}"
    ends = np.flatnonzero(np.isin(output, vocabulary.ending(params)))
    if ends.size and ends[0] + 1 < len(output):
        return f"{len(output) - 1 - ends[0]} tokens after the end of the output, token {output[ends[0]]}"
    is_told = served.finish_reason in ("eos", "stop") and not served.token_origins
    if len(output) < params.max_tokens and not ends.size and not is_told:
        return f"{len(output)} tokens without an end where max_tokens is {params.max_tokens}"
    return None
