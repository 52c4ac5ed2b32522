"""The DeepSeek-V3 checkpoint layout: latent attention, routed experts, and MTP layers behind the last decoder layer.

Source of names: `transformers/models/deepseek_v3/modeling_deepseek_v3.py` and the published DeepSeek-V3 checkpoint,
which stores one tensor per expert, as transformers saves them too; the fused experts that transformers holds in memory
(gate_up_proj and down_proj over all experts) are read where an export has them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from trt_spec.checkpoints.hf_config import refuse_unsupported, required_size, rope_parameters
from trt_spec.checkpoints.llama import Shape, mlp_shapes, model_tensors
from trt_spec.errors import CheckpointError

DEEPSEEK_V3_FAMILIES = ("deepseek_v3",)
# Routing is computed in float32, as the reference does: in bfloat16 near ties would choose other experts.
FLOAT32_TENSORS = (r".*\.mlp\.gate\.weight", r".*\.mlp\.gate\.e_score_correction_bias")
# Tensors of an MTP layer that repeat the target's own embedding and head; exporters may leave them out.
MTP_COPIES = ("embed_tokens.weight", "shared_head.head.weight")


@dataclass(frozen=True)
class DeepseekV3Config:
    """Geometry of a DeepSeek-V3-like model, named as in config.json.

    Attributes:
        q_lora_rank: width of the compressed query; None where queries are projected directly.
        kv_lora_rank: width of the latent that keys and values are unfolded from; what the KV cache stores.
        first_k_dense_replace: the first layers, which have one dense MLP instead of experts.
        rope_interleave: whether a rotary pair is two neighbouring columns, as published, instead of one from each half.
        has_fused_experts: whether the experts of a layer are stored as one tensor.
        num_nextn_predict_layers: MTP layers that config.json promises.
        num_mtp_layers: MTP layers that the tensors hold.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    max_position_embeddings: int
    q_lora_rank: int | None = None
    n_shared_experts: int = 0
    first_k_dense_replace: int = 0
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)
    rope_interleave: bool = True
    attention_bias: bool = False
    tied_head: bool = False
    has_fused_experts: bool = False
    num_nextn_predict_layers: int = 0
    num_mtp_layers: int = 0
    sliding_window: int | None = None

    @property
    def head_dim(self) -> int:
        """Width of a query or key head: the part without positions, then the rotary part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def num_key_value_heads(self) -> int:
        """Keys and values unfold to as many heads as there are queries."""
        return self.num_attention_heads

    @property
    def cache_width(self) -> int:
        """Columns of a cached token: latent, then the rotated key that all heads share."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def is_dense(self, layer: int) -> bool:
        return layer < self.first_k_dense_replace


_OPTIONS = {"norm_topk_prob": bool, "routed_scaling_factor": float, "rms_norm_eps": float, "rope_interleave": bool}
# What config.json has to say; `family` is its model_type.
_SIZES = tuple(one.name for one in fields(DeepseekV3Config) if one.type == "int" and one.default is MISSING)


def parse_config(config: Mapping[str, Any], shapes: Mapping[str, Shape], where: str) -> DeepseekV3Config:
    """Reads a Hugging Face config.json and the tensor shapes into a `DeepseekV3Config`.

    Raises:
        CheckpointError: a size is missing, sizes contradict each other, or what this runtime lacks is asked for.
    """
    sizes = {key: required_size(config, key, where) for key in _SIZES}
    _refuse_unsupported(config, sizes, where)
    _check_routing(sizes, where)
    num_layers = sizes["num_hidden_layers"]
    theta, scaling = rope_parameters(config)
    return DeepseekV3Config(
        family=str(config.get("model_type")),
        **sizes,
        q_lora_rank=None if config.get("q_lora_rank") is None else required_size(config, "q_lora_rank", where),
        n_shared_experts=0
        if config.get("n_shared_experts") is None
        else required_size(config, "n_shared_experts", where, minimum=0),
        first_k_dense_replace=required_size(config, "first_k_dense_replace", where, minimum=0),
        **{key: kind(config[key]) for key, kind in _OPTIONS.items() if key in config},
        rope_theta=theta,
        rope_scaling=scaling,
        attention_bias=bool(config.get("attention_bias"))
        or "model.layers.0.self_attn.kv_a_proj_with_mqa.bias" in shapes,
        tied_head=bool(config.get("tie_word_embeddings", False)),
        has_fused_experts=any(name.endswith(".mlp.experts.gate_up_proj") for name in shapes),
        num_nextn_predict_layers=int(config.get("num_nextn_predict_layers") or 0),
        num_mtp_layers=_num_mtp_layers(shapes, num_layers),
    )


