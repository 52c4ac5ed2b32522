"""Multi-token prediction layers inside a target: which names they have, and whether all that is promised is there.

Layouts: DeepSeek-V3 numbers them after its last layer (model.layers.61.eh_proj …), MiMo keeps them apart
(model.mtp_layers.0.input_proj …), Qwen3-Next under mtp.* (mtp.fc, mtp.layers.0 …).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from trt_spec.checkpoints import deepseek_v3, llama
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.inspection import Problem, Shape, positive
from trt_spec.errors import CheckpointError

PROMISES = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
NATIVE_LAYOUTS = ("deepseek_v3", "mimo")  # those that the torch target drafts with
# Layout to what a layer's names begin with, what marks one, and the parts that each must have beside a decoder layer.
_LAYOUTS = {
    "deepseek_v3": (
        "model.layers.",
        r"(?:eh_proj|enorm|hnorm)\.weight",
        ("enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"),
    ),
    "mimo": (
        "model.mtp_layers.",
        ".+",
        ("token_layernorm.weight", "hidden_layernorm.weight", "input_proj.weight", "final_layernorm.weight"),
    ),
    "qwen3_next": ("mtp.layers.", ".+", ()),
}


class MtpLayers(NamedTuple):
    """The prediction layers of a checkpoint: their layout, their layer numbers, and all their tensors' names."""

    layout: str | None  # "deepseek_v3", "mimo", "qwen3_next" or None where there are none
    indices: tuple[int, ...]
    names: frozenset[str]
    missing: tuple[str, ...]


def find_mtp_layers(names: Iterable[str]) -> MtpLayers:
    """The prediction layers among tensor names; by their tensors, whatever config.json says."""
    names = list(names)
    for layout, (stem, mark, parts) in _LAYOUTS.items():
        pattern = re.compile(rf"{re.escape(stem)}(\d+)\.{mark}")
        indices = sorted({int(match.group(1)) for name in names if (match := pattern.fullmatch(name))})
        if not indices:
            continue
        prefixes = ["mtp."] if layout == "qwen3_next" else [f"{stem}{index}." for index in indices]
        own = frozenset(name for name in names if name.startswith(tuple(prefixes)))
        missing = tuple(f"{stem}{i}.{part}" for i in indices for part in parts if f"{stem}{i}.{part}" not in own)
        return MtpLayers(layout, tuple(indices), own, missing)
    return MtpLayers(None, (), frozenset(), ())


def mtp_problems(config: Mapping[str, Any], layers: MtpLayers) -> list[Problem]:
    """Promises of config.json that the tensors do not keep, and layers that are there in part."""
    problems = []
    promised = next((count for key in PROMISES if (count := positive(config, key))), 0)
    if promised > len(layers.indices):
        message = f"config.json promises {promised} prediction layers, the files hold {len(layers.indices)}"
        remedy = "use the original checkpoint (exporters and quantisers often drop these layers), or set "
        problems.append(Problem("E-MTP-MISSING", message, f"{remedy}num_nextn_predict_layers to what is there"))
    if layers.missing:
        message = "prediction layers lack tensors: " + ", ".join(layers.missing)
        problems.append(Problem("E-MISSING", message, "use the original checkpoint; the export is incomplete"))
    return problems


def mtp_checkpoint(checkpoint: CheckpointDir) -> tuple[CheckpointDir, MtpLayers]:
    """The prediction layers of a target on their own, as a checkpoint of its own.

    Raises:
        CheckpointError: there are none, fewer than promised, parts are missing, or the layout is not native.
    """
    layers = find_mtp_layers(checkpoint.tensors)
    where = str(checkpoint.path)
    if problems := mtp_problems(checkpoint.config, layers):
        raise CheckpointError(
            "the target's MTP layers are not whole",
            where=where,
            details=[problem.message for problem in problems],
            remedy=problems[0].remedy,
            code=problems[0].code,
        )
    refuse_layout(layers.layout, where)
    own = {name: checkpoint.tensors[name] for name in layers.names}
    return checkpoint.part(own), layers


def refuse_layout(layout: str | None, where: str) -> None:
    """Raises CheckpointError unless the torch target drafts with MTP layers of this layout (`MtpLayers.layout`)."""
    if layout not in NATIVE_LAYOUTS:
        lacks = "method mtp needs MTP layers in the target, and this target has none"
        raise CheckpointError(
            lacks if layout is None else "the torch target does not run MTP layers of this layout",
            where=where,
            got=layout,
            expected="tensors of one of the layouts " + ", ".join(NATIVE_LAYOUTS),
            remedy="use a target that holds its MTP layers, or another method (ngram needs no checkpoint)",
            code="E-MTP-MISSING",
        )


def mtp_tensor_shapes(
    config: deepseek_v3.DeepseekV3Config | llama.LlamaConfig, num_layers: int
) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """What must and what may be there, for the parsed config of the target.

    The copies of the target's embedding and head that DeepSeek-V3 stores with every layer may be absent.
    """
    of_layer = llama.mtp_layer_tensors if isinstance(config, llama.LlamaConfig) else deepseek_v3.mtp_layer_tensors
    shapes = {name: shape for layer in range(num_layers) for name, shape in of_layer(config, layer).items()}
    optional = {name: shape for name, shape in shapes.items() if name.endswith(deepseek_v3.MTP_COPIES)}
    return {name: shape for name, shape in shapes.items() if name not in optional}, optional
