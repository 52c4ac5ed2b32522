"""EAGLE-3 heads: what is trained, where it starts, and the layout that TensorRT-LLM, vLLM and SGLang read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from trt_spec.checkpoints.eagle_config import NUM_CAPTURED_LAYERS, default_captured_layers
from trt_spec.checkpoints.llama import LlamaConfig, decoder_layer_tensors
from trt_spec.runtime.models import Model
from trt_spec.training.chain import ChainRecipe
from trt_spec.training.geometry import draft_layer_config
from trt_spec.training.modules import LayerTwin, Rotary, Weights, rms_norm
from trt_spec.training.padded import Padded

PREFIX = "midlayer."
INITIAL_SCALE = 0.02
HEAD_RATE = 0.25  # the head starts as the target's own rows, which need little change


class Eagle3Recipe(ChainRecipe):
    """A `Recipe` for EAGLE-3.

    Warm start, where the target is Llama-like: the draft layer is the target's last one on the half that reads
    features, fc passes the last captured state on, and norm and head are the target's.

    Args:
        target: what is drafted for.
        source: its stored tensors, for the warm start.
        target_ids: [D] rising ids that can be drafted.
        num_steps: draft positions to train.
        num_positions: longest sample.
        is_warm: use the warm start.
    """

    method = "eagle3"

    def __init__(
        self,
        target: Model,
        source: Mapping[str, Tensor],
        target_ids: Tensor,
        num_steps: int,
        num_positions: int,
        *,
        is_warm: bool = True,
    ):
        config = draft_layer_config(target.config)
        rotary = Rotary(config, num_positions, target.dtype, target.device)
        ids = target_ids.to(target.device)
        super().__init__(LayerTwin(config, PREFIX, rotary), target.embedding, target.head_weight[ids], num_steps)
        self.config, self.target_config, self.source = config, target.config, source
        self.target_ids, self.vocab_size = target_ids, target.vocab_size
        self.capture = captured_layers(target.config.num_hidden_layers)
        self.is_warm = is_warm and isinstance(target.config, LlamaConfig)
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
        start = {
            name: torch.ones(shape)
            if name.endswith("norm.weight")
            else torch.zeros(shape)
            if name.endswith(".bias")
            else INITIAL_SCALE * torch.randn(shape, generator=generator)
            for name, shape in shapes.items()
        }
        start["lm_head.weight"] = self.laws_head.float().cpu().clone()
        if self.is_warm:
            self._warm(start)
        return start

    def _warm(self, start: dict[str, Tensor]) -> None:
        hidden = self.config.hidden_size
        last = f"model.layers.{self.target_config.num_hidden_layers - 1}."
        for name in [name.removeprefix(PREFIX) for name in start if name.startswith(PREFIX)]:
            if name in (f"self_attn.{part}_proj.weight" for part in "qkv"):
                start[PREFIX + name][:, hidden:] = self.source[last + name].float()
            elif name == "hidden_norm.weight":
                start[PREFIX + name] = self.source[f"{last}input_layernorm.weight"].float().clone()
            elif name != "input_layernorm.weight" and last + name in self.source:
                start[PREFIX + name] = self.source[last + name].float().clone()
        start["fc.weight"] *= 0.1
        start["fc.weight"][:, -hidden:] += torch.eye(hidden)
        start["norm.weight"] = self.source["model.norm.weight"].float().clone()

    def learning_rate_scale(self, name: str) -> float:
        """See `Recipe`."""
        return HEAD_RATE if name == "lm_head.weight" else 1.0

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
        tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
        t2d = torch.zeros(self.vocab_size, dtype=torch.bool)
        t2d[self.target_ids] = True
        tensors |= {"d2t": self.target_ids - torch.arange(len(self.target_ids)), "t2d": t2d}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        (directory / "config.json").write_text(json.dumps(self._config(), indent=2) + "\n", encoding="utf-8")

    def _config(self) -> dict[str, object]:
        config = self.config
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "draft_vocab_size": len(self.target_ids),
            "vocab_size": self.vocab_size,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_theta": config.rope_theta,
            "rope_scaling": dict(config.rope_scaling) or None,
            "attention_bias": config.qkv_bias,
            "mlp_bias": config.mlp_bias,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "eagle_config": {
                "use_aux_hidden_state": True,
                # Counted by their output, as SGLang and TensorRT-LLM do: one below the input that is captured.
                "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in self.capture],
            },
        }


def captured_layers(num_hidden_layers: int) -> tuple[int, ...]:
    """The default layers of EAGLE-3; for targets too shallow for them, first, middle and the stream behind all."""
    layers = default_captured_layers(num_hidden_layers)
    if len(set(layers)) == NUM_CAPTURED_LAYERS and list(layers) == sorted(layers):
        return layers
    return (0, max(num_hidden_layers // 2, 1), num_hidden_layers)
