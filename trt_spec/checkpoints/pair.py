"""Does a draft fit a target? Tokenizer, vocabulary, widths, captured layers, positions, types; before a build."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.eagle import canonical, map_problems
from trt_spec.checkpoints.eagle_config import default_captured_layers
from trt_spec.checkpoints.inspection import Inspection, Note, Problem, positive
from trt_spec.checkpoints.tokenizer_pair import TokenizerPair, check_tokenizer_pair
from trt_spec.errors import CheckpointError, PairError

Findings = Iterator[Problem | Note | TokenizerPair]


class Pair(NamedTuple):
    """A draft and a target: what they are by themselves, and their files."""

    draft: Inspection
    target: Inspection
    draft_dir: CheckpointDir
    target_dir: CheckpointDir


def check_pair(pair: Pair) -> Inspection:
    """The draft's inspection with what stands against the pair (problems) and what is worth knowing (notes)."""
    own = {"draft_model": _check_draft_model, "medusa": _check_medusa, "eagle": _check_eagle, "eagle3": _check_eagle3}
    checks = (own.get(pair.draft.method, lambda pair: ()), _check_positions, _check_types)
    found = [one for check in checks for one in check(pair)]
    draft = pair.draft.with_findings(found)
    same = next((one for one in found if isinstance(one, TokenizerPair)), None)
    return draft if same is None else replace(draft, details=replace(draft.details, tokenizer_pair=same))


def _check_draft_model(pair: Pair) -> Findings:
    draft, target = pair.draft, pair.target
    try:
        same = check_tokenizer_pair(
            pair.target_dir.tokenizer,
            pair.draft_dir.tokenizer,
            target_vocab_size=target.vocab_size,
            draft_vocab_size=draft.vocab_size,
        )
    except PairError as error:
        yield Problem("E-VOCAB", "; ".join((error.what, *error.details)), error.remedy or "")
        return
    except CheckpointError as error:
        message = f"the tokenizers cannot be compared: {error.what} ({error.where})"
        yield Problem("E-TOKENIZER", message, error.remedy or "add the tokenizer files")
        return
    yield same
    num_ids = same.target_padded_ids[0]
    if draft.vocab_size is not None and draft.vocab_size < num_ids:
        message = f"the draft has {draft.vocab_size} rows; the target's tokenizer has ids up to {num_ids - 1}"
        yield Problem("E-VOCAB", message, "use a draft that has a row for every id of the target")
    if draft.vocab_size != target.vocab_size:
        yield Note(
            "N-PADDING",
            f"the vocabularies have {target.vocab_size} and {draft.vocab_size} rows for the same tokens; the rest "
            "is padding and never drafted or sampled",
        )
    if draft.num_parameters >= target.num_parameters:
        yield Note("N-SIZE", "the draft is no smaller than the target; it will not be faster")


def _check_medusa(pair: Pair) -> Findings:
    yield from _check_width(pair, pair.draft.hidden_size, "the heads read")
    yield from _check_rows(pair, pair.draft.vocab_size, "the heads have")


def _check_eagle(pair: Pair) -> Findings:
    details = pair.draft.details
    # The target's head reads the draft's output, so the draft is as wide as the target.
    yield from _check_width(pair, pair.draft.hidden_size, "the draft layer is")
    if details.has_own_embedding:
        yield from _check_rows(pair, details.num_embeddings, "the draft's embedding has")
    if details.has_own_head:
        yield from _check_rows(pair, pair.draft.vocab_size, "the draft's head has")