def _refuse_unsupported(config: Mapping[str, Any], sizes: Mapping[str, int], where: str) -> None:
    heads = sizes["num_attention_heads"]
    rotary, get = sizes["qk_rope_head_dim"], config.get
    checks = {
        "hidden_act": (value := get("hidden_act", "silu"), value in ("silu", "swish"), "silu"),
        "num_key_value_heads": (
            value := get("num_key_value_heads") or heads,
            value == heads,
            f"{heads}, as query heads",
        ),
        "scoring_func": (value := get("scoring_func", "sigmoid"), value == "sigmoid", "sigmoid"),
        "topk_method": (value := get("topk_method", "noaux_tc"), value == "noaux_tc", "noaux_tc"),
        "moe_layer_freq": (value := get("moe_layer_freq", 1), value == 1, "1"),
        "qk_rope_head_dim": (rotary, rotary % 2 == 0, "an even number"),
        "quantization_config": (value := get("quantization_config"), not value, "an unquantised checkpoint"),
    }
    refuse_unsupported(checks, where)


def _check_routing(sizes: Mapping[str, int], where: str) -> None:
    """Groups of equal size, of at least the two experts that score a group, and enough of them to choose from."""
    names = ("n_routed_experts", "n_group", "topk_group", "num_experts_per_tok")
    experts, groups, chosen, each = (sizes[name] for name in names)
    per_group = experts // groups
    is_sound = experts % groups == 0 and per_group >= 2 and chosen <= groups
    if not (is_sound and each <= chosen * per_group):
        raise CheckpointError(
            "config.json: the routing sizes contradict each other",
            where=where,
            got=f"n_routed_experts {experts}, n_group {groups}, topk_group {chosen}, num_experts_per_tok {each}",
            expected="n_group divides n_routed_experts into groups of 2 or more, topk_group is at most n_group, and "
            "the chosen groups hold num_experts_per_tok experts",
        )


def _num_mtp_layers(shapes: Mapping[str, Shape], num_hidden_layers: int) -> int:
    """MTP layers that are there, by the projection that only they have."""
    marks = (f"model.layers.{num_hidden_layers + index}.eh_proj.weight" for index in itertools.count())
    return sum(1 for _ in itertools.takewhile(shapes.__contains__, marks))


def decoder_layer_tensors(config: DeepseekV3Config, layer: int) -> dict[str, Shape]:
    """Names and shapes of decoder layer `layer`; its number decides between a dense MLP and experts."""
    prefix, hidden = f"model.layers.{layer}.", config.hidden_size
    mlp = _mlp_tensors("", hidden, config.intermediate_size) if config.is_dense(layer) else _expert_tensors(config)
    return {
        f"{prefix}input_layernorm.weight": (hidden,),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
        **{f"{prefix}self_attn.{name}": shape for name, shape in _attention_tensors(config).items()},
        **{f"{prefix}mlp.{name}": shape for name, shape in mlp.items()},
    }


