"""The certificate of a run, and the self-check of what gives certificates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trt_spec import provenance
from trt_spec.equivalence.certificate import Certificate
from trt_spec.equivalence.options import Options, prompts_of, sampling_params
from trt_spec.equivalence.self_check.outcome import SelfCheck
from trt_spec.methods import ACCEPTANCE
from trt_spec.report.console import Reporter
from trt_spec.run import Run

if TYPE_CHECKING:
    from trt_spec.equivalence.arm import Arm


def origin(run: Run, options: Options) -> dict[str, Any]:
    """The fields of `Certificate` that say what was judged."""
    return {
        "run": run.config.name,
        "words": run.words,
        "acceptance": run.config.speculation.acceptance,
        "server": options.url or "in process",
        "provenance": provenance.collect(run.config).as_dict(),
    }


def verify(run: Run, options: Options, reporter: Reporter) -> Certificate:
    """Runs the check; keeps the evidence for the next run.

    Raises:
        CheckpointError: no engine is built, or no target to score with is here.
        RequestError: parameters that cannot be sampled with.
        CapabilityError: who is judged does not tell what a verdict needs.
        MachineError: no server at the url.
    """
    params, about = sampling_params(options.parameters), origin(run, options)
    facts = ACCEPTANCE[about["acceptance"]]
    if run.config.speculation.method != "none" and not facts.is_lossless:
        reason = f"acceptance {about['acceptance']} changes the distribution by design, so there is nothing to certify"
        return Certificate(**about, verdict="lossy by configuration", reason=reason, layer="configuration")
    from trt_spec.equivalence import subject as subjects
    from trt_spec.equivalence.harness import Harness
    from trt_spec.equivalence.reference import calibration
    from trt_spec.equivalence.reference.noise import largest_mean_tv
    from trt_spec.equivalence.reference.scoring import NativeScorer
    from trt_spec.equivalence.store import Store, key_of

    subject = subjects.served(run, options, reporter) if options.url else subjects.in_process(run, reporter)
    subject.client.require("input_ids", "output_ids", "speculation_switch", "seed", purpose="a certificate")
    prompts = prompts_of(options.prompts_path, subject.tokenizer)
    scorer = calibration.scorer_of(options, subject)
    settings, noise, texts = calibration.settings_of(run, options, subject, prompts, params)
    about |= {"noise": noise, "assumptions": _assumptions(run, options)}
    if noise.mean_tv > (limit := largest_mean_tv(run.config.target.dtype)):
        reason = f"one row and several rows of one forward disagree by a mean TV of {noise.mean_tv:.2g} per token; "
        reason += f"rounding leaves at most {limit:.2g}"
        return Certificate(**about, verdict="different", reason=reason, layer="noise of the forward")
    if options.reference == "native" and options.is_cross_checked:
        checked = about["cross_check"] = calibration.cross_check(subject, texts, noise.mean_tv, reporter)
        if not checked.is_right:
            reason = f"the runtime's forward is not that of transformers: {checked.result}"
            return Certificate(**about, verdict="different", reason=reason, layer="cross-check")
    draft_scorer = NativeScorer(subject.draft_model, "draft model") if subject.draft_model is not None else None
    harness = Harness(settings, prompts, subject.client, scorer, subject.vocabulary, draft_scorer)
    store = Store(options.report_dir, key_of(run, settings, harness, subject.identity))
    if not options.is_fresh:
        store.load(harness, reporter)
    with reporter.progress(f"verifying {run.config.name}") as advance:

        def advance_and_keep(part: float | None, text: str) -> None:
            advance(part, text)
            store.save_if_due(harness)

        finding = harness.run(advance_and_keep) if facts.serves_sampling else harness.run_greedy(advance)
    store.save(harness)
    about["assumptions"] += _what_was_not_said(harness.arms["speculation"])
    return harness.certificate(finding, subject.tokenizer.decode, **about)


def _assumptions(run: Run, options: Options) -> list[str]:
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


def _what_was_not_said(arm: Arm) -> Sequence[str]:
    """What the server kept to itself, so that it could not be looked at."""
    evidence, found = arm.evidence, []
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


def self_check(alpha: float, reporter: Reporter) -> SelfCheck:
    """Every mutant and control on toy engines, with the verdict on the harness itself."""
    from trt_spec.equivalence.self_check.run import run

    with reporter.progress("self-check") as advance:
        return SelfCheck.of(run(alpha, advance=advance))
