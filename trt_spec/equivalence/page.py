"""The equivalence check as one self-contained HTML page: no script, no font, no image from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from trt_spec.report import plots
from trt_spec.report.page import html, origin, table, tiles

Found = Mapping[str, Any]
_NUM_ROWS = 10  # of faults that are shown


def page(found: Found) -> str:
    """The whole page."""
    verdict = found["verdict"]
    parts = [
        f"<h1>Equivalence of speculative decoding · run <code>{escape(found['run'])}</code></h1>",
        f'<div class="claim {verdict.split()[0]}"><p class="verdict">{escape(verdict.capitalize())}</p></div>',
        f'<p class="reason">{escape(_sentence(found))}</p>',
    ]
    if "arms" in found:
        parts += _body(found)
    if "self_check" in found:
        parts += _self_check(found["self_check"])
    parts += _provenance(found)
    return html(f"{found['run']}: {verdict}", parts)


def _sentence(found: Found) -> str:
    """What was shown, in one sentence that can be quoted."""
    if found["verdict"] == "equivalent" and found["arms"]["speculation"]["num_tokens"]:
        tokens = found["arms"]["speculation"]["num_tokens"]
        return (
            f"A mean deviation of {found['tau']:g} or more per token is excluded at confidence 1 − {found['alpha']:g} "
            f"in each of {len(found['arms']['speculation']['deviations'])} directions, from {tokens:,} served tokens "
            f"scored by the {found['reference']}.{_sentence_on_roles(found)}{_warning(found)}"
        )
    return found["reason"][:1].upper() + found["reason"][1:] + "."


def _warning(found: Found) -> str:
    """What the reason says after the claim itself."""
    warning = found["reason"].partition("; ")[2]
    return f" {warning[:1].upper()}{warning[1:]}." if warning else ""


def _sentence_on_roles(found: Found) -> str:
    roles = [row for row in found["arms"]["speculation"]["roles"] if row["num_tokens"]]
    if not roles:
        return ""
    plural = {"no draft": "tokens without a draft"}
    parts = [
        f"{row['excluded_above']:g} for {plural.get(row['role'], row['role'] + 's')}"
        for row in roles
        if row["excluded_above"]
    ]
    return f" Within the places of a step: {', '.join(parts)}."


def _body(found: Found) -> list[str]:
    spec, plain = found["arms"]["speculation"], found["arms"]["plain"]
    lines = [(style, arm["path"]) for style, arm in (("one", spec), ("two", plain)) if arm["path"]]
    parts = [_tiles(found)]
    broken = _greedy_faults(found) + _violations(found)
    parts += broken
    if "counter_example" in found and not broken:  # what the law forbids needs no statistics
        parts += _counter_example(found["counter_example"])
    if not spec["num_tokens"]:  # only greedy outputs were served
        return parts
    parts += [
        "<h2>Evidence against equal laws</h2>",
        '<p class="note key"><i class="k1"></i>speculation on<i class="k2"></i>speculation off (A/A)<br>'
        "The e-value multiplies up with every token. If the served law were the target's, within the tolerance, it "
        f"would cross the dashed line at any time with probability at most {found['alpha'] / 2:g}.</p>",
        f'<figure class="wide">{plots.e_value_path(lines, found["log_e_limit"])}</figure>',
        "<h2>Deviation per direction</h2>",
        '<p class="note">Dot: mean deviation per token that was seen. Bar: what is not excluded. Green bars lie within '
        f"±τ = {found['tau']:g}. A direction is a set of tokens named before each token was known, such as those that "
        "a faulty rule would favour; a histogram's direction is its total variation from uniform.</p>",
        f'<figure class="wide">{plots.deviations(spec["deviations"], found["tau"])}</figure>',
        *_roles(spec, plain),
        "<h2>PIT histograms</h2>",
        '<p class="note">The probability integral transform of the served tokens, with the vocabulary in some order; '
        "flat at 1 under the target's law. Blue: speculation on. Orange: off.</p>",
        _histograms(spec, plain),
        "<h2>Drafts and ties</h2>",
        _profile(found),
        "<h2>Prompts</h2>",
        _prompts(found),
    ]
    return parts


def _tiles(found: Found) -> str:
    spec, plain, greedy = found["arms"]["speculation"], found["arms"]["plain"], found["greedy"]
    needed = found["num_tokens_needed"]
    shown = [
        (f"{found['tau']:g}", "τ, deviation to exclude"),
        (f"{found['alpha']:g}", "α, chance of a wrong verdict"),
        (f"{found['excluded_above']:g}" if found["excluded_above"] else "none", "deviation excluded so far"),
        (f"{spec['num_tokens']:,}", "tokens with speculation"),
        (f"{plain['num_tokens']:,}", "tokens without (A/A)"),
        (f"{spec['log_e']:.1f} / {plain['log_e']:.1f}", f"log e on / off; limit {found['log_e_limit']:.1f}"),
    ]
    if needed and found["verdict"] == "inconclusive":
        shown.append((f"{max(0, needed - spec['num_tokens']):,}", "more tokens needed, about"))
    if greedy:
        shown.append((f"{greedy['num_ties']} of {greedy['num_tokens']}", "greedy tokens that are ties"))
    shown.append((f"{found['tolerance']:g}", "tolerance: TV per token"))
    return tiles(shown)


def _roles(spec: Found, plain: Found) -> list[str]:
    """Evidence and reported log-probabilities by where tokens came from."""
    reported, off = spec["reported_logprobs"], plain["reported_logprobs"]
    rows = []
    for row in spec["roles"]:
        if not row["num_tokens"]:
            continue
        demanded = "too rare" if row["demanded"] is None else f"{row['demanded']:g}"
        excluded = "-" if row["excluded_above"] is None else f"{row['excluded_above']:g}"
        error = _error(reported, row["role"])
        rows.append((row["role"], f"{row['num_tokens']:,}", f"{row['log_e']:.1f}", excluded, demanded, error))
    if not rows:
        return []
    note = (
        "Each token again, by its place in the step that served it: a rule that is wrong in one place shows there "
        "first. The last column is the distance of the log-probability that the server reported from the reference's, "
        f"mean and largest; with speculation off it is {_error(off, 'all tokens')}."
    )
    header = ("token", "tokens", "log e", "excluded above", "demanded", "reported log p, nats")
    return ["<h2>Places in a step</h2>", f'<p class="note">{note}</p>', table(header, rows, numeric=(1, 2, 3, 4, 5))]


def _error(reported: Found | None, role: str) -> str:
    if reported is None or not reported[role]["num_tokens"]:
        return "-"
    return f"{reported[role]['mean']:.2g}, {reported[role]['largest']:.2g}"


def _histograms(spec: Found, plain: Found) -> str:
    figures = []
    for name, shares in spec["histogram"].items():
        both = plots.histogram(shares, "one", f"speculation on, by {name}")
        other = plots.histogram(plain["histogram"][name], "two", f"off, by {name}")
        figures.append(f"<figure>{both}{other}</figure>")
    return f'<div class="row">{"".join(figures)}</div>'


def _profile(found: Found) -> str:
    profile, greedy = found["arms"]["speculation"]["profile"], found["greedy"]
    sampling = found["sampling"]
    facts = [
        ("acceptance rule", found.get("acceptance")),
        ("temperature, top-p, top-k", f"{sampling['temperature']:g}, {sampling['top_p']:g}, {sampling['top_k']}"),
        ("drafted steps", f"{profile['num_drafts']:,}"),
        ("draft tokens, accepted", f"{profile['num_draft_tokens']:,}, {profile['num_accepted_tokens']:,}"),
        ("acceptance rate", _number(profile["acceptance_rate"])),
        ("mean acceptance length", _number(profile["mean_acceptance_length"])),
    ]
    if greedy:
        words = f"{greedy['num_ties']} of {greedy['num_tokens']} tokens, at most {greedy['largest_tie']:.3g} logits"
        facts += [("greedy ties", words), ("tie tolerance", f"{greedy['tolerance']:.3g} logits")]
        facts += [("greedy faults", str(len(greedy["faults"])))]
    figure = f"<figure><figcaption>accepted, of all drafts</figcaption>{plots.profile(profile['rate_per_pos'], 'one')}"
    return f'<div class="row">{figure}</figure><figure>{table((), facts)}</figure></div>'


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _prompts(found: Found) -> str:
    plain = {row["prompt"]: row for row in found["arms"]["plain"]["per_prompt"]}
    rows = []
    for row in found["arms"]["speculation"]["per_prompt"]:
        other = plain.get(row["prompt"])
        rows.append(
            (
                found["prompts"][row["prompt"]]["label"],
                f"{row['num_tokens']:,}",
                f"{row['surprise']:.3f}",
                f"{row['expected']:.3f}",
                f"{row['z']:+.1f}",
                f"{other['z']:+.1f}" if other else "-",
            )
        )
    header = ("prompt", "tokens", "surprise, nats", "expected", "z on", "z off")
    note = "Surprise is the mean of −log p of the served tokens; z is its distance from what the law expects."
    return f'<p class="note">{note}</p>{table(header, rows, numeric=(1, 2, 3, 4, 5))}'


def _counter_example(example: Found) -> list[str]:
    frequencies = [
        (
            row.get("prompt_text", str(row["prompt"])),
            row["position"],
            f"{row['token']} {row.get('text', '')!r}",
            f"{row['target_probability']:.4f}",
            f"{row['served_frequency']:.4f}",
            row["num_samples"],
        )
        for row in example["frequencies"]
    ]
    tokens = [
        (
            row.get("prompt_text", str(row["prompt"])),
            row["position"],
            f"{row['token']} {row.get('text', '')!r}",
            f"{row['target_probability']:.3g}",
            row["bet"],
        )
        for row in example["tokens"]
    ]
    header = ("prompt", "position", "token", "target probability", "served frequency", "samples")
    return [
        "<h2>Counter-example</h2>",
        '<p class="note">Tokens in contexts that were served many times: their probability and their frequency.</p>',
        table(header, frequencies, numeric=(1, 3, 4, 5)),
        '<p class="note">Single tokens that carry most of the evidence, and the bet that they won.</p>',
        table(("prompt", "position", "token", "target probability", "bet"), tokens, numeric=(1, 3)),
    ]


def _greedy_faults(found: Found) -> list[str]:
    faults = found["greedy"]["faults"] if found["greedy"] else []
    rows = [
        (
            found["prompts"][fault["prompt_index"]]["label"],
            fault["position"],
            f"{fault['token']} {fault.get('text', '')!r}",
            f"{fault['best_token']} {fault.get('best_text', '')!r}",
            f"{fault['gap']:.3g}",
        )
        for fault in faults[:_NUM_ROWS]
    ]
    if not rows:
        return []
    note = f"Served at temperature 0, and not the target's best token: the first {len(rows)} of {len(faults)}."
    header = ("prompt", "position", "token", "best token", "gap, logits")
    return ["<h2>Greedy faults</h2>", f'<p class="note">{note}</p>', table(header, rows, numeric=(1, 4))]


def _violations(found: Found) -> list[str]:
    sources = [("greedy", found["greedy"]), *found["arms"].items()]
    rows = [
        (name, found["prompts"][row["prompt"]]["label"], row["what"])
        for name, source in sources
        if source
        for row in source["violations"]
    ]
    if not rows:
        return []
    note = "Outputs that no law allows."
    shown = table(("outputs", "prompt", "what is wrong"), rows[:_NUM_ROWS])
    return ["<h2>Broken contracts</h2>", f'<p class="note">{note}</p>', shown]


def _self_check(checked: Found) -> list[str]:
    rows = []
    for row in checked["rows"]:
        caught = row["caught_by"] or f"not flagged in {row['num_tokens']:,} tokens"
        tokens = "control" if row["is_control"] else f"{row['num_tokens']:,}"
        ratio = f"{row['num_tokens'] / row['bound']:.1f}" if row["bound"] and row["is_caught"] else "-"
        state = "ok" if row["is_right"] else "wrong"
        rows.append(
            (state, row["name"], tokens, _count(row["bound"]), ratio, _count(row["num_tokens_omnibus"]), caught)
        )
    header = ("", "engine", "tokens to detection", "bound", "ratio", "omnibus alone", "caught by")
    return [
        "<h2>Self-check</h2>",
        f'<p class="note">{checked["num_mutants"]} wrong engines and {checked["num_controls"]} lossless ones that look '
        "odd, judged by the same harness on toy models. The bound is log(1/α)/KL; no test needs fewer on average. "
        f"Median ratio to it: {_ratio(checked['median_ratio'])}; by the omnibus alone "
        f"{_ratio(checked['median_ratio_omnibus'])}.</p>",
        table(header, rows, numeric=(2, 3, 4, 5)),
    ]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _provenance(found: Found) -> list[str]:
    pairs = [
        ("command", f"trt-spec verify {found['words']}"),
        ("server", found["server"]),
        *origin(found["provenance"]),
    ]
    if "seconds" in found:
        seconds = found["seconds"]
        pairs.append(("time", f"{seconds['serving']:.0f} s serving, {seconds['scoring']:.0f} s scoring"))
    if "noise" in found:
        pairs.append(("rounding", f"mean TV {found['noise']['mean_tv']:.2g} per token between two shapes of a forward"))
    if "cross_check" in found:
        pairs.append(("reference and transformers", found["cross_check"]["result"]))
    pairs += [("assumed", what) for what in found.get("assumptions", ())]
    return ["<h2>Where this comes from</h2>", table((), pairs)]
