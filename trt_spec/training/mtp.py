"""An MTP layer for a Llama-like target, in MiMo's layout: the output is the target with the layer inside.

Source of layout and arithmetic: MiMo (2025, arXiv:2505.07608), modeling_mimo.py; training ahead on its own outputs as
in `chain`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.llama import LlamaConfig, mtp_layer_prefix, mtp_layer_tensors
from trt_spec.errors import CapabilityError
from trt_spec.runtime.models import Model
from trt_spec.training.chain import ChainRecipe
from trt_spec.training.files import save_checkpoint
from trt_spec.training.geometry import initial_tensors
from trt_spec.training.modules import LayerTwin, Rotary, Weights, rms_norm
from trt_spec.training.padded import Padded

PREFIX = mtp_layer_prefix(0)


class MtpRecipe(ChainRecipe):
    """A `Recipe` for one MTP layer, applied again and again.

    It starts as the target's last layer on the features, which the projection passes on.

    Args:
        target: what is drafted for.
        checkpoint: its files, which the output repeats.
        num_steps: draft positions to train.
        num_positions: longest sample.

    Raises:
        CapabilityError: the target is not Llama-like.
    """

    method = "mtp"

    def __init__(self, target: Model, checkpoint: CheckpointDir, num_steps: int, num_positions: int):
        config = target.config
        if not isinstance(config, LlamaConfig):
            raise CapabilityError(
                "MTP layers are trained for Llama-like targets only",
                where=str(checkpoint.path),
                got=config.family,
                remedy="train an EAGLE-3 head: --method eagle3",
            )
        rotary = Rotary(config, num_positions, target.dtype, target.device)
        super().__init__(LayerTwin(config, PREFIX, rotary), target.embedding, target.head_weight, num_steps)
        self.config, self.checkpoint, self.head_weight = config, checkpoint, target.head_weight
        self.notes = {"layout": "mimo", "training_time_test_positions": num_steps, "warm_start": True}

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """See `Recipe`."""
        hidden, last = self.config.hidden_size, f"model.layers.{self.config.num_hidden_layers - 1}."
        shapes = mtp_layer_tensors(self.config, 0)
        stored = {name: last + name.removeprefix(PREFIX) for name in shapes}
        stored[f"{PREFIX}final_layernorm.weight"] = "model.norm.weight"
        start = initial_tensors(shapes, generator, self.checkpoint, stored)
        start[f"{PREFIX}input_proj.weight"][:, :hidden] += torch.eye(hidden)  # MiMo joins [feature, embedding]
        return start

    def features(self, weights: Weights, batch: Padded) -> Tensor:
        return batch.last

    def enter(self, weights: Weights, features: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        eps = self.config.rms_norm_eps
        normed = rms_norm(features, weights[f"{PREFIX}hidden_layernorm.weight"], eps)
        tokens = rms_norm(embedded, weights[f"{PREFIX}token_layernorm.weight"], eps)
        x = F.linear(torch.cat((normed, tokens), dim=-1), weights[f"{PREFIX}input_proj.weight"])
        return x, self.layer.input_norm(weights, x)

    def leave(self, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        out = rms_norm(x, weights[f"{PREFIX}final_layernorm.weight"], self.config.rms_norm_eps)
        return out, out

    def head(self, weights: Weights) -> Tensor:
        return self.head_weight

    def save(self, directory: Path, weights: Weights) -> None:
        """See `Recipe`. A copy of the target, as family mimo, with the layer in a file of its own."""
        for path in self.checkpoint.folder.iterdir():
            if path.is_file() and not path.name.endswith(".index.json"):
                shutil.copyfile(path, directory / path.name)
        stored = next(iter(self.checkpoint.tensors.values())).dtype
        config = dict(self.checkpoint.config) | {
            "architectures": ["MiMoForCausalLM"],
            "model_type": "mimo",
            "num_nextn_predict_layers": 1,
        }
        save_checkpoint(directory / "mtp.safetensors", weights, config, getattr(torch, stored))
        weight_map = {name: info.file for name, info in self.checkpoint.tensors.items()}
        weight_map |= dict.fromkeys(weights, "mtp.safetensors")
        size = sum((directory / name).stat().st_size for name in set(weight_map.values()))
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