def _check_eagle3(pair: Pair) -> Findings:
    draft, target, details = pair.draft, pair.target, pair.draft.details
    yield from _check_width(pair, details.target_hidden_size, "fc fuses three states of")
    if not (details.has_own_embedding and details.has_own_head) and draft.hidden_size != target.hidden_size:
        message = f"the draft is {draft.hidden_size} wide and has to share what it lacks with a target of"
        remedy = "export the draft with its own embedding and head"
        yield Problem("E-HIDDEN", f"{message} {target.hidden_size}", remedy)
    if details.mapped_vocab_size is not None:
        yield from _check_rows(pair, details.mapped_vocab_size, "t2d covers")
    elif not details.has_d2t and details.has_own_head:
        yield from _check_rows(pair, draft.vocab_size, "the draft's head has")
    if details.has_own_embedding:
        yield from _check_rows(pair, details.num_embeddings, "the draft's embedding has")
    renamed, _ = canonical(pair.draft_dir)
    if details.has_d2t:
        yield from (found for found in map_problems(renamed, target.vocab_size) if found not in draft.problems)
    yield from _check_shared_head(pair, positive(renamed.config, "draft_vocab_size"))
    yield from _check_captured_layers(pair)


def _check_shared_head(pair: Pair, said: int | None) -> Findings:
    """The target's head serves a draft that has none only where both have one vocabulary."""
    has_problem = any(problem.code == "E-HEAD" for problem in pair.draft.problems)
    if pair.draft.details.has_own_head or has_problem or said in (None, pair.target.vocab_size):
        return
    message = f"config.json says draft_vocab_size {said}, but there is no lm_head.weight, and the target's head has"
    yield Problem("E-HEAD", f"{message} {pair.target.vocab_size} rows", "export the draft with its head")


def _check_captured_layers(pair: Pair) -> Findings:
    """Three different layers of the target, by their input; the last one may be the stream behind all layers."""
    named, num_layers = pair.draft.details.captured_layers, pair.target.num_layers
    layers = named or default_captured_layers(num_layers)
    if len(set(layers)) == 3 and list(layers) == sorted(layers) and layers[0] >= 0 and layers[-1] <= num_layers:
        return
    words, remedy = "the draft captures", "use a draft that was trained for this target"
    if not named:
        words = "config.json names no captured layers, and the default captures"
        remedy = "name three in eagle_config.eagle_aux_hidden_state_layer_ids, as the draft was trained"
    message = f"{words} the inputs of layers {list(layers)}; the target has {num_layers} layers"
    yield Problem("E-LAYERS", message, remedy)


def _check_width(pair: Pair, width: int | None, words: str) -> Findings:
    if width != pair.target.hidden_size:
        message = f"{words} {width} wide, the target's hidden state is {pair.target.hidden_size} wide"
        yield Problem("E-HIDDEN", message, "use a draft that was trained for this target")


def _check_rows(pair: Pair, rows: int | None, words: str) -> Findings:
    """Equal rows fit; so do rows that differ in padding alone: beyond the last id of the target's tokenizer."""
    wanted = pair.target.vocab_size
    if rows == wanted or rows is None or wanted is None:
        return
    try:
        num_ids = pair.target_dir.tokenizer.vocab_size
    except CheckpointError:  # none that can be read
        num_ids = None
    if num_ids is not None and min(rows, wanted) >= num_ids:
        message = f"{words} {rows} rows, the target {wanted}; its tokenizer uses {num_ids}, the rest is padding"
        yield Note("N-PADDING", message)
        return
    message = f"{words} {rows} rows, the target's vocabulary has {wanted}"
    yield Problem("E-VOCAB", message, "use a draft that was trained for this target")


def _check_positions(pair: Pair) -> Findings:
    limit, needed = pair.draft.max_position_embeddings, pair.target.max_position_embeddings
    has_own_positions = pair.draft.method in ("draft_model", "eagle", "eagle3")
    if has_own_positions and limit is not None and needed is not None and limit < needed:
        message = f"the draft ends at position {limit}, the target at {needed}; beyond {limit} nothing is drafted"
        yield Note("N-POSITIONS", message)


def _check_types(pair: Pair) -> Findings:
    floats = {"bfloat16", "float16", "float32"}
    drafts, targets = floats.intersection(pair.draft.dtypes), floats.intersection(pair.target.dtypes)
    if drafts and targets and drafts != targets:
        message = f"the draft is stored as {', '.join(sorted(drafts))}, the target as {', '.join(sorted(targets))}"
        yield Note("N-DTYPE", f"{message}; the engine casts both to target.dtype")
