"""The certificate of a run, and the self-check of what gives certificates."""

from __future__ import annotations

from typing import Any

from trt_spec import provenance
from trt_spec.equivalence import subject as subjects
from trt_spec.equivalence.options import Options, prompts_of, sampling_params
from trt_spec.equivalence.reference import choice as reference
from trt_spec.equivalence.store import Store, key_of
from trt_spec.methods import ACCEPTANCE
from trt_spec.report.console import Reporter
from trt_spec.run import Run


def verify(run: Run, options: Options, reporter: Reporter) -> dict[str, Any]:
    """Runs the check and returns the certificate; keeps the evidence for the next run.

    Raises:
        CheckpointError: no engine is built, or no target to score with is here.
        RequestError: parameters that cannot be sampled with.
        MachineError: no server at the url.
    """
    params = sampling_params(options.parameters)
    rule = run.config.speculation.acceptance
    facts = ACCEPTANCE[rule]
    base = {"run": run.config.name, "words": run.words, "acceptance": rule, "server": options.url or "in process"}
    base["provenance"] = provenance.collect(run.config)
    if run.config.speculation.method != "none" and not facts.is_lossless:
        reason = f"acceptance {rule} changes the distribution by design, so there is nothing to certify"
        return {**base, "verdict": "lossy by configuration", "reason": reason}
    from trt_spec.equivalence.harness import Harness
    from trt_spec.equivalence.reference.noise import largest_mean_tv

    subject = subjects.served(run, options, reporter) if options.url else subjects.in_process(run, reporter)
    prompts = prompts_of(subject.tokenizer, options.prompts_path)
    scorer = reference.scorer_of(run, options, subject)
    settings, noise, texts = reference.settings_of(run, options, subject, prompts, params)
    base |= {"noise": noise, "assumptions": reference.assumptions(run, options)}
    if noise["mean_tv"] > (limit := largest_mean_tv(run.config.target.dtype)):
        reason = f"one row and several rows of one forward disagree by a mean TV of {noise['mean_tv']:.2g} per token; "
        return {**base, "verdict": "different", "reason": f"{reason}rounding leaves at most {limit:.2g}"}
    if options.reference == "native" and options.is_cross_checked:
        base["cross_check"] = reference.cross_check(subject, texts, noise["mean_tv"], reporter)
        if not base["cross_check"]["is_right"]:
            reason = "the runtime's forward is not that of transformers: " + base["cross_check"]["result"]
            return {**base, "verdict": "different", "reason": reason}
    draft_scorer = reference.native(subject.draft_model, "draft model") if subject.draft_model is not None else None
    harness = Harness(settings, prompts, subject.serve, scorer, subject.vocabulary, draft_scorer)
    store = Store(options.report_dir, key_of(run, settings, harness, subject.identity))
    if not options.is_fresh:
        store.load(harness, reporter)
    with reporter.progress(f"verifying {run.config.name}") as advance:

        def advance_and_keep(part: float | None, text: str) -> None:
            advance(part, text)
            store.save_if_due(harness)

        finding = harness.run(advance_and_keep) if facts.serves_sampling else harness.run_greedy(advance)
    store.save(harness)
    found = {**base, **harness.as_dict(finding)}
    found["assumptions"] += reference.what_was_not_said(harness)
    name_tokens(found, subject.tokenizer)
    return found


def name_tokens(found: dict[str, Any], tokenizer: Any) -> None:
    """Adds the text of tokens and prompts to counter-examples."""
    example = found.get("counter_example")
    for row in (*example["frequencies"], *example["tokens"]) if example else ():
        row["text"] = tokenizer.decode([row["token"]])
        row["prompt_text"] = found["prompts"][row["prompt"]]["label"]
    for fault in found["greedy"]["faults"]:
        fault["text"], fault["best_text"] = (tokenizer.decode([fault[name]]) for name in ("token", "best_token"))


def self_check(alpha: float, reporter: Reporter) -> dict[str, Any]:
    """Every mutant and control on toy engines, with the verdict on the harness itself."""
    from trt_spec.equivalence.self_check.run import run as checks

    with reporter.progress("self-check") as advance:
        outcomes = checks.run(alpha, advance=advance)
    summary = checks.summary(outcomes)
    is_right = not summary["survivors"] and not summary["flagged"]
    return {"is_right": is_right, **summary, "rows": [outcome.as_dict() for outcome in outcomes]}
