"""From a checkpoint to a draft head: strictly, with the method decided by the tensors."""

from __future__ import annotations

from pathlib import Path

from trt_spec.checkpoints import eagle, medusa
from trt_spec.checkpoints.detect import Opened
from trt_spec.checkpoints.eagle_config import parse_config
from trt_spec.checkpoints.families import FAMILY_LAYOUTS
from trt_spec.checkpoints.method import refuse_other_draft, refuse_problems
from trt_spec.checkpoints.mtp import mtp_checkpoint, mtp_tensor_shapes
from trt_spec.errors import CheckpointError
from trt_spec.runtime.heads.base import FeatureHead
from trt_spec.runtime.heads.eagle import EagleHead
from trt_spec.runtime.heads.eagle3 import Eagle3Head
from trt_spec.runtime.heads.medusa import MedusaHeads
from trt_spec.runtime.heads.mtp import MtpHead
from trt_spec.runtime.models import Model, placed


def load_feature_head(
    method: str, draft_dir: str | Path | None, target: Model, target_dir: Path | Opened, num_positions: int
) -> FeatureHead:
    """Loads a head that reads features. Every tensor is loaded, or shared with the target where the layout says so.

    Args:
        method: eagle (any generation of EAGLE), eagle3 (nothing else) or mtp.
        draft_dir: checkpoint of the head; not looked at for mtp, whose layers are the target's.
        target: the loaded target.
        target_dir: its checkpoint, opened or not, for what the pair has to agree on.
        num_positions: length of a rotary table, at least the longest sequence plus its draft.

    Raises:
        CheckpointError: missing, unexpected, mis-shaped or non-finite tensors, MTP layers that are not there, or a
            config that asks for what the runtime does not compute; with all names and the likely remedy.
        PairError: the draft does not fit the target, or is of another method.
    """
    if method == "mtp":
        return _load_mtp(target, target_dir)
    renamed, _ = eagle.canonical(_open_draft(method, draft_dir, Opened.of(target_dir)).checkpoint)
    expected, optional = eagle.tensor_shapes(renamed)
    tensors = placed(renamed.load_exact(expected, optional=optional), target.dtype, target.device)
    shapes = {name: info.shape for name, info in renamed.tensors.items()}
    config = parse_config(renamed.config, shapes, str(renamed.path))
    head_type = Eagle3Head if config.is_eagle3 else EagleHead
    return head_type(config, tensors, target, num_positions)


def load_medusa(draft_dir: str | Path, target: Model, target_dir: Path | Opened) -> MedusaHeads:
    """Loads Medusa heads, as many as the tensors hold.

    Raises:
        CheckpointError, PairError: as `load_feature_head`.
    """
    draft = _open_draft("medusa", draft_dir, Opened.of(target_dir))
    found, (renamed, _) = draft.described, medusa.canonical(draft.checkpoint)
    expected, optional = medusa.tensor_shapes(*medusa.count_heads(renamed.tensors), found.vocab_size, found.hidden_size)
    tensors = placed(renamed.load_exact(expected, optional=optional), target.dtype, target.device)
    return MedusaHeads(tensors, target.vocab_size, target.logits)


def _open_draft(method: str, draft_dir: str | Path, target: Opened) -> Opened:
    """The draft, which has no problems and is of the method that is asked for."""
    draft = Opened.of(draft_dir)
    refuse_other_draft(method, draft.inspection_for(target))
    refuse_problems("draft", draft.inspection_for(target))
    return draft


def _load_mtp(target: Model, target_dir: Path | Opened) -> MtpHead:
    own, layers = mtp_checkpoint(Opened.of(target_dir).checkpoint)
    first = target.config.num_hidden_layers if layers.layout == "deepseek_v3" else 0
    wanted = tuple(range(first, first + len(layers.indices)))
    if layers.indices != wanted:
        raise CheckpointError(
            "the target's MTP layers are not numbered in a row",
            where=str(own.path),
            got=f"{list(layers.indices)} beside {target.config.num_hidden_layers} decoder layers",
            expected=str(list(wanted)),
            remedy="take config.json and the tensors from the same export",
        )
    expected, optional = mtp_tensor_shapes(target.config, len(wanted))
    tensors = own.load_exact(expected, optional=optional)
    layout = FAMILY_LAYOUTS[target.config.family]
    return MtpHead(placed(tensors, target.dtype, target.device, layout), len(wanted), target)
