"""What is this checkpoint? Answered from its tensors; names of files and config.json are hints at most."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

from trt_spec.checkpoints import causal_lm, eagle, medusa
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.inspection import Inspection, Note, Problem, TokenizerFacts
from trt_spec.checkpoints.mtp import find_mtp_layers
from trt_spec.checkpoints.pair import Pair, check_pair
from trt_spec.errors import CheckpointError

# Heads first: an EAGLE draft has an embedding and a layer too, and would pass for a very small model.
_KINDS = (medusa, eagle, causal_lm)  # each says whether tensors are of it (`matches`), and what they say (`describe`)


class Opened:
    """An opened checkpoint, and what it is: found out when it is first asked for, and kept. Use `of`."""

    def __init__(self, checkpoint: CheckpointDir) -> None:
        self.checkpoint = checkpoint
        self._for_target: dict[Opened, Inspection] = {}

    @classmethod
    def of(cls, checkpoint: str | Path | Opened) -> Opened:
        """The checkpoint of a path, or an open one as it is; raises CheckpointError where files cannot be opened."""
        return checkpoint if isinstance(checkpoint, Opened) else cls(CheckpointDir.open(checkpoint))

    @cached_property
    def described(self) -> Inspection:
        """What the headers and config.json say; raises CheckpointError where the tensors are of no known kind."""
        for kind in _KINDS:
            if kind.matches(self.checkpoint):
                return kind.describe(self.checkpoint)
        names = list(self.checkpoint.tensors)
        if find_mtp_layers(names).indices:
            raise CheckpointError(
                "these are prediction layers (MTP) without their model",
                where=str(self.checkpoint.path),
                got=", ".join(names[:5]),
                remedy="use the whole target checkpoint; its prediction layers are part of it",
                code="E-LAYOUT",
            )
        raise CheckpointError(
            "the tensors are of no kind that is known here",
            where=str(self.checkpoint.path),
            got=", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else ""),
            expected="a whole model, Medusa heads, or an EAGLE draft layer",
            remedy="check that the path is that of a model or of draft heads",
            code="E-LAYOUT",
        )

    @cached_property
    def inspection(self) -> Inspection:
        """The inspection of the checkpoint on its own; a whole model's tokenizer is looked at too."""
        return _with_tokenizer(self) if self.described.role == "target" else self.described

    def inspection_for(self, target: Opened | None) -> Inspection:
        """The inspection of the checkpoint as a draft for a target; without one, on its own."""
        if target is None:
            return self.inspection
        if target not in self._for_target:
            self._for_target[target] = _fitted(self, target)
        return self._for_target[target]


def inspect(path: str | Path | Opened, target: str | Path | Opened | None = None) -> Inspection:
    """What a checkpoint is, with every problem in it, and whether it fits a target (`fits_target`; None without one).

    Reads headers, config and tokenizers; of the tensors only EAGLE-3's vocabulary maps. Values are checked on loading.

    Raises:
        CheckpointError: The files cannot be opened, or hold nothing that is known here.
    """
    return Opened.of(path).inspection_for(None if target is None else Opened.of(target))


def _fitted(draft: Opened, target: Opened) -> Inspection:
    found, wanted = draft.described, target.described
    is_own_target = draft.checkpoint.path.resolve() == target.checkpoint.path.resolve()
    if found.role == "target":
        is_mtp = found.method == "mtp" and is_own_target
        found = replace(found, role="draft", method="mtp" if is_mtp else "draft_model")
    if wanted.role != "target":
        message = f"{target.checkpoint.path} is no target but a draft ({wanted.method})"
        remedy = "give the directory of the large model as the target"
        found = found.with_findings([Problem("E-TARGET", message, remedy)])
    else:
        if not is_own_target:
            found = found.with_findings(problem.of_target() for problem in wanted.problems)
        found = check_pair(Pair(found, wanted, draft.checkpoint, target.checkpoint))
    return replace(found, fits_target=not found.problems)


def _with_tokenizer(opened: Opened) -> Inspection:
    """A target is served with its tokenizer: all of its ids need a row."""
    found = opened.described
    try:
        tokenizer = opened.checkpoint.tokenizer
    except CheckpointError as error:
        note = Note("N-TOKENIZER", f"{error.what} ({error.where}); it is needed to build an engine")
        return found.with_findings([note])
    has_template = tokenizer.chat_template is not None
    facts = TokenizerFacts(tokenizer.vocab_size, tuple(sorted(tokenizer.eos_token_ids)), has_template)
    problems = []
    if found.vocab_size is not None and tokenizer.vocab_size > found.vocab_size:
        message = f"the tokenizer has {tokenizer.vocab_size} ids, the model only {found.vocab_size} rows"
        problems.append(Problem("E-VOCAB", message, "take the tokenizer and the tensors from the same export"))
    return found.with_findings(problems, details=replace(found.details, tokenizer=facts))