def _attention_tensors(config: DeepseekV3Config) -> dict[str, Shape]:
    hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.q_lora_rank
    q_width, unfolded = heads * config.head_dim, heads * (config.qk_nope_head_dim + config.v_head_dim)
    shapes: dict[str, Shape] = {
        "kv_a_proj_with_mqa.weight": (config.cache_width, hidden),
        "kv_a_layernorm.weight": (config.kv_lora_rank,),
        "kv_b_proj.weight": (unfolded, config.kv_lora_rank),
        "o_proj.weight": (hidden, heads * config.v_head_dim),
    }
    if rank is None:
        shapes["q_proj.weight"] = (q_width, hidden)
    else:
        shapes |= {
            "q_a_proj.weight": (rank, hidden),
            "q_a_layernorm.weight": (rank,),
            "q_b_proj.weight": (q_width, rank),
        }
    if config.attention_bias:
        shapes |= {"kv_a_proj_with_mqa.bias": (config.cache_width,), "o_proj.bias": (hidden,)}
        shapes |= {} if rank is None else {"q_a_proj.bias": (rank,)}
    return shapes


def _mlp_tensors(prefix: str, hidden: int, inner: int) -> dict[str, Shape]:
    return {f"{prefix}{name}.weight": shape for name, shape in mlp_shapes(hidden, inner).items()}


def _expert_tensors(config: DeepseekV3Config) -> dict[str, Shape]:
    """Router, routed experts and the shared ones, which are one MLP of their joint width."""
    hidden, inner, experts = config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
    shapes: dict[str, Shape] = {"gate.weight": (experts, hidden), "gate.e_score_correction_bias": (experts,)}
    if config.has_fused_experts:
        shapes["experts.gate_up_proj"] = (experts, 2 * inner, hidden)
        shapes["experts.down_proj"] = (experts, hidden, inner)
    else:
        for expert in range(experts):
            shapes |= _mlp_tensors(f"experts.{expert}.", hidden, inner)
    if config.n_shared_experts:
        shapes |= _mlp_tensors("shared_experts.", hidden, config.n_shared_experts * inner)
    return shapes


def expected_tensors(config: DeepseekV3Config) -> dict[str, Shape]:
    """Every tensor that a target of this geometry must hold. A tied head and MTP layers are not expected."""
    layers = (decoder_layer_tensors(config, layer) for layer in range(config.num_hidden_layers))
    return model_tensors(config, layers)


def mtp_layer_prefix(config: DeepseekV3Config, index: int) -> str:
    """Prefix of the `index`-th MTP layer: they are numbered on from the decoder layers."""
    return f"model.layers.{config.num_hidden_layers + index}."


def mtp_layer_tensors(config: DeepseekV3Config, index: int) -> dict[str, Shape]:
    """Names and shapes of the `index`-th MTP layer: a whole decoder layer, and what joins it to the target.

    Those that end in one of `MTP_COPIES` repeat the target's tensors and may be absent.
    """
    hidden, prefix = config.hidden_size, mtp_layer_prefix(config, index)
    return {
        f"{prefix}embed_tokens.weight": (config.vocab_size, hidden),
        f"{prefix}enorm.weight": (hidden,),
        f"{prefix}hnorm.weight": (hidden,),
        f"{prefix}eh_proj.weight": (hidden, 2 * hidden),
        **decoder_layer_tensors(config, config.num_hidden_layers + index),
        f"{prefix}shared_head.norm.weight": (hidden,),
        f"{prefix}shared_head.head.weight": (config.vocab_size, hidden),
    }


def ignored_tensors(config: DeepseekV3Config) -> tuple[str, ...]:
    """Patterns of what a target leaves alone: rotary buffers of old exporters, and the MTP layers that are there.

    A layer past the last one that is no MTP layer is not ignored: it means that num_hidden_layers is wrong.
    """
    layers = range(config.num_hidden_layers, config.num_hidden_layers + config.num_mtp_layers)
    return (r".*\.rotary_emb\.inv_freq", *(rf"model\.layers\.{layer}\..*" for layer in layers))
