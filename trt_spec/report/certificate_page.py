"""The equivalence check as one self-contained HTML page: no script, no font, no image from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from trt_spec.report import plots

Found = Mapping[str, Any]

_STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--line:#e3e7ec;--paper:#fff;--wash:#f6f7f9;--good:#1a7f4b;--bad:#c0392b;
  --warn:#b7791f;--one:#2563b0;--two:#e08a1e}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa5b3;--line:#2c333d;--paper:#14181d;
  --wash:#1c2128;--good:#4cc38a;--bad:#ff7b6b;--warn:#e7b04b;--one:#6ea8f0;--two:#f0a94a}}
*{box-sizing:border-box}
body{margin:0 auto;padding:28px 20px 60px;max-width:1060px;background:var(--paper);color:var(--ink);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:15px;font-weight:600;color:var(--soft);margin:0 0 4px}
h2{font-size:17px;margin:34px 0 8px}
.verdict{font-size:34px;font-weight:700;line-height:1.15;margin:0}
.equivalent{color:var(--good)}
.different,.lossy{color:var(--bad)}
.inconclusive{color:var(--warn)}
.reason{font-size:17px;margin:8px 0 18px;max-width:60em}
.claim{border-left:4px solid currentColor;padding-left:16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:18px 0}
.tile{background:var(--wash);border-radius:8px;padding:10px 12px}
.tile b{display:block;font-size:20px;font-weight:650}
.tile span{color:var(--soft);font-size:13px}
.row{display:flex;flex-wrap:wrap;gap:18px}
.row figure{flex:1 1 280px;margin:0;min-width:0}
.wide{margin:0;overflow-x:auto}
figcaption{color:var(--soft);font-size:13px;margin-bottom:4px}
svg{width:100%;height:auto;display:block}
.wide svg{max-width:820px}
.row svg{max-width:380px}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th{text-align:left;color:var(--soft);font-weight:600}
td,th{padding:4px 10px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right}
td.wrong{color:var(--bad);font-weight:600}
td.ok{color:var(--good)}
code{font-size:12.5px;overflow-wrap:anywhere}
.note{color:var(--soft);font-size:13.5px;max-width:62em}
.scroll{overflow-x:auto}
.label{font-size:11px;fill:var(--soft)}
.grid{stroke:var(--line);stroke-width:1}
.limit{stroke:var(--bad);stroke-width:1.3;stroke-dasharray:5 4;fill:none}
.one{stroke:var(--one);fill:none;stroke-width:2}
.two{stroke:var(--two);fill:none;stroke-width:2}
rect.one,rect.two{stroke:none;opacity:.8}
rect.one{fill:var(--one)}
rect.two{fill:var(--two)}
.range{fill:var(--soft);opacity:.3}
.range.good{fill:var(--good);opacity:.35}
.dot{fill:var(--one)}
.key i{display:inline-block;width:18px;height:3px;vertical-align:middle;margin:0 5px 0 14px}
.key .k1{background:var(--one)}
.key .k2{background:var(--two)}
@media print{body{max-width:none}}
"""


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
    title = escape(f"{found['run']}: {verdict}")
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    head = f"<head>{meta}<title>{title}</title><style>{_STYLE}</style></head>"
    return f'<!doctype html>\n<html lang="en">{head}<body>{"".join(parts)}</body></html>\n'


def _sentence(found: Found) -> str:
    """What was shown, in one sentence that can be quoted."""
    if found["verdict"] == "equivalent" and found["arms"]["speculation"]["num_tokens"]:
        tokens = found["arms"]["speculation"]["num_tokens"]
        return (
            f"A mean deviation of {found['tau']:g} or more per token is excluded at confidence 1 − {found['alpha']:g} "
            f"in each of {len(found['arms']['speculation']['deviations'])} directions, from {tokens:,} served tokens "
            f"scored by the {found['reference']}.{_sentence_on_roles(found)}"
        )
    return found["reason"][:1].upper() + found["reason"][1:] + "."


