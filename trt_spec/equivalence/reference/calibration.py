"""The reference of a run: what scores served tokens, and how far its arithmetic can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trt_spec.clients.client import Ask, Params
from trt_spec.clients.prompts import Prompt
from trt_spec.equivalence.certificate import CrossCheck, Noise
from trt_spec.equivalence.options import Options
from trt_spec.equivalence.reference import noise
from trt_spec.equivalence.reference.scoring import NativeScorer, Scorer, Served, TransformersScorer
from trt_spec.equivalence.roles import RULES
from trt_spec.equivalence.settings import Settings
from trt_spec.equivalence.subject import Subject
from trt_spec.errors import UsageError
from trt_spec.methods import ACCEPTANCE
from trt_spec.report.console import Reporter
from trt_spec.run import Run
from trt_spec.runtime.request import SamplingParams

_NOISE_PROMPTS, _NOISE_TOKENS = 6, 24  # outputs on which the noise of the arithmetic is measured
_CROSS_CHECK_TV, _CROSS_CHECK_FACTOR = 1e-4, 2.0  # mean TV to transformers: absolute, and in units of the noise


def scorer_of(options: Options, subject: Subject) -> Scorer:
    """What scores: the runtime's own model, or transformers."""
    if options.reference == "native":
        return NativeScorer(subject.model, "native runtime, one packed forward")
    return TransformersScorer(subject.target_dir, subject.dtype, subject.device)


def settings_of(
    run: Run, options: Options, subject: Subject, prompts: Sequence[Prompt], params: SamplingParams
) -> tuple[Settings, Noise, list[Served]]:
    """Settings, with tolerances measured by the native runtime on a few plain outputs; the noise; and those outputs.

    The outputs have full length, for the cross-check has to see every position that will be served.
    """
    equivalence, speculation = run.config.equivalence, run.config.speculation
    longest = run.config.build.max_seq_len - max(len(prompt.input_ids) for prompt in prompts)
    params = replace(params, max_tokens=min(params.max_tokens, longest))
    serves_sampling = ACCEPTANCE[speculation.acceptance].serves_sampling
    sampled = replace(params, seed=0, temperature=params.temperature if serves_sampling else 0.0)
    plain = Params(sampled, speculation=False)
    asks = [Ask(prompt, plain, f"verify-noise-{i}") for i, prompt in enumerate(prompts[:_NOISE_PROMPTS])]
    texts = [Served.of(*pair) for pair in zip(asks, subject.client.ask_all(asks), strict=True)]
    if subject.model is None:
        measured = noise.TYPICAL[run.config.target.dtype]
    else:
        short = [replace(text, output_ids=text.output_ids[:_NOISE_TOKENS]) for text in texts]
        measured = noise.measure(subject.model, short, subject.vocabulary)
    if measured.tolerance >= equivalence.tau:
        raise UsageError(
            "the dtype's systematic rounding alone is larger than tau",
            where="equivalence.tau",
            got=equivalence.tau,
            expected=f"more than {measured.tolerance:g}",
            remedy="raise equivalence.tau, or build with --set target.dtype=float32",
        )
    settings = Settings(
        params,
        equivalence.tau,
        equivalence.alpha,
        measured.tolerance,
        options.max_tokens,
        options.max_seconds,
        batch_size=max(subject.batch_size, 8),
        greedy_tolerance=measured.greedy_tolerance,
        logprob_noise=(measured.logprob_mean, measured.logprob_largest),
        has_roles=speculation.method != "none" and speculation.acceptance in RULES,
        varies_draft_len=run.config.build.target == "torch" and speculation.max_draft_len > 1,
    )
    return settings, measured, texts


def cross_check(subject: Subject, texts: Sequence[Served], mean_noise: float, reporter: Reporter) -> CrossCheck:
    """Mean TV per token between the native reference and transformers on a few outputs.

    A wrong forward would be in the engine and in a native reference alike, so that both arms agree with it.

    Args:
        mean_noise: mean TV per token by rounding.
    """
    try:
        with reporter.progress("comparing the reference with transformers"):
            other = TransformersScorer(subject.target_dir, subject.dtype, subject.device).logits(texts)
    except (ImportError, OSError, ValueError, KeyError) as error:  # an architecture that transformers does not know
        return CrossCheck(True, None, f"not done: {type(error).__name__}: {error}")
    found = noise.mean_tv(texts, NativeScorer(subject.model).logits(texts), other, subject.vocabulary)
    limit = max(_CROSS_CHECK_TV, _CROSS_CHECK_FACTOR * mean_noise)
    return CrossCheck(found <= limit, found, f"mean TV {found:.2g} per token, at most {limit:.2g} by rounding")
