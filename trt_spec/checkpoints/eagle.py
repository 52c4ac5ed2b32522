"""EAGLE draft layers. Which generation is in the tensors.

EAGLE-1 and 2 feed the layer fc([embedding, feature]), H wide; EAGLE-3 feeds its attention [embedding, fused features],
2H wide, where fc fuses three of the target's layers.

Sources: SafeAILab/EAGLE (cnets1.py, cnets.py), and the EAGLE-3 loader of TensorRT-LLM's PyTorch backend.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.eagle_config import (
    LAYER,
    NUM_CAPTURED_LAYERS,
    EagleConfig,
    extras_of,
    flattened,
    is_eagle3,
    parse_config,
)
from trt_spec.checkpoints.hf_config import UnsupportedSetting
from trt_spec.checkpoints.inspection import (
    EagleDetails,
    Inspection,
    Note,
    Problem,
    Shape,
    columns,
    inspection_of,
    positive,
    rows,
    tensor_problems,
    wrong_kind,
)
from trt_spec.checkpoints.llama import layer_shapes
from trt_spec.checkpoints.remap import EAGLE_TABLE, rename
from trt_spec.errors import CheckpointError


def matches(checkpoint: CheckpointDir) -> bool:
    """Whether there is an fc beside a decoder layer."""
    known, _ = rename(checkpoint.tensors, EAGLE_TABLE)
    return {"fc.weight", "layer.self_attn.q_proj.weight"} <= set(known.values())


def canonical(checkpoint: CheckpointDir) -> tuple[CheckpointDir, list[str]]:
    """The checkpoint, its config flattened, as fc.*, layer.* (however it was called), norm, lm_head, …; unknown names.

    Raises:
        CheckpointError: Two stored names mean one tensor.
    """
    known, unknown = rename(checkpoint.tensors, EAGLE_TABLE)
    return checkpoint.renamed(known, flattened(checkpoint.config)), unknown


def describe(checkpoint: CheckpointDir) -> Inspection:
    """The inspection of an EAGLE draft on its own."""
    renamed, unknown = canonical(checkpoint)
    shapes = {name: info.shape for name, info in renamed.tensors.items() if name not in unknown}
    hidden, fc_width = rows(shapes, "fc.weight") or 0, columns(shapes, "fc.weight") or 0
    generation3 = is_eagle3(shapes)
    vocab_size = _vocab_size(shapes, renamed.config)
    expected, optional = tensor_shapes(renamed)
    findings: list[Problem | Note] = [*tensor_problems(renamed, expected, optional, shapes, unknown)]
    findings += _fc_problems(hidden, fc_width, generation3)
    if generation3:
        findings += _vocabulary_problems(renamed, shapes, vocab_size)
    config = _parsed(renamed, shapes)
    if isinstance(config, Problem):
        findings.append(config)
    said = positive(renamed.config, "num_hidden_layers")
    if said not in (None, 1):
        findings.append(Note("N-CONFIG", f"config.json says {said} layers; the tensors hold 1, which counts"))
    return inspection_of(
        renamed,
        findings,
        role="draft",
        method="eagle3" if generation3 else "eagle",
        family=_family(shapes),
        is_native=True,
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_layers=1,
        details=EagleDetails(
            target_hidden_size=fc_width // NUM_CAPTURED_LAYERS if generation3 else fc_width - hidden,
            has_own_embedding="embed_tokens.weight" in shapes,
            num_embeddings=rows(shapes, "embed_tokens.weight"),
            has_own_head="lm_head.weight" in shapes,
            draft_vocab_size=vocab_size,
            has_d2t="d2t" in shapes,
            mapped_vocab_size=rows(shapes, "t2d"),
            captured_layers=None if isinstance(config, Problem) else config.captured_layers,
        ),
    )


def _parsed(renamed: CheckpointDir, shapes: Mapping[str, Shape]) -> EagleConfig | Problem:
    """config.json as the runtime reads it; what it would refuse is a problem."""
    try:
        return parse_config(renamed.config, shapes, str(renamed.path))
    except UnsupportedSetting as error:
        setting = f"config.json: {error.key}" + ("" if error.got is None else f": {error.got}")
        return Problem("E-CONFIG", _words(error), error.remedy, limits_only="torch", setting=setting)
    except CheckpointError as error:
        return Problem("E-CONFIG", _words(error), error.remedy or "correct config.json")
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        return wrong_kind(error)


def _words(error: CheckpointError) -> str:
    return error.what if error.got is None else f"{error.what}: {error.got}"


def _vocab_size(shapes: Mapping[str, Shape], config: Mapping[str, Any]) -> int | None:
    """Tokens that the draft can propose."""
    return (
        rows(shapes, "d2t")
        or rows(shapes, "lm_head.weight")
        or rows(shapes, "embed_tokens.weight")
        or positive(config, "vocab_size")
    )


def _family(shapes: Mapping[str, Shape]) -> str:
    if "layer.self_attn.q_norm.weight" in shapes:
        return "qwen3"
    return "qwen2" if "layer.self_attn.q_proj.bias" in shapes else "llama"


def _fc_problems(hidden: int, fc_width: int, is_eagle3: bool) -> list[Problem]:
    """fc says the generation a second time; the two have to agree."""
    if is_eagle3 and fc_width == 2 * hidden:
        message = f"the layer reads 2H = {2 * hidden} as EAGLE-3 does, but fc is 2H wide as in EAGLE-1"
    elif not is_eagle3 and fc_width == 3 * hidden:
        message = f"fc is 3H = {fc_width} wide as in EAGLE-3, but the layer reads H = {hidden} as in EAGLE-1"
    elif is_eagle3 and fc_width % NUM_CAPTURED_LAYERS:
        width = f"fc is {fc_width} wide, which is not {NUM_CAPTURED_LAYERS} hidden states of the target"
        return [Problem("E-SHAPE", width, "use a draft that was trained on three captured layers")]
    elif not is_eagle3 and fc_width != 2 * hidden:
        width = f"fc is {fc_width} wide; EAGLE-1's reads embedding and feature, 2H = {2 * hidden}"
        return [Problem("E-SHAPE", width, "use a draft of EAGLE's own layout")]
    else:
        return []
    return [Problem("E-GENERATION", message, "export the draft again; its parts are of two generations")]


def tensor_shapes(renamed: CheckpointDir) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """What must and what may be there, by canonical name.

    Head counts and MLP width are read off q, k and gate: config.json may lie.
    """
    found = {name: info.shape for name, info in renamed.tensors.items()}
    hidden, fc_width, generation3 = rows(found, "fc.weight") or 0, columns(found, "fc.weight") or 0, is_eagle3(found)
    q, kv = (rows(found, f"{LAYER}self_attn.{name}_proj.weight") or 0 for name in "qk")
    inner = rows(found, f"{LAYER}mlp.gate_proj.weight") or 0
    head_dim = rows(found, f"{LAYER}self_attn.q_norm.weight") or 0
    layer = layer_shapes(hidden, inner, q, kv, head_dim, 2 * hidden if generation3 else hidden)
    shapes: dict[str, Shape] = {
        "fc.weight": (hidden, fc_width),
        "fc.bias": (hidden,),
        **{f"{LAYER}{name}": shape for name, shape in layer.items() if not re.fullmatch(r"mlp\..*bias", name)},
        "norm.weight": (hidden,),
        "lm_head.weight": (rows(found, "d2t") or rows(found, "lm_head.weight") or 0, hidden),
        # EAGLE-3's embedding covers the target's vocabulary, its head the draft's.
        "embed_tokens.weight": (rows(found, "embed_tokens.weight") or 0, hidden),
    }
    may_lack = {name for name in shapes if name.endswith((".bias", "q_norm.weight", "k_norm.weight"))}
    may_lack |= {"lm_head.weight", "embed_tokens.weight", "d2t", "t2d"}
    if generation3:
        shapes |= {f"{LAYER}hidden_norm.weight": (hidden,), "d2t": (_vocab_size(found, renamed.config) or 0,)}
        shapes |= {"t2d": (rows(found, "t2d") or 0,), **_norms_before_fc(renamed.config, found, fc_width)}
    else:
        may_lack |= {"norm.weight", f"{LAYER}input_layernorm.weight"}
    expected = {name: shape for name, shape in shapes.items() if name not in may_lack}
    return expected, {name: shape for name, shape in shapes.items() if name in may_lack}


def _norms_before_fc(config: Mapping[str, Any], found: Mapping[str, Shape], fc_width: int) -> dict[str, Shape]:
    """Norms of what fc reads: all where config.json tells of them or one is there."""
    each = [f"fc_norm.{index}.weight" for index in range(NUM_CAPTURED_LAYERS)]
    if config.get("fc_norm") or any(name in found for name in each):
        return dict.fromkeys(each, (fc_width // NUM_CAPTURED_LAYERS,))
    has_one = config.get("norm_before_fc") or extras_of(config).get("norm_before_fc") or "input_norm.weight" in found
    return {"input_norm.weight": (fc_width,)} if has_one else {}


def _vocabulary_problems(
    renamed: CheckpointDir, shapes: Mapping[str, Shape], vocab_size: int | None
) -> Iterator[Problem]:
    """A reduced draft vocabulary needs its own head and a map, and the two maps have to agree."""
    said = positive(renamed.config, "draft_vocab_size")
    full = rows(shapes, "t2d") or positive(renamed.config, "vocab_size")
    if said is not None and vocab_size is not None and said != vocab_size and "lm_head.weight" in shapes:
        message = f"config.json says draft_vocab_size {said}, the tensors say {vocab_size}"
        yield Problem("E-CONFIG", message, "take config.json and the tensors from the same export")
    reduced = "d2t" in shapes or (said is not None and full is not None and said < full)
    if reduced and "lm_head.weight" not in shapes:
        message = "a reduced draft vocabulary, but no lm_head.weight: the draft would have a random head"
        yield Problem("E-HEAD", message, "export the draft with its head")
    head_rows = rows(shapes, "lm_head.weight")
    if "d2t" not in shapes and head_rows is not None and full is not None and head_rows < full:
        message = f"the head has {head_rows} rows for a vocabulary of {full}, and no d2t says which tokens they are"
        yield Problem("E-D2T", message, "export the draft with d2t; the first ids are not a safe guess")
    if "d2t" in shapes:
        yield from map_problems(renamed, full)


def map_problems(renamed: CheckpointDir, full: int | None) -> list[Problem]:
    """d2t holds offsets (target id = draft id + d2t[draft id]); t2d marks the same target ids.

    `renamed` is what `canonical` gives and has d2t; `full` is the size of the vocabulary that it points into.
    """
    import torch

    has_t2d = "t2d" in renamed.tensors
    remedy = "use the maps of the training run that made the head; a map made again elsewhere does not belong to it"
    d2t = renamed.read("d2t")
    if d2t.dtype not in (torch.int64, torch.int32) or d2t.ndim != 1:
        return [Problem("E-D2T", f"d2t is {d2t.dtype}, shape {list(d2t.shape)}, not a row of integers", remedy)]
    target_ids = torch.arange(len(d2t)) + d2t.long()
    if len(target_ids) and (target_ids[0] < 0 or not bool((target_ids.diff() > 0).all())):
        return [Problem("E-D2T", "d2t does not give rising target ids; it holds offsets, not ids", remedy)]
    if full is not None and len(target_ids) and target_ids[-1] >= full:
        return [Problem("E-D2T", f"d2t points at id {int(target_ids[-1])} of a vocabulary of {full}", remedy)]
    if not has_t2d and full is not None and len(d2t) < full and not bool(d2t.any()):
        return [Problem("E-D2T", "d2t is all zeros, so the reduced vocabulary would be the first ids", remedy)]
    if has_t2d:
        marked = renamed.read("t2d").bool().nonzero().flatten()
        if not torch.equal(marked, target_ids):
            message = f"t2d marks {len(marked)} target ids, d2t names {len(target_ids)}; they are not the same ones"
            return [Problem("E-D2T", message, remedy)]
    return []
