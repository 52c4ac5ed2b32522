"""A small draft model, distilled: some layers of the target's geometry between its frozen embedding and head.

It starts as layers of the target, spread evenly, and learns the target's law on the target's own text.
Source: DistillSpec (Zhou et al. 2023, arXiv:2310.08461), forward KL on text of the target.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.llama import LlamaConfig, decoder_layer_tensors
from trt_spec.runtime.models import Model
from trt_spec.training.files import save_checkpoint
from trt_spec.training.geometry import draft_layer_config, initial_tensors, model_config
from trt_spec.training.losses import PositionLoss, head_loss, target_probs
from trt_spec.training.modules import LayerTwin, Rotary, Weights, causal_attention, rms_norm
from trt_spec.training.padded import Padded
from trt_spec.training.recipe import Recipe

_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


class DraftModelRecipe(Recipe):
    """A `Recipe` for a Llama-like draft model of `num_layers` layers.

    Args:
        target: what is drafted for.
        checkpoint: its files, for the warm start, the tokenizer and the config.
        num_layers: layers of the draft model.
        num_positions: longest sample.
    """

    method = "draft_model"

    def __init__(self, target: Model, checkpoint: CheckpointDir, num_layers: int, num_positions: int):
        self.target, self.checkpoint, self.num_layers = target, checkpoint, num_layers
        self.config = draft_layer_config(target.config)
        rotary = Rotary(self.config, num_positions, target.dtype, target.device)
        self.layers = [LayerTwin(self.config, f"model.layers.{index}.", rotary) for index in range(num_layers)]
        depth = target.config.num_hidden_layers
        self.copied = [round(index * (depth - 1) / max(num_layers - 1, 1)) for index in range(num_layers)]
        self.is_warm = isinstance(target.config, LlamaConfig)
        self.notes = {"num_layers": num_layers, "copied_layers": self.copied if self.is_warm else None}

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """See `Recipe`."""
        shapes: dict[str, tuple[int, ...]] = {}
        stored = {"model.norm.weight": "model.norm.weight"}
        for index, source in enumerate(self.copied):
            prefix = f"model.layers.{index}."
            layer = decoder_layer_tensors(self.config, prefix)
            shapes |= layer
            if self.is_warm:
                stored |= {name: f"model.layers.{source}.{name.removeprefix(prefix)}" for name in layer}
        shapes["model.norm.weight"] = (self.config.hidden_size,)
        return initial_tensors(shapes, generator, self.checkpoint, stored)

    def losses(self, weights: Weights, batch: Padded) -> list[PositionLoss]:
        """See `Recipe`. One position: the model reads its own drafts as it reads anything else."""
        x = F.embedding(batch.token_ids, self.target.embedding)
        for layer in self.layers:
            q, own = layer.project(weights, layer.input_norm(weights, x), 0)
            x = layer.finish(weights, x, causal_attention(q, own))
        mask = batch.predicts_reply(1)
        states = rms_norm(x[mask], weights["model.norm.weight"], self.config.rms_norm_eps)
        head = self.target.head_weight
        return [head_loss(states, head, target_probs(batch.last[mask], head))]

    def save(self, directory: Path, weights: Weights) -> None:
        """See `Recipe`. A Hugging Face directory with the target's embedding, head and tokenizer."""
        tied = self.target.config.tied_head
        tensors = dict(weights) | {"model.embed_tokens.weight": self.target.embedding.cpu()}
        if not tied:
            tensors["lm_head.weight"] = self.target.head_weight.cpu()
        for name in TOKENIZER_FILES:
            if (self.checkpoint.folder / name).is_file():
                shutil.copyfile(self.checkpoint.folder / name, directory / name)
        config = model_config(replace(self.config, num_hidden_layers=self.num_layers, tied_head=tied))
        kept = {key: self.checkpoint.config[key] for key in _KEPT if key in self.checkpoint.config}
        save_checkpoint(directory / "model.safetensors", tensors, config | kept)
