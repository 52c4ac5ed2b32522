"""Key tables: the names under which checkpoints store a layout, and the one name that this package uses for each.

A table is a tuple of (stored, canonical) keys. `{i}` stands for a number; everything else is exact, so a name that is
not in the table is not guessed at. Two stored names that mean one tensor are an error (`CheckpointDir.renamed`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from trt_spec.checkpoints.llama import LAYER_PARTS

Table = tuple[tuple[str, str], ...]

# heads.{i}.blocks.{j} is the j-th residual block of head i, heads.{i}.lm_head its output. In nn.Sequential's numbering
# the output is simply the last number, so that row depends on how many blocks there are: see `medusa_table`.
MEDUSA_PREFIXES = ("", "medusa_head.", "medusa_heads.", "medusa.", "model.medusa_head.")


def medusa_table(num_blocks: int) -> Table:
    """Every key form in use for heads of `num_blocks` residual blocks.

    `{head}.{block}.linear.weight` with the head at `{head}.{num_blocks}.weight` is what Medusa's trainer saves as
    medusa_lm_head.pt, with or without a prefix; the other two are TensorRT-LLM's and vLLM's names.
    """
    rows: list[tuple[str, str]] = []
    for part in ("weight", "bias"):
        block = f"heads.{{i}}.blocks.{{j}}.linear.{part}"
        for prefix in MEDUSA_PREFIXES:
            rows.append((f"{prefix}{{i}}.{{j}}.linear.{part}", block))
        rows.append((f"medusa_heads.{{i}}.medusa_layers.{{j}}.linear.{part}", block))
        rows.append((f"blocks.{{i}}.layers.{{j}}.{part}", block))
    for prefix in MEDUSA_PREFIXES:
        rows.append((f"{prefix}{{i}}.{num_blocks}.weight", "heads.{i}.lm_head.weight"))
    rows.append(("medusa_heads.{i}.lm_head.weight", "heads.{i}.lm_head.weight"))
    rows.append(("lm_heads.{i}.weight", "heads.{i}.lm_head.weight"))
    return tuple(rows)


# A gated MLP has no biases in any EAGLE draft.
_LAYER_PARTS = (*(part for part in LAYER_PARTS if not re.fullmatch(r"mlp\..*bias", part)), "hidden_norm.weight")
# input_norm and fc_norm are norms before fc: one over all captured states, or one for each of them.
_EAGLE_COMMON = (
    "fc.weight",
    "fc.bias",
    "input_norm.weight",
    "fc_norm.{i}.weight",
    "embed_tokens.weight",
    "norm.weight",
    "lm_head.weight",
    "d2t",
    "t2d",
)


# EAGLE of any generation: one decoder layer, called layers.0 (EAGLE-1, EAGLE-2 and some EAGLE-3 exports) or midlayer.
EAGLE_TABLE: Table = tuple(
    (prefix + stored, canonical)
    for prefix in ("", "model.", "draft_model.")
    for stored, canonical in (
        *((name, name) for name in _EAGLE_COMMON),
        *((f"{layer}.{part}", f"layer.{part}") for layer in ("layers.0", "midlayer") for part in _LAYER_PARTS),
    )
)


def rename(names: Iterable[str], table: Table) -> tuple[dict[str, str], list[str]]:
    """Stored name to canonical name, and the stored names that the table does not know."""
    known: dict[str, str] = {}
    unknown: list[str] = []
    patterns = _compiled(table)
    for name in names:
        for pattern, canonical in patterns:
            if match := pattern.fullmatch(name):
                known[name] = canonical.format(**match.groupdict())
                break
        else:
            unknown.append(name)
    return known, unknown


@lru_cache(maxsize=32)
def _compiled(table: Table) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Numbers without leading zeros, so that "00" cannot pass for "0"."""
    return tuple(
        (re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>0|[1-9]\\d*)", re.escape(stored))), canonical)
        for stored, canonical in table
    )
