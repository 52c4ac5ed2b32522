"""Does a draft fit a target? Tokenizer, vocabulary, widths, captured layers, positions, types; before a build."""

from __future__ import annotations

from pathlib import Path

from trt_spec.checkpoints.eagle import canonical, map_problems
from trt_spec.checkpoints.eagle_config import default_captured_layers
from trt_spec.checkpoints.inspection import Inspection, Note, Problem, positive
from trt_spec.checkpoints.safetensors_dir import CheckpointDir
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.checkpoints.tokenizer_pair import check_tokenizer_pair
from trt_spec.errors import CheckpointError, PairError


def check_pair(draft: Inspection, target: Inspection, draft_dir: CheckpointDir, target_dir: CheckpointDir) -> None:
    """Adds to `draft` what stands against the pair (problems) and what is worth knowing about it (notes).

    Args:
        draft: The draft's inspection, changed in place.
        target: The target's.
        draft_dir: The draft's files.
        target_dir: The target's.
    """
    checks = {
        "draft_model": _check_draft_model,
        "medusa": _check_medusa,
        "eagle": _check_eagle,
        "eagle3": _check_eagle3,
    }
    if draft.method in checks:
        checks[draft.method](draft, target, draft_dir, target_dir)
    _check_positions(draft, target)
    _check_types(draft, target)


def _check_draft_model(
    draft: Inspection, target: Inspection, draft_dir: CheckpointDir, target_dir: CheckpointDir
) -> None:
    try:
        pair = check_tokenizer_pair(
            target_dir.folder,
            draft_dir.folder,
            target_vocab_size=target.vocab_size,
            draft_vocab_size=draft.vocab_size,
        )
    except PairError as error:
        draft.problems.append(Problem("E-VOCAB", "; ".join((error.what, *error.details)), error.remedy or ""))
        return
    except CheckpointError as error:
        message = f"the tokenizers cannot be compared: {error.what} ({error.where})"
        draft.problems.append(Problem("E-TOKENIZER", message, error.remedy or "add the tokenizer files"))
        return
    draft.details["tokenizer_pair"] = pair.as_dict()
    num_ids = pair.target_padded_ids[0]
    if draft.vocab_size is not None and draft.vocab_size < num_ids:
        message = f"the draft has {draft.vocab_size} rows; the target's tokenizer has ids up to {num_ids - 1}"
        draft.problems.append(Problem("E-VOCAB", message, "use a draft that has a row for every id of the target"))
    if draft.vocab_size != target.vocab_size:
        draft.notes.append(
            Note(
                "N-PADDING",
                f"the vocabularies have {target.vocab_size} and {draft.vocab_size} rows for the same tokens; the rest "
                "is padding and never drafted or sampled",
            )
        )
    if draft.num_parameters >= target.num_parameters:
        draft.notes.append(Note("N-SIZE", "the draft is no smaller than the target; it will not be faster"))


def _check_medusa(draft: Inspection, target: Inspection, draft_dir: CheckpointDir, target_dir: CheckpointDir) -> None:
    _check_width(draft, draft.hidden_size, target, "the heads read")
    _check_rows(draft, target, draft.vocab_size, "the heads have", target_dir)


def _check_eagle(draft: Inspection, target: Inspection, draft_dir: CheckpointDir, target_dir: CheckpointDir) -> None:
    # The target's head reads the draft's output, so the draft is as wide as the target.
    _check_width(draft, draft.hidden_size, target, "the draft layer is")
    if draft.details["has_own_embedding"]:
        _check_rows(draft, target, draft.details["num_embeddings"], "the draft's embedding has", target_dir)
    if draft.details["has_own_head"]:
        _check_rows(draft, target, draft.vocab_size, "the draft's head has", target_dir)


