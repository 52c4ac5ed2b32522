"""EAGLE-3 heads: what is trained, where it starts, and the layout that TensorRT-LLM, vLLM and SGLang read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.eagle_config import NUM_CAPTURED_LAYERS, default_captured_layers
from trt_spec.checkpoints.llama import LlamaConfig, decoder_layer_tensors
from trt_spec.runtime.models import Model
from trt_spec.training.chain import ChainRecipe
from trt_spec.training.files import save_checkpoint
from trt_spec.training.geometry import draft_layer_config, initial_tensors, model_config
from trt_spec.training.modules import LayerTwin, Rotary, Weights, rms_norm
from trt_spec.training.padded import Padded

PREFIX = "midlayer."


class Eagle3Recipe(ChainRecipe):
    """A `Recipe` for EAGLE-3.

    Warm start, where the target is Llama-like: the draft layer is the target's last one on the half that reads
    features, fc passes the last captured state on, and norm and head are the target's.

    Args:
        target: what is drafted for.
        checkpoint: its files, for the warm start.
        target_ids: [D] rising ids that can be drafted.
        num_steps: draft positions to train.
        num_positions: longest sample.
    """

    method = "eagle3"
    rate_scales: ClassVar = {
        "lm_head.weight": 0.25
    }  # the head starts as the target's own rows, which need little change

    def __init__(
        self, target: Model, checkpoint: CheckpointDir, target_ids: Tensor, num_steps: int, num_positions: int
    ):
        config = draft_layer_config(target.config)
        rotary = Rotary(config, num_positions, target.dtype, target.device)
        ids = target_ids.to(target.device)
        super().__init__(LayerTwin(config, PREFIX, rotary), target.embedding, target.head_weight[ids], num_steps)
        self.config, self.checkpoint = config, checkpoint
        self.target_ids, self.vocab_size = target_ids, target.vocab_size
        self.num_target_layers = target.config.num_hidden_layers
        self.capture = captured_layers(self.num_target_layers)
        self.is_warm = isinstance(target.config, LlamaConfig)
        self.notes = {
            "draft_vocab_size": len(target_ids),
            "captured_layers": list(self.capture),
            "training_time_test_positions": num_steps,
            "warm_start": self.is_warm,
        }

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """See `Recipe`."""
        hidden = self.config.hidden_size
        shapes = decoder_layer_tensors(self.config, PREFIX, attention_input=2 * hidden)
        shapes |= {"fc.weight": (hidden, NUM_CAPTURED_LAYERS * hidden)}
        shapes |= {"norm.weight": (hidden,), f"{PREFIX}hidden_norm.weight": (hidden,)}
        stored: dict[str, str] = {}
        if self.is_warm:
            last = f"model.layers.{self.num_target_layers - 1}."
            stored = {name: last + name.removeprefix(PREFIX) for name in shapes if name.startswith(PREFIX)}
            half_read = [f"{PREFIX}self_attn.{part}_proj.weight" for part in "qkv"]
            halves = {name: self.checkpoint.read(stored.pop(name)).float() for name in half_read}
            stored[f"{PREFIX}hidden_norm.weight"] = stored.pop(f"{PREFIX}input_layernorm.weight")
            stored["norm.weight"] = "model.norm.weight"
        start = initial_tensors(shapes, generator, self.checkpoint, stored)
        start["lm_head.weight"] = self.target_head.float().cpu().clone()
        if self.is_warm:
            for name, half in halves.items():
                start[name][:, hidden:] = half
            start["fc.weight"] *= 0.1
            start["fc.weight"][:, -hidden:] += torch.eye(hidden)
        return start

    def features(self, weights: Weights, batch: Padded) -> Tensor:
        return F.linear(batch.aux, weights["fc.weight"])

    def enter(self, weights: Weights, features: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        normed = rms_norm(features, weights[f"{PREFIX}hidden_norm.weight"], self.config.rms_norm_eps)
        return features, torch.cat((self.layer.input_norm(weights, embedded), normed), dim=-1)

    def leave(self, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, rms_norm(x, weights["norm.weight"], self.config.rms_norm_eps)

    def head(self, weights: Weights) -> Tensor:
        return weights["lm_head.weight"]

    def save(self, directory: Path, weights: Weights) -> None:
        """See `Recipe`. Names and config keys as SafeAILab/EAGLE publishes heads; the embedding is the target's."""
        t2d = torch.zeros(self.vocab_size, dtype=torch.bool)
        t2d[self.target_ids] = True
        tensors = {**weights, "d2t": self.target_ids - torch.arange(len(self.target_ids)), "t2d": t2d}
        config = model_config(replace(self.config, family="llama", tied_head=False)) | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": len(self.target_ids),
            "vocab_size": self.vocab_size,
            "eagle_config": {
                "use_aux_hidden_state": True,
                # Counted by their output, as SGLang and TensorRT-LLM do: one below the input that is captured.
                "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in self.capture],
            },
        }
        save_checkpoint(directory / "model.safetensors", tensors, config)


def captured_layers(num_hidden_layers: int) -> tuple[int, ...]:
    """The default layers of EAGLE-3; for targets too shallow for them, first, middle and the stream behind all."""
    layers = default_captured_layers(num_hidden_layers)
    if len(set(layers)) == NUM_CAPTURED_LAYERS and list(layers) == sorted(layers):
        return layers
    return (0, max(num_hidden_layers // 2, 1), num_hidden_layers)
