"""The result of an equivalence check, for terminals, machines and pull requests: JSON, JUnit, one HTML page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from trt_spec.equivalence.page import page
from trt_spec.report import page as files
from trt_spec.report.tables import facts, table, titled

COLOURS = {"equivalent": "green", "different": "red", "inconclusive": "yellow", "lossy by configuration": "red"}
Found = Mapping[str, Any]


def write(found: Found, directory: Path) -> list[Path]:
    """Writes certificate.json, junit.xml and index.html into a directory, and returns their paths."""
    texts = {
        "certificate.json": json.dumps(found, indent=2, ensure_ascii=False) + "\n",
        "junit.xml": junit(found),
        "index.html": page(found),
    }
    return files.write(directory, texts)


def checks(found: Found) -> Iterator[tuple[str, str | None]]:
    """(name, what is wrong or None) of every check: one test case each."""
    is_good = found["verdict"] == "equivalent"
    yield "equivalence", None if is_good else f"{found['verdict']}: {found['reason']}"
    if "cross_check" in found:
        checked = found["cross_check"]
        yield "reference and transformers", None if checked["is_right"] else checked["result"]
    if "arms" not in found:
        return
    greedy = found.get("greedy")
    if greedy:
        broken = greedy["violations"]
        wrong = f"{len(greedy['faults'])} tokens below the best one" if greedy["faults"] else None
        yield "greedy outputs", wrong
        yield "contract, greedy", broken[0]["what"] if broken else None
        if greedy["reported_logprobs"]:
            yield "reported log-probabilities, greedy", _reported_fault(found, "greedy")
    for name, arm in found["arms"].items():
        is_over = arm["log_e_peak"] >= found["log_e_limit"]
        wrong = f"log e reached {arm['log_e_peak']:.1f}, limit {found['log_e_limit']:.1f}" if is_over else None
        yield f"law of the tokens, {name}", wrong
        if arm["reported_logprobs"]:
            yield f"reported log-probabilities, {name}", _reported_fault(found, name)
        yield f"contract, {name}", arm["violations"][0]["what"] if arm["violations"] else None
    for row in found.get("self_check", {}).get("rows", ()):
        kind = "control" if row["is_control"] else "mutant"
        wrong = "flagged, and is right" if row["is_control"] else "not caught"
        yield f"self-check, {kind}: {row['name']}", None if row["is_right"] else wrong


def _reported_fault(found: Found, name: str) -> str | None:
    is_wrong = "log-probabilit" in found["reason"] and found["reason"].startswith(f"{name}:")
    return found["reason"] if is_wrong else None


def junit(found: Found) -> str:
    """One test suite with a case per check; whatever is not shown is a failure."""
    return files.junit(f"equivalence of {found['run']}", f"verify.{found['run']}", list(checks(found)))


def view(found: Found) -> RenderableType:
    """The certificate for a terminal."""
    verdict = found["verdict"]
    shown: list[RenderableType] = [
        Text(f"{found['run']}: {verdict}", style=f"bold {COLOURS[verdict]}"),
        Text(found["reason"]),
    ]
    if "arms" in found:
        shown += [Text(), _evidence(found)]
        if found["arms"]["speculation"]["num_tokens"]:
            shown += [Text(), _deviations(found)]
    if "counter_example" in found:
        shown += [Text(), _counter_example(found["counter_example"])]
    if "self_check" in found:
        shown += [Text(), self_check(found["self_check"])]
    return Group(*shown)


def _evidence(found: Found) -> RenderableType:
    arms, greedy = found["arms"], found["greedy"]
    spec, plain = arms["speculation"], arms["plain"]
    length = spec["profile"]["mean_acceptance_length"]
    needed = found["num_tokens_needed"]
    return facts(
        [
            ("tokens", f"{spec['num_tokens']:,} with speculation, {plain['num_tokens']:,} without"),
            ("log e", f"{spec['log_e']:.1f} and {plain['log_e']:.1f}; {found['log_e_limit']:.1f} would reject"),
            (
                "excluded",
                f"a deviation above {found['excluded_above']:g}" if found["excluded_above"] else "nothing yet",
            ),
            *[
                (f"  {row['role']}", f"{row['num_tokens']:,} tokens, log e {row['log_e']:.1f}, {_role_bound(row)}")
                for row in spec["roles"]
                if row["num_tokens"]
            ],
            ("still needed", f"about {max(0, needed - spec['num_tokens']):,} tokens" if needed else None),
            ("tolerance", f"{found['tolerance']:g} TV per token, for systematic rounding"),
            ("greedy", f"{greedy['num_tokens']} tokens, {greedy['num_ties']} ties" if greedy else None),
            ("acceptance", f"{length:.2f} tokens per drafted step" if length else "no drafts"),
            ("reference", found["reference"]),
            ("time", f"{found['seconds']['serving']:.0f} s serving, {found['seconds']['scoring']:.0f} s scoring"),
        ]
    )


def _role_bound(row: Found) -> str:
    excluded = f"excluded above {row['excluded_above']:g}" if row["excluded_above"] else "nothing excluded yet"
    return f"{excluded}; demanded {row['demanded']:g}" if row["demanded"] else f"{excluded}; too rare to be demanded"


def _deviations(found: Found) -> RenderableType:
    rows = [
        (
            escape(row["direction"]),
            f"{row['deviation']:+.4f}",
            "-" if row["excluded_above"] is None else f"{row['excluded_above']:g}",
            "-" if row["shown_above"] is None else f"{row['shown_above']:g}",
        )
        for row in found["arms"]["speculation"]["deviations"]
    ]
    header = ("direction", "seen", "excluded above", "shown above")
    title = f"Mean deviation per token, at 1 - {found['alpha']:g}"
    return titled(title, table(header, rows, numeric=(1, 2, 3)))


def _counter_example(example: Found) -> RenderableType:
    rows = [
        (
            escape(row.get("prompt_text", str(row["prompt"]))),
            row["position"],
            f"{row['token']} {escape(repr(row.get('text', '')))}",
            f"{row['target_probability']:.4f}",
            f"{row['served_frequency']:.4f} of {row['num_samples']}",
        )
        for row in example["frequencies"]
    ]
    header = ("prompt", "position", "token", "target probability", "served frequency")
    tokens = [
        (
            escape(row.get("prompt_text", str(row["prompt"]))),
            row["position"],
            f"{row['token']} {escape(repr(row.get('text', '')))}",
            f"{row['target_probability']:.2g}",
            row["bet"],
        )
        for row in example["tokens"][:5]
    ]
    return Group(
        titled("Counter-example: tokens in repeated contexts", table(header, rows, numeric=(1, 3, 4))),
        titled(
            "Tokens that carry most evidence",
            table(("prompt", "position", "token", "target probability", "bet"), tokens, numeric=(1, 3)),
        ),
    )


def self_check(checked: Found) -> RenderableType:
    """The table of mutants and controls."""
    rows = [
        (
            "[green]ok[/green]" if row["is_right"] else "[red]wrong[/red]",
            escape(row["name"]),
            "control" if row["is_control"] else f"{row['num_tokens']:,}",
            "-" if row["bound"] is None else f"{row['bound']:,}",
            "-" if row["num_tokens_omnibus"] is None else f"{row['num_tokens_omnibus']:,}",
            escape(row["caught_by"] or f"not flagged in {row['num_tokens']:,}"),
        )
        for row in checked["rows"]
    ]
    header = ("", "mutant", "tokens", "bound", "omnibus", "caught by")
    return titled("Self-check: tokens until a wrong engine is caught", table(header, rows, numeric=(2, 3, 4)))