def _check_eagle3(draft: Inspection, target: Inspection, draft_dir: CheckpointDir, target_dir: CheckpointDir) -> None:
    _check_width(draft, draft.details["target_hidden_size"], target, "fc fuses three states of")
    if not (draft.details["has_own_embedding"] and draft.details["has_own_head"]) and (
        draft.hidden_size != target.hidden_size
    ):
        message = f"the draft is {draft.hidden_size} wide and has to share what it lacks with a target of"
        draft.problems.append(
            Problem("E-HIDDEN", f"{message} {target.hidden_size}", "export the draft with its own embedding and head")
        )
    if draft.details["mapped_vocab_size"] is not None:
        _check_rows(draft, target, draft.details["mapped_vocab_size"], "t2d covers", target_dir)
    elif not draft.details["has_d2t"] and draft.details["has_own_head"]:
        _check_rows(draft, target, draft.vocab_size, "the draft's head has", target_dir)
    if draft.details["has_own_embedding"]:
        _check_rows(draft, target, draft.details["num_embeddings"], "the draft's embedding has", target_dir)
    renamed, _ = canonical(draft_dir)
    if draft.details["has_d2t"]:
        draft.problems += [
            problem for problem in map_problems(renamed, target.vocab_size) if problem not in draft.problems
        ]
    _check_shared_head(draft, target, positive(renamed.config, "draft_vocab_size"))
    _check_captured_layers(draft, target)


def _check_shared_head(draft: Inspection, target: Inspection, said: int | None) -> None:
    """The target's head serves a draft that has none only where both have one vocabulary."""
    has_problem = any(problem.code == "E-HEAD" for problem in draft.problems)
    if draft.details["has_own_head"] or has_problem or said in (None, target.vocab_size):
        return
    message = f"config.json says draft_vocab_size {said}, but there is no lm_head.weight, and the target's head has"
    draft.problems.append(Problem("E-HEAD", f"{message} {target.vocab_size} rows", "export the draft with its head"))


def _check_captured_layers(draft: Inspection, target: Inspection) -> None:
    """Three different layers of the target, by their input; the last one may be the stream behind all layers."""
    named = draft.details["captured_layers"]
    layers = named or default_captured_layers(target.num_layers)
    if len(set(layers)) == 3 and list(layers) == sorted(layers) and layers[0] >= 0 and layers[-1] <= target.num_layers:
        return
    words = "the draft captures" if named else "config.json names no captured layers, and the default captures"
    draft.problems.append(
        Problem(
            "E-LAYERS",
            f"{words} the inputs of layers {list(layers)}; the target has {target.num_layers} layers",
            "use a draft that was trained for this target"
            if named
            else "name three in eagle_config.eagle_aux_hidden_state_layer_ids, as the draft was trained",
        )
    )


def _check_width(draft: Inspection, width: int | None, target: Inspection, words: str) -> None:
    if width != target.hidden_size:
        draft.problems.append(
            Problem(
                "E-HIDDEN",
                f"{words} {width} wide, the target's hidden state is {target.hidden_size} wide",
                "use a draft that was trained for this target",
            )
        )


def _check_rows(draft: Inspection, target: Inspection, rows: int | None, words: str, target_dir: CheckpointDir) -> None:
    """Equal rows fit; so do rows that differ in padding alone: beyond the last id of the target's tokenizer."""
    if rows == target.vocab_size or rows is None or target.vocab_size is None:
        return
    num_ids = tokenizer_size(target_dir.folder)
    if num_ids is not None and min(rows, target.vocab_size) >= num_ids:
        message = (
            f"{words} {rows} rows, the target {target.vocab_size}; its tokenizer uses {num_ids}, the rest is padding"
        )
        draft.notes.append(Note("N-PADDING", message))
        return
    draft.problems.append(
        Problem(
            "E-VOCAB",
            f"{words} {rows} rows, the target's vocabulary has {target.vocab_size}",
            "use a draft that was trained for this target",
        )
    )


def tokenizer_size(folder: Path) -> int | None:
    """Highest id + 1 of the tokenizer in a directory; None where it has none that can be read."""
    try:
        return Tokenizer.load(folder).vocab_size
    except CheckpointError:
        return None


def _check_positions(draft: Inspection, target: Inspection) -> None:
    limit, needed = draft.max_position_embeddings, target.max_position_embeddings
    has_own_positions = draft.method in ("draft_model", "eagle", "eagle3")
    if has_own_positions and limit is not None and needed is not None and limit < needed:
        message = f"the draft ends at position {limit}, the target at {needed}; beyond {limit} nothing is drafted"
        draft.notes.append(Note("N-POSITIONS", message))


def _check_types(draft: Inspection, target: Inspection) -> None:
    floats = {"bfloat16", "float16", "float32"}
    drafts, targets = floats.intersection(draft.dtypes), floats.intersection(target.dtypes)
    if drafts and targets and drafts != targets:
        message = f"the draft is stored as {', '.join(sorted(drafts))}, the target as {', '.join(sorted(targets))}"
        draft.notes.append(Note("N-DTYPE", f"{message}; the engine casts both to target.dtype"))
