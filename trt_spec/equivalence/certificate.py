"""The result of an equivalence check: what certificate.json, junit.xml, the page and the terminal are made from.

Fields with the default None are left out of the JSON where there is nothing to say, see `report.schema.as_json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from trt_spec.equivalence.self_check.outcome import SelfCheck
from trt_spec.runtime.stats import DraftCounts

VerdictName = Literal["equivalent", "different", "inconclusive", "lossy by configuration"]
ArmName = Literal["speculation", "plain", "greedy"]
# What a verdict other than `equivalent` rests on.
Layer = Literal[
    "configuration",
    "noise of the forward",
    "cross-check",
    "greedy",
    "contract",
    "reported log-probabilities",
    "bets",
    "bets within a role",
    "deviations",
    "black box",
]


@dataclass(frozen=True)
class Noise:
    """What rounding does to the target's probabilities, see `reference.noise`.

    Attributes:
        mean_tv: mean TV per token between two shapes of one forward.
        tolerance: its systematic part: the mean change, with its sign, of the mass of the best token and of the
            likelier half of the law, two standard errors added, rounded up to one of `noise.STEPS`.
        greedy_tolerance: the largest gap of a tie, logits.
        logprob_mean, logprob_largest: change of the log-probability of a sampled token, nats.
    """

    mean_tv: float
    tolerance: float
    greedy_tolerance: float
    logprob_mean: float
    logprob_largest: float


@dataclass(frozen=True)
class CrossCheck:
    """The native reference against transformers; `mean_tv` per token is None where it was not done."""

    is_right: bool
    mean_tv: float | None
    result: str


@dataclass(frozen=True)
class Violation:
    """What no law allows, in words."""

    prompt: int
    what: str


@dataclass(frozen=True)
class Bet:
    bet: str
    log_e: float


@dataclass(frozen=True)
class Direction:
    """The mean deviation per token that was seen along one direction, and what is excluded and shown."""

    direction: str
    deviation: float
    excluded_above: float | None
    shown_above: float | None


@dataclass(frozen=True)
class Role:
    """Tokens of one place in a step. `demanded` is the bound that has to be excluded; None where it is too rare."""

    role: str
    num_tokens: int
    log_e: float
    excluded_above: float | None
    demanded: float | None


@dataclass(frozen=True)
class LogprobErrors:
    """Of reported log-probabilities, nats."""

    num_tokens: int
    mean: float | None
    largest: float


@dataclass(frozen=True)
class Surprise:
    """Of one prompt: the mean of −log p, nats, what the law expects, and how many deviations they differ."""

    prompt: int
    num_tokens: int
    surprise: float
    expected: float
    z: float


@dataclass(frozen=True)
class Profile:
    """What drafts gave; `num_accepted_per_pos[i]` counts drafts whose token i stood."""

    num_requests: int
    num_tokens: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_per_pos: list[int]
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    rate_per_pos: list[float]

    @classmethod
    def of(cls, num_requests: int, num_tokens: int, drafts: DraftCounts) -> Profile:
        return cls(
            num_requests,
            num_tokens,
            drafts.num_drafts or 0,
            drafts.num_draft_tokens,
            drafts.num_accepted_tokens,
            list(drafts.num_accepted_tokens_per_pos or ()),
            drafts.acceptance_rate,
            drafts.mean_acceptance_length if drafts.num_drafts else None,
            drafts.rate_per_pos or [],
        )


@dataclass(frozen=True)
class ArmSummary:
    """Evidence of one arm.

    Attributes:
        log_e: of the e-value against equal laws. log_e_peak: its largest so far, which is what rejects.
        path: (tokens, log e, log e of the directed bets, log e of the omnibus) after rounds.
        histogram: per ordering of the vocabulary, tokens per bin of the probability integral transform.
        reported_logprobs: by role and for all tokens; None where the server reports none.
    """

    num_tokens: int
    num_earlier_tokens: int
    log_e: float
    log_e_peak: float
    path: list[tuple[int, float, float, float]]
    bets: list[Bet]
    histogram: dict[str, list[float]]
    deviations: list[Direction]
    violations: list[Violation]
    profile: Profile
    roles: list[Role]
    reported_logprobs: dict[str, LogprobErrors] | None
    per_prompt: list[Surprise]


@dataclass(frozen=True)
class GreedyFault:
    """A token served at temperature 0 that is below the best one by more than the tolerance; `gap` in logits."""

    prompt_index: int
    position: int
    token: int
    best_token: int
    gap: float
    text: str | None = None
    best_text: str | None = None


@dataclass(frozen=True)
class Greedy:
    """What greedy outputs showed.

    Attributes:
        num_ties: tokens that are not the best and within the tolerance of it, logits. largest_tie: the largest gap.
        places: tokens by their place in a step, see `roles`; none where the server does not tell.
    """

    num_tokens: int
    num_ties: int
    largest_tie: float
    tolerance: float
    places: dict[str, int]
    faults: list[GreedyFault]
    violations: list[Violation]
    reported_logprobs: dict[str, LogprobErrors] | None
    is_right: bool


@dataclass(frozen=True)
class Frequency:
    """A token in a context: how probable it is, and how often it came. `z`: in deviations, of repeated contexts."""

    prompt: int
    position: int
    token: int
    target_probability: float
    served_frequency: float
    num_samples: int
    prefix: tuple[int, ...] | None = None
    z: float | None = None
    text: str | None = None
    prompt_text: str | None = None


@dataclass(frozen=True, order=True)
class Suspect:
    """A single token that a bet gained much on."""

    gain_nats: float
    prompt: int
    position: int
    token: int
    target_probability: float
    bet: str
    text: str | None = None
    prompt_text: str | None = None


@dataclass(frozen=True)
class CounterExample:
    frequencies: list[Frequency]
    tokens: list[Suspect]


@dataclass(frozen=True)
class Cell:
    """A token in its context, and how often it came with speculation on and off."""

    prompt: str | None
    context: tuple[int, ...]
    token: int
    count_on: int
    count_off: int


@dataclass(frozen=True)
class BlackBox:
    """Speculation on against off by their tokens alone; `worst` are the cells that say most."""

    pvalue: float
    num_outputs: int
    worst: list[Cell]


@dataclass(frozen=True)
class PromptSize:
    label: str
    num_tokens: int


@dataclass(frozen=True)
class Seconds:
    serving: float
    scoring: float


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The verdict on a run, where it came before any evidence was gathered; else `Judged`.

    Attributes:
        words: the run as the command line named it.
        reason: one sentence. warning: its last part, where it limits what an `equivalent` says.
        layer: what the verdict rests on. arm: the outputs that gave it away.
        assumptions: what is taken for granted.
    """

    run: str
    words: str
    acceptance: str
    server: str
    provenance: dict[str, Any]
    verdict: VerdictName
    reason: str
    warning: str | None = None
    layer: Layer | None = None
    arm: ArmName | None = None
    noise: Noise | None = None
    assumptions: list[str] | None = None
    cross_check: CrossCheck | None = None
    black_box: BlackBox | None = None
    self_check: SelfCheck | None = None


@dataclass(frozen=True, kw_only=True)
class Judged(Certificate):
    """The verdict with its evidence.

    Attributes:
        tau, alpha, tolerance: see `Settings`. log_e_limit: where an arm is rejected.
        num_tokens_needed: speculative tokens in all until a certificate, as it looks now; None where unknown.
        excluded_above: the smallest deviation per token that is excluded; None where none is.
        sampling: parameters of every request.
        arms: speculation and plain.
    """

    tau: float
    alpha: float
    tolerance: float
    log_e_limit: float
    num_tokens_needed: int | None
    reference: str
    excluded_above: float | None
    sampling: dict[str, Any]
    prompts: list[PromptSize]
    arms: dict[str, ArmSummary]
    greedy: Greedy | None
    seconds: Seconds
    counter_example: CounterExample | None = None