def _sentence_on_roles(found: Found) -> str:
    roles = [row for row in found["arms"]["speculation"]["roles"] if row["num_tokens"]]
    if not roles:
        return ""
    parts = [f"{row['excluded_above']:g} for {row['role']}s" for row in roles if row["excluded_above"]]
    return f" Within the places of a step: {', '.join(parts)}."


def _body(found: Found) -> list[str]:
    spec, plain = found["arms"]["speculation"], found["arms"]["plain"]
    lines = [(style, arm["path"]) for style, arm in (("one", spec), ("two", plain)) if arm["path"]]
    parts = [_tiles(found)]
    if "counter_example" in found:
        parts += _counter_example(found["counter_example"])
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
    tiles = [
        (f"{found['tau']:g}", "τ, deviation to exclude"),
        (f"{found['alpha']:g}", "α, chance of a wrong verdict"),
        (f"{found['excluded_above']:g}" if found["excluded_above"] else "none", "deviation excluded so far"),
        (f"{spec['num_tokens']:,}", "tokens with speculation"),
        (f"{plain['num_tokens']:,}", "tokens without (A/A)"),
        (f"{spec['log_e']:.1f} / {plain['log_e']:.1f}", f"log e on / off; limit {found['log_e_limit']:.1f}"),
    ]
    if needed and found["verdict"] == "inconclusive":
        tiles.append((f"{max(0, needed - spec['num_tokens']):,}", "more tokens needed, about"))
    if greedy:
        tiles.append((f"{greedy['num_ties']} of {greedy['num_tokens']}", "greedy tokens that are ties"))
    tiles.append((f"{found['tolerance']:g}", "tolerance: TV per token"))
    body = "".join(f'<div class="tile"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in tiles)
    return f'<div class="tiles">{body}</div>'


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
    return ["<h2>Places in a step</h2>", f'<p class="note">{note}</p>', _table(header, rows, numeric=(1, 2, 3, 4, 5))]


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
    return f'<div class="row">{figure}</figure><figure>{_table((), facts)}</figure></div>'


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
    return f'<p class="note">{note}</p>{_table(header, rows, numeric=(1, 2, 3, 4, 5))}'


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
        _table(header, frequencies, numeric=(1, 3, 4, 5)),
        '<p class="note">Single tokens that carry most of the evidence, and the bet that they won.</p>',
        _table(("prompt", "position", "token", "target probability", "bet"), tokens, numeric=(1, 3)),
    ]


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
        _table(header, rows, numeric=(2, 3, 4, 5)),
    ]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _provenance(found: Found) -> list[str]:
    origin = found["provenance"]
    git = origin.get("git")
    hardware = origin["hardware"]
    pairs = [
        ("command", f"trt-spec verify {found['words']}"),
        ("server", found["server"]),
        ("commit", f"{git['commit'][:12]}{', with changes' if git['is_dirty'] else ''}" if git else "-"),
        ("config digest", origin.get("config_digest", "-")),
        ("versions", ", ".join(f"{name} {version}" for name, version in origin["versions"].items())),
        ("machine", f"{hardware['processor']}, {hardware['num_cores']} cores"),
    ]
    if "seconds" in found:
        seconds = found["seconds"]
        pairs.append(("time", f"{seconds['serving']:.0f} s serving, {seconds['scoring']:.0f} s scoring"))
    if "noise" in found:
        pairs.append(("rounding", f"mean TV {found['noise']['mean_tv']:.2g} per token between two shapes of a forward"))
    if "cross_check" in found:
        pairs.append(("reference and transformers", found["cross_check"]["result"]))
    pairs += [("assumed", what) for what in found.get("assumptions", ())]
    return ["<h2>Where this comes from</h2>", _table((), pairs)]


def _table(header: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[int] = ()) -> str:
    def cell(tag: str, index: int, value: object) -> str:
        style = "n" if index in numeric else value if value in ("ok", "wrong") else ""
        return f"<{tag}{f' class={style}' if style else ''}>{escape(str(value))}</{tag}>"

    head = "".join(cell("th", index, name) for index, name in enumerate(header))
    body = "".join(f"<tr>{''.join(cell('td', i, value) for i, value in enumerate(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table>{f"<tr>{head}</tr>" if header else ""}{body}</table></div>'
