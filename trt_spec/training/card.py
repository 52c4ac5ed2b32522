"""The model card: what a checkpoint was trained on, how, and what it was measured to be worth.

`card.json` is for programs, `README.md` says the same to people. Nothing in it was not measured in that run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trt_spec.atomic import write_text
from trt_spec.checkpoints.hf_config import read_json
from trt_spec.training.corpus import Corpus
from trt_spec.training.trainer import Trainer

CARD_FILE = "card.json"
TEXT_FILE = "README.md"
_UNKNOWN_LICENCE = "not stated by the target's files; a head made from a target follows the target's licence"


def corpus_facts(corpus: Corpus, num_shards: int) -> dict[str, Any]:
    """Settings of the corpus and what is in it, by source and by temperature."""
    by_source, by_temperature = Counter[str](), Counter[str]()
    num_replies = num_prompt_tokens = 0
    for one in corpus.conversations(num_shards):
        num_replies, num_prompt_tokens = num_replies + 1, num_prompt_tokens + len(one.prompt_ids)
        by_source[one.source] += len(one.reply_ids)
        by_temperature[f"{one.temperature:g}"] += len(one.reply_ids)
    return {
        "settings": asdict(corpus.settings),
        "num_shards": num_shards,
        "num_replies": num_replies,
        "num_prompt_tokens": num_prompt_tokens,
        "num_reply_tokens": by_source.total(),
        "reply_tokens_by_source": by_source,
        "reply_tokens_by_temperature": by_temperature,
    }


def training_facts(trainer: Trainer) -> dict[str, Any]:
    """Settings and last figures of a training run."""
    figures = trainer.figures
    return {
        "settings": asdict(trainer.settings),
        "dtype": str(trainer.dtype).removeprefix("torch."),
        "num_steps": figures.step,
        "num_token_visits": figures.num_visits,
        "seconds": round(figures.seconds, 1),
        "loss_by_position": [round(value, 4) for value in figures.losses],
        "accuracy_by_position": [round(value, 4) for value in figures.accuracies],
        "num_parameters": sum(tensor.numel() for tensor in trainer.weights.values()),
    }


def earlier(directory: Path) -> dict[str, Any]:
    """What the card of a checkpoint tells of how it was made, for the card of one that goes on from it."""
    if not (directory / CARD_FILE).is_file():
        return {"name": directory.resolve().name}
    found = read_json(directory / CARD_FILE)
    kept = {key: found[key] for key in ("corpus", "training", "continues") if key in found}
    return {"name": directory.resolve().name, **kept}


def stated_licence(directory: Path) -> str:
    """The licence that the target's own files state, read from config.json or the head of its README.md."""
    if (path := directory / "config.json").is_file() and isinstance(named := read_json(path).get("license"), str):
        return named
    if (path := directory / TEXT_FILE).is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[:40]:
            if line.startswith("license:"):
                return line.partition(":")[2].strip()
    return _UNKNOWN_LICENCE


def write(directory: Path, card: Mapping[str, Any]) -> None:
    """Writes both forms."""
    write_text(directory / CARD_FILE, json.dumps(card, indent=1, ensure_ascii=False) + "\n")
    write_text(directory / TEXT_FILE, text(card))


def text(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    corpus, training = card["corpus"], card["training"]
    shares = ", ".join(f"{count:,} at T = {key}" for key, count in corpus["reply_tokens_by_temperature"].items())
    sources = ", ".join(
        f"{count:,} to prompts of source {key}" for key, count in corpus["reply_tokens_by_source"].items()
    )
    settings = training["settings"]
    lines = [
        f"# {card['method']} for {card['target']['name']}",
        "",
        f"Trained by `trt-spec train`. Target digest {card['target']['digest']}. Licence: {card['licence']}.",
        "",
        "## Data",
        "",
        f"{corpus['num_replies']:,} replies that the target wrote itself, {corpus['num_reply_tokens']:,} tokens: "
        f"{shares}; {sources}. Seed {corpus['settings']['seed']}.",
        "",
        "## Training",
        "",
        f"{training['num_steps']:,} steps of {settings['batch_tokens']:,} tokens, {training['num_token_visits']:,} "
        f"token visits, {training['seconds'] / 60:.0f} minutes, {training['num_parameters']:,} parameters, AdamW at "
        f"{settings['learning_rate']:g}, seed {settings['seed']}.",
        "",
        "| draft position | loss, nats | same likeliest token as the target |",
        "|---|---|---|",
        *(
            f"| {position} | {loss:.3f} | {100 * accuracy:.1f} % |"
            for position, (loss, accuracy) in enumerate(
                zip(training["loss_by_position"], training["accuracy_by_position"], strict=True), 1
            )
        ),
        "",
        "Smoothed over the last steps, on replies only, given the target's own tokens before.",
        "",
        *_earlier(card.get("continues")),
        "Recipe: " + ", ".join(f"{key} {value}" for key, value in card["recipe"].items()) + ".",
        "",
        *_acceptance(card.get("acceptance")),
    ]
    return "\n".join(lines)


def _earlier(made: Mapping[str, Any] | None) -> list[str]:
    """A line for every run that this one went on from, the last one first."""
    lines = []
    while made is not None:
        words = "no card of it is left"
        if "training" in made:
            training, corpus = made["training"], made["corpus"]
            words = (
                f"{training['num_steps']:,} steps, {training['num_token_visits']:,} token visits, "
                f"{training['seconds'] / 60:.0f} minutes on {corpus['num_reply_tokens']:,} reply tokens"
            )
        lines += [f"Went on from an earlier run: {words}.", ""]
        made = made.get("continues")
    return lines


def _acceptance(measured: Mapping[str, Any] | None) -> list[str]:
    if measured is None:
        return ["## Acceptance", "", "Not measured.", ""]
    rows = measured["by_temperature"]
    depth = max(len(row["accepted_share_per_pos"]) for row in rows)
    shape = f"chains of {measured['max_draft_len']}" if measured["tree"] is None else f"trees {_tree(measured['tree'])}"
    return [
        "## Acceptance",
        "",
        f"On {rows[0]['num_prompts']} held-out prompts, replies of at most {measured['max_tokens']} tokens, through "
        f"the engine in {measured['draft_dtype']}, rule {measured['acceptance']}, {shape}.",
        "",
        f"| T | tokens per step | {' | '.join(f'position {index + 1}' for index in range(depth))} | drafts |",
        "|---" * (depth + 3) + "|",
        *(
            f"| {row['temperature']:g} | {row['mean_acceptance_length']:.2f} | "
            + " | ".join(f"{100 * share:.1f} %" for share in [*row["accepted_share_per_pos"], *[0.0] * depth][:depth])
            + f" | {row['num_drafts']:,} |"
            for row in rows
        ),
        "",
        "A position counts the drafts that were accepted up to it; the token that ends a step is not among them.",
        "",
    ]


def _tree(tree: Mapping[str, Any]) -> str:
    if "choices" in tree:
        return f"of {len(tree['choices'])} nodes"
    return f"that grow by {tree['top_k']} up to {tree['max_total_draft_tokens']} nodes"
