"""The reference: what scores served tokens, how far its arithmetic can be trusted, and what is assumed of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trt_spec.equivalence.options import Options
from trt_spec.equivalence.subject import Subject
from trt_spec.errors import UsageError
from trt_spec.methods import ACCEPTANCE
from trt_spec.report.console import Reporter
from trt_spec.run import Run

if TYPE_CHECKING:
    from trt_spec.equivalence.harness import Harness
    from trt_spec.equivalence.reference.scoring import Scorer, Served
    from trt_spec.equivalence.settings import Prompt, Settings
    from trt_spec.runtime.models import Model
    from trt_spec.runtime.request import SamplingParams

_NOISE_PROMPTS, _NOISE_TOKENS = 6, 24  # outputs on which the noise of the arithmetic is measured
_CROSS_CHECK_TV, _CROSS_CHECK_FACTOR = 1e-4, 2.0  # mean TV to transformers: absolute, and in units of the noise


def native(model: Model, name: str) -> Scorer:
    from trt_spec.equivalence.reference.scoring import NativeScorer

    return NativeScorer(model, name)


def scorer_of(run: Run, options: Options, subject: Subject) -> Scorer:
    if options.reference == "native":
        return native(subject.model, "native runtime, one packed forward")
    from trt_spec.equivalence.reference.scoring import TransformersScorer

    return TransformersScorer(subject.target_dir, subject.dtype, subject.device)


def settings_of(
    run: Run, options: Options, subject: Subject, prompts: Sequence[Prompt], params: SamplingParams
) -> tuple[Settings, dict[str, float], list[Served]]:
    """Settings, with tolerances measured by the native runtime on a few plain outputs; and those outputs.

    The outputs have full length, for the cross-check has to see every position that will be served.
    """
    from trt_spec.equivalence.reference import noise
    from trt_spec.equivalence.reference.scoring import Served
    from trt_spec.equivalence.roles import RULES
    from trt_spec.equivalence.settings import Settings
    from trt_spec.runtime.request import Request

    equivalence, speculation = run.config.equivalence, run.config.speculation
    longest = run.config.build.max_seq_len - max(len(prompt.input_ids) for prompt in prompts)
    params = replace(params, max_tokens=min(params.max_tokens, longest))
    serves_sampling = ACCEPTANCE[speculation.acceptance].serves_sampling
    sampled = replace(params, seed=0, temperature=params.temperature if serves_sampling else 0.0)
    requests = [
        Request(f"verify-noise-{i}", p.input_ids, sampled, False) for i, p in enumerate(prompts[:_NOISE_PROMPTS])
    ]
    answers = zip(requests, subject.serve(requests), strict=True)
    texts = [Served(request.input_ids, tuple(answer.token_ids), sampled) for request, answer in answers]
    if subject.model is None:
        measured = noise.typical(str(run.config.target.dtype))
    else:
        short = [replace(text, output_ids=text.output_ids[:_NOISE_TOKENS]) for text in texts]
        measured = noise.measure(subject.model, short, subject.vocabulary)
    tolerance = measured.tolerance
    if tolerance >= equivalence.tau:
        raise UsageError(
            "the dtype's systematic rounding alone is larger than tau",
            where="equivalence.tau",
            got=equivalence.tau,
            expected=f"more than {tolerance:g}",
            remedy="raise equivalence.tau, or build with --set target.dtype=float32",
        )
    made = Settings(
        params,
        equivalence.tau,
        equivalence.alpha,
        tolerance,
        options.max_tokens,
        options.max_seconds,
        batch_size=max(subject.batch_size, 8),
        greedy_tolerance=measured.greedy_tolerance,
        logprob_noise=(measured.logprob_mean, measured.logprob_largest),
        has_roles=speculation.method != "none" and speculation.acceptance in RULES,
        varies_draft_len=run.config.build.target == "torch" and speculation.max_draft_len > 1,
    )
    return made, vars(measured), texts


def cross_check(subject: Subject, texts: Sequence[Served], noise: float, reporter: Reporter) -> dict[str, Any]:
    """Mean TV per token between the native reference and transformers on a few outputs.

    A wrong forward would be in the engine and in a native reference alike, so that both arms agree with it.
    """
    from trt_spec.equivalence.reference.noise import mean_tv
    from trt_spec.equivalence.reference.scoring import NativeScorer, TransformersScorer

    try:
        with reporter.progress("comparing the reference with transformers"):
            other = TransformersScorer(subject.target_dir, subject.dtype, subject.device).logits(texts)
    except (ImportError, OSError, ValueError, KeyError) as error:  # an architecture that transformers does not know
        return {"is_right": True, "mean_tv": None, "result": f"not done: {type(error).__name__}: {error}"}
    found = mean_tv(texts, NativeScorer(subject.model).logits(texts), other, subject.vocabulary)
    limit = max(_CROSS_CHECK_TV, _CROSS_CHECK_FACTOR * noise)
    result = f"mean TV {found:.2g} per token, at most {limit:.2g} by rounding"
    return {"is_right": found <= limit, "mean_tv": found, "result": result}


def assumptions(run: Run, options: Options) -> list[str]:
    """What a certificate of this run takes for granted."""
    found = [
        "the checkpoint that is scored is the one that is served",
        "beyond the tolerance, rounding is as likely to favour a token as not",
    ]
    if options.reference == "native":
        found.append("the runtime's forward is the target's, as far as its parity tests and the cross-check say")
    if run.config.build.target != "torch":
        found.append(f"the {run.config.build.target} engine computes in the dtype of the run config")
    if options.url:
        found.append("the server honours seed, speculation and the sampling parameters of each request")
    return found


def what_was_not_said(harness: Harness) -> list[str]:
    """What the server kept to itself, so that it could not be looked at."""
    arm = harness.arms["speculation"]
    evidence, found = arm.ledger.evidence, []
    num_placed = sum(part.num_tokens for part in evidence.parts.values())
    if 0 < num_placed < evidence.num_tokens:
        found.append(f"the server says of {num_placed:,} of {evidence.num_tokens:,} tokens where they came from")
    if evidence.num_tokens and not num_placed:
        found.append(
            "a deviation is a mean over all tokens: the server does not say where tokens came from, or the acceptance "
            "rule judges blocks, so there is no evidence per place in a step"
        )
    if evidence.num_tokens and not arm.reported.counts[0]:
        found.append("the server reports no log-probabilities, so small errors of its forward show in its tokens only")
    return found
