"""A certificate for terminals, machines and pull requests: JSON, JUnit, one HTML page that loads nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from trt_spec.equivalence.certificate import Certificate, CounterExample, Frequency, Judged, Role, Suspect
from trt_spec.equivalence.self_check.outcome import SelfCheck
from trt_spec.report import page as files
from trt_spec.report import plots
from trt_spec.report.schema import as_json
from trt_spec.report.tables import facts, table, titled

COLOURS = {"equivalent": "green", "different": "red", "inconclusive": "yellow", "lossy by configuration": "red"}
_PLURALS = {"no draft": "tokens without a draft"}


def write(found: Certificate, directory: Path) -> list[Path]:
    """Writes certificate.json, junit.xml and index.html into a directory, and returns their paths."""
    texts = {
        "certificate.json": json.dumps(as_json(found), indent=2, ensure_ascii=False) + "\n",
        "junit.xml": junit(found),
        "index.html": page(found),
    }
    return files.write(directory, texts)


# ---- JUnit ----


def checks(found: Certificate) -> Iterator[tuple[str, str | None]]:
    """(name, what is wrong or None) of every check: one test case each."""
    is_good = found.verdict == "equivalent"
    yield "equivalence", None if is_good else f"{found.verdict}: {found.reason}"
    if checked := found.cross_check:
        yield "reference and transformers", None if checked.is_right else checked.result
    if isinstance(found, Judged):
        yield from _checks_of_outputs(found)
    for row in found.self_check.rows if found.self_check else ():
        kind = "control" if row.is_control else "mutant"
        wrong = "flagged, and is right" if row.is_control else "not caught"
        yield f"self-check, {kind}: {row.name}", None if row.is_right else wrong


def _checks_of_outputs(found: Judged) -> Iterator[tuple[str, str | None]]:
    if greedy := found.greedy:
        wrong = f"{len(greedy.faults)} tokens below the best one" if greedy.faults else None
        yield "greedy outputs", wrong
        yield "contract, greedy", greedy.violations[0].what if greedy.violations else None
        if greedy.reported_logprobs:
            yield "reported log-probabilities, greedy", _reported_fault(found, "greedy")
    for name, arm in found.arms.items():
        is_over = arm.log_e_peak >= found.log_e_limit
        wrong = f"log e reached {arm.log_e_peak:.1f}, limit {found.log_e_limit:.1f}" if is_over else None
        yield f"law of the tokens, {name}", wrong
        if arm.reported_logprobs:
            yield f"reported log-probabilities, {name}", _reported_fault(found, name)
        yield f"contract, {name}", arm.violations[0].what if arm.violations else None


def _reported_fault(found: Judged, name: str) -> str | None:
    return found.reason if found.layer == "reported log-probabilities" and found.arm == name else None


def junit(found: Certificate) -> str:
    """One test suite with a case per check; whatever is not shown is a failure."""
    return files.junit(f"equivalence of {found.run}", f"verify.{found.run}", list(checks(found)))


# ---- page ----


def page(found: Certificate) -> str:
    """The whole page."""
    is_judged = isinstance(found, Judged)
    outputs = [("greedy", found.greedy), *found.arms.items()] if is_judged else []
    return files.render(
        "certificate.html",
        found=found,
        is_judged=is_judged,
        sentence=sentence(found),
        broken=[(name, one) for name, source in outputs if source for one in source.violations],
        z_off={row.prompt: row.z for row in found.arms["plain"].per_prompt} if is_judged else {},
        plots=plots,
    )


def sentence(found: Certificate) -> str:
    """What was shown, in one sentence that can be quoted."""
    if found.verdict != "equivalent" or not isinstance(found, Judged) or not found.arms["speculation"].num_tokens:
        return _capital(found.reason)
    arm = found.arms["speculation"]
    roles = [row for row in arm.roles if row.num_tokens]
    places = ", ".join(
        f"{row.excluded_above:g} for {_PLURALS.get(row.role, row.role + 's')}" for row in roles if row.excluded_above
    )
    return (
        f"A mean deviation of {found.tau:g} or more per token is excluded at confidence 1 − {found.alpha:g} "
        f"in each of {len(arm.deviations)} directions, from {arm.num_tokens:,} served tokens "
        f"scored by the {found.reference}."
        + (f" Within the places of a step: {places}." if roles else "")
        + (f" {_capital(found.warning)}" if found.warning else "")
    )


def _capital(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


# ---- terminal ----


def view(found: Certificate) -> RenderableType:
    """The certificate for a terminal."""
    verdict = found.verdict
    shown: list[RenderableType] = [
        Text(f"{found.run}: {verdict}", style=f"bold {COLOURS[verdict]}"),
        Text(found.reason),
    ]
    if isinstance(found, Judged):
        shown += [Text(), _evidence(found)]
        if found.arms["speculation"].num_tokens:
            shown += [Text(), _deviations(found)]
        if found.counter_example:
            shown += [Text(), _counter_example(found.counter_example)]
    if found.self_check:
        shown += [Text(), self_check(found.self_check)]
    return Group(*shown)


def _evidence(found: Judged) -> RenderableType:
    spec, plain, greedy = found.arms["speculation"], found.arms["plain"], found.greedy
    length, needed = spec.profile.mean_acceptance_length, found.num_tokens_needed
    return facts(
        [
            ("tokens", f"{spec.num_tokens:,} with speculation, {plain.num_tokens:,} without"),
            ("log e", f"{spec.log_e:.1f} and {plain.log_e:.1f}; {found.log_e_limit:.1f} would reject"),
            ("excluded", f"a deviation above {found.excluded_above:g}" if found.excluded_above else "nothing yet"),
            *[
                (f"  {row.role}", f"{row.num_tokens:,} tokens, log e {row.log_e:.1f}, {_role_bound(row)}")
                for row in spec.roles
                if row.num_tokens
            ],
            ("still needed", f"about {max(0, needed - spec.num_tokens):,} tokens" if needed else None),
            ("tolerance", f"{found.tolerance:g} TV per token, for systematic rounding"),
            ("greedy", f"{greedy.num_tokens} tokens, {greedy.num_ties} ties" if greedy else None),
            ("acceptance", f"{length:.2f} tokens per drafted step" if length else "no drafts"),
            ("reference", found.reference),
            ("time", f"{found.seconds.serving:.0f} s serving, {found.seconds.scoring:.0f} s scoring"),
        ]
    )


def _role_bound(row: Role) -> str:
    excluded = f"excluded above {row.excluded_above:g}" if row.excluded_above else "nothing excluded yet"
    return f"{excluded}; demanded {row.demanded:g}" if row.demanded else f"{excluded}; too rare to be demanded"


def _deviations(found: Judged) -> RenderableType:
    rows = [
        (
            escape(row.direction),
            f"{row.deviation:+.4f}",
            _or_dash(row.excluded_above, "g"),
            _or_dash(row.shown_above, "g"),
        )
        for row in found.arms["speculation"].deviations
    ]
    title = f"Mean deviation per token, at 1 - {found.alpha:g}"
    return titled(title, table(("direction", "seen", "excluded above", "shown above"), rows, numeric=(1, 2, 3)))


def _counter_example(example: CounterExample) -> RenderableType:
    rows = [
        (*_token(row), f"{row.target_probability:.4f}", f"{row.served_frequency:.4f} of {row.num_samples}")
        for row in example.frequencies
    ]
    tokens = [(*_token(row), f"{row.target_probability:.2g}", row.bet) for row in example.tokens[:5]]
    header = ("prompt", "position", "token", "target probability")
    return Group(
        titled(
            "Counter-example: tokens in repeated contexts",
            table((*header, "served frequency"), rows, numeric=(1, 3, 4)),
        ),
        titled("Tokens that carry most evidence", table((*header, "bet"), tokens, numeric=(1, 3))),
    )


def _token(row: Frequency | Suspect) -> tuple[str, int, str]:
    return escape(row.prompt_text or str(row.prompt)), row.position, f"{row.token} {escape(repr(row.text or ''))}"


def self_check(checked: SelfCheck) -> RenderableType:
    """The table of mutants and controls."""
    rows = [
        (
            "[green]ok[/green]" if row.is_right else "[red]wrong[/red]",
            escape(row.name),
            "control" if row.is_control else f"{row.num_tokens:,}",
            _or_dash(row.bound, ","),
            _or_dash(row.num_tokens_omnibus, ","),
            escape(row.caught_by or f"not flagged in {row.num_tokens:,}"),
        )
        for row in checked.rows
    ]
    header = ("", "mutant", "tokens", "bound", "omnibus", "caught by")
    return titled("Self-check: tokens until a wrong engine is caught", table(header, rows, numeric=(2, 3, 4)))


def _or_dash(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)
