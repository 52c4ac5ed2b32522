"""Medusa heads: per head some residual blocks (h + silu(W h + b)) and an output to the vocabulary.

Heads and blocks are counted from the tensors; config.json is often copied from another model. Heads without any output
share the target's. Sources of the layouts: FasterDecoding/Medusa, medusa_lm_head.pt; for shared outputs
huggingface/text-generation-inference, layers/medusa.py, MedusaHeadV2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.inspection import (
    Inspection,
    MedusaDetails,
    Note,
    Problem,
    Shape,
    inspection_of,
    positive,
    tensor_problems,
)
from trt_spec.checkpoints.remap import medusa_table, rename

_BLOCK = re.compile(
    r"(?:medusa_heads?\.|medusa\.|model\.medusa_head\.)?\d+\.(?:medusa_layers\.)?(\d+)\.linear\.weight|"
    r"blocks\.\d+\.layers\.(\d+)\.weight"
)


def matches(checkpoint: CheckpointDir) -> bool:
    """Whether there are Medusa heads among the tensors."""
    return any(_BLOCK.fullmatch(name) for name in checkpoint.tensors)


def canonical(checkpoint: CheckpointDir) -> tuple[CheckpointDir, list[str]]:
    """The checkpoint under the names heads.{i}.blocks.{j}.linear.* and heads.{i}.lm_head.weight; and unknown names.

    Raises:
        CheckpointError: Two stored names mean one tensor.
    """
    found = [match for name in checkpoint.tensors if (match := _BLOCK.fullmatch(name))]
    num_blocks = max((int(match.group(1) or match.group(2)) + 1 for match in found), default=0)
    known, unknown = rename(checkpoint.tensors, medusa_table(num_blocks))
    return checkpoint.renamed(known), unknown


def describe(checkpoint: CheckpointDir) -> Inspection:
    """The inspection of Medusa heads on their own."""
    renamed, unknown = canonical(checkpoint)
    shapes = {name: info.shape for name, info in renamed.tensors.items() if name not in unknown}
    num_heads, num_blocks = count_heads(shapes)
    outputs = [shape for name, shape in shapes.items() if name.endswith("lm_head.weight") and len(shape) == 2]
    blocks = [shape for name, shape in shapes.items() if name.endswith("linear.weight") and len(shape) == 2]
    vocab_size, hidden_size = outputs[0] if outputs else (None, blocks[0][1] if blocks else None)
    findings: list[Problem | Note] = []
    if hidden_size:
        expected, optional = tensor_shapes(num_heads, num_blocks, vocab_size, hidden_size)
        findings += tensor_problems(checkpoint, expected, optional, shapes, unknown)
    else:
        findings.append(Problem("E-SHAPE", "no residual block is a matrix", "export the heads again"))
    if not outputs:
        findings.append(Note("N-SHARED-HEAD", "no head has an output of its own; they share the target's"))
    said = positive(checkpoint.config, "medusa_num_heads")
    if said is not None and said != num_heads:
        findings.append(Note("N-CONFIG", f"config.json says {said} heads; the tensors hold {num_heads}"))
    return inspection_of(
        checkpoint,
        findings,
        role="draft",
        method="medusa",
        family=None,
        is_native=True,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_blocks,
        details=MedusaDetails(num_heads, num_blocks, bool(outputs)),
    )


def count_heads(names: Iterable[str]) -> tuple[int, int]:
    """(heads, residual blocks per head) among canonical names: the highest number of each, plus one."""
    numbers = [match for name in names if (match := re.match(r"heads\.(\d+)\.(?:blocks\.(\d+))?", name))]
    return tuple(max(int(match.group(part) or 0) for match in numbers) + 1 for part in (1, 2))


def tensor_shapes(
    num_heads: int, num_blocks: int, vocab: int | None, hidden: int
) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """What must and what may be there, by canonical name; `vocab` is None where the heads share the target's output."""
    expected: dict[str, Shape] = {}
    optional: dict[str, Shape] = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            expected[f"heads.{head}.blocks.{block}.linear.weight"] = (hidden, hidden)
            optional[f"heads.{head}.blocks.{block}.linear.bias"] = (hidden,)
        if vocab is not None:
            expected[f"heads.{head}.lm_head.weight"] = (vocab, hidden)
    return expected, optional
