"""What is this checkpoint? Answered from its tensors; names of files and config.json are hints at most."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trt_spec.checkpoints import causal_lm, eagle, medusa
from trt_spec.checkpoints.inspection import Inspection, Note, Problem
from trt_spec.checkpoints.mtp import find_mtp_layers
from trt_spec.checkpoints.pair import check_pair
from trt_spec.checkpoints.safetensors_dir import CheckpointDir
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import CheckpointError

__all__ = ["Inspection", "Note", "Problem", "inspect"]


class Layout(NamedTuple):
    """One kind of checkpoint: whether tensors are of it, and what they then say."""

    name: str
    matches: Callable[[CheckpointDir], bool]
    describe: Callable[[CheckpointDir], Inspection]


# Heads first: an EAGLE draft has an embedding and a layer too, and would pass for a very small model.
LAYOUTS = (
    Layout("medusa", medusa.matches, medusa.describe),
    Layout("eagle", eagle.matches, eagle.describe),
    Layout("causal_lm", causal_lm.matches, causal_lm.describe),
)


def inspect(path: str | Path, target: str | Path | None = None) -> Inspection:
    """Tells what a checkpoint is and, given a target, whether it fits.

    Reads headers, config and tokenizers; of the tensors only EAGLE-3's vocabulary maps. Values are checked on loading.

    Args:
        path: A checkpoint directory or tensor file.
        target: The checkpoint of the target that it should draft for.

    Returns:
        The inspection, with every problem in it; `fits_target` is None without a target.

    Raises:
        CheckpointError: The files cannot be opened, or hold nothing that is known here.
    """
    checkpoint = CheckpointDir.open(path)
    inspection = _describe(checkpoint)
    if target is None:
        if inspection.role == "target":
            _look_at_tokenizer(checkpoint, inspection)
        return inspection
    target_dir = CheckpointDir.open(target)
    target_inspection = _describe(target_dir)
    is_own_target = checkpoint.path.resolve() == target_dir.path.resolve()
    if inspection.role == "target":
        inspection.role = "draft"
        inspection.method = "mtp" if inspection.method == "mtp" and is_own_target else "draft_model"
    if target_inspection.role != "target":
        message = f"{target_dir.path} is no target but a draft ({target_inspection.method})"
        inspection.problems.append(Problem("E-TARGET", message, "give the directory of the large model as the target"))
    elif not is_own_target:
        inspection.problems += [
            Problem(problem.code, f"the target: {problem.message}", problem.remedy)
            for problem in target_inspection.problems
        ]
    if target_inspection.role == "target":
        check_pair(inspection, target_inspection, checkpoint, target_dir)
    inspection.fits_target = not inspection.problems
    return inspection


def _describe(checkpoint: CheckpointDir) -> Inspection:
    for layout in LAYOUTS:
        if layout.matches(checkpoint):
            return layout.describe(checkpoint)
    names = list(checkpoint.tensors)
    if find_mtp_layers(names).indices:
        raise CheckpointError(
            "these are prediction layers (MTP) without their model",
            where=str(checkpoint.path),
            got=", ".join(names[:5]),
            remedy="use the whole target checkpoint; its prediction layers are part of it",
            code="E-LAYOUT",
        )
    raise CheckpointError(
        "the tensors are of no kind that is known here",
        where=str(checkpoint.path),
        got=", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else ""),
        expected="a whole model, Medusa heads, or an EAGLE draft layer",
        remedy="check that the path is that of a model or of draft heads",
        code="E-LAYOUT",
    )


def _look_at_tokenizer(checkpoint: CheckpointDir, inspection: Inspection) -> None:
    """A target is served with its tokenizer: all of its ids need a row."""
    try:
        tokenizer = Tokenizer.load(checkpoint.folder)
    except CheckpointError as error:
        inspection.notes.append(Note("N-TOKENIZER", f"{error.what} ({error.where}); it is needed to build an engine"))
        return
    inspection.details["tokenizer"] = {
        "vocab_size": tokenizer.vocab_size,
        "eos_token_ids": sorted(tokenizer.eos_token_ids),
        "has_chat_template": tokenizer.chat_template is not None,
    }
    if inspection.vocab_size is not None and tokenizer.vocab_size > inspection.vocab_size:
        inspection.problems.append(
            Problem(
                "E-VOCAB",
                f"the tokenizer has {tokenizer.vocab_size} ids, the model only {inspection.vocab_size} rows",
                "take the tokenizer and the tensors from the same export",
            )
        )
