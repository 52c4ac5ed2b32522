"""Tiny checkpoints of every draft layout, each with the head that is loaded from it and the forward it has to equal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests import tiny
from tests.runtime import head_references as reference
from trt_spec.checkpoints import deepseek_v3, llama
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.heads import Eagle3Head, EagleHead, MedusaHeads, MtpHead, load_feature_head, load_medusa
from trt_spec.runtime.models import load_model

MAX_GAP = 1e-4
NUM_POSITIONS = 128
CPU = torch.device("cpu")
LAYER = reference.Layer(heads=4, kv_heads=2, head_dim=8, eps=1e-5)
CONFIG = {"head_dim": 8, "num_attention_heads": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 96}
IDS = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 0, 1]}}


def load_head(
    method: str, draft_dir: Path | None, target, target_dir: Path
) -> EagleHead | Eagle3Head | MtpHead | MedusaHeads:
    """The head of any method."""
    if method == "medusa":
        return load_medusa(draft_dir, target, target_dir)
    return load_feature_head(method, draft_dir, target, target_dir, NUM_POSITIONS)


def load(directory: Path, dtype: torch.dtype = torch.float32):
    return load_model(directory, dtype, CPU, NUM_POSITIONS)


def stored(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


class Case(NamedTuple):
    """A loaded head, the forward that it has to equal, and its layer."""

    head: EagleHead | Eagle3Head | MtpHead
    reference: reference.Reference
    layer: int = 0


def draft(directory: Path, shapes, *, drop: Sequence[str] = (), add=None, tensors=None, **config) -> dict[str, Tensor]:
    """Writes a draft checkpoint; returns its tensors as stored."""
    shapes = {name: shape for name, shape in shapes.items() if name not in drop} | (add or {})
    tiny.save_draft(directory, shapes, tensors=tensors, **(CONFIG | config))
    # Small queries: attention on inputs 2H wide would else be one-hot, and blind to most of what it reads.
    written = {name: 0.3 * t if name.endswith("q_proj.weight") else t for name, t in stored(directory).items()}
    save_file(written, directory / "model.safetensors")
    return written


LLAMA3 = {  # what heads for Llama 3.1 have, for a shorter text
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
EAGLE = {
    "layers.0": {},
    "midlayer": {"layer": "midlayer"},
    "model-prefix": {"prefix": "model."},
    "fc-bias": {"add": {"fc.bias": (32,)}},
    "target-embedding": {"drop": ["embed_tokens.weight"]},
    "own-head": {"add": {"lm_head.weight": (320, 32)}},
    "input-norm": {"add": {"layers.0.input_layernorm.weight": (32,)}},
    "final-norm": {"add": {"norm.weight": (32,)}},
    "recurs-on-norm": {"add": {"norm.weight": (32,)}, "config": {"eagle_config": {"return_hidden_post_norm": True}}},
    "qkv-bias": {"add": {f"layers.0.self_attn.{n}_proj.bias": (s,) for n, s in (("q", 32), ("k", 16), ("v", 16))}},
    "qk-norm": {"add": {f"layers.0.self_attn.{n}_norm.weight": (8,) for n in "qk"}},
    "rope-theta": {"config": {"rope_theta": 500.0}},
    "rope-scaling": {"config": {"rope_scaling": LLAMA3}},
    "pickle": {"pickle": True},
}


def _turned(config) -> reference.Layer:
    """The layer's sizes, with the rotary keys of a draft's config.json."""
    return LAYER._replace(theta=config.get("rope_theta", 10000.0), scaling=config.get("rope_scaling"))


def eagle_case(directory: Path, target, target_dir: Path, name: str) -> Case:
    options = EAGLE[name]
    layer, prefix = options.get("layer", "layers.0"), options.get("prefix", "")
    shapes = {prefix + key: shape for key, shape in tiny.eagle_shapes(layer=layer).items()}
    config = options.get("config", {})
    tensors = draft(directory, shapes, drop=options.get("drop", ()), add=options.get("add"), **config)
    if options.get("pickle"):
        (directory / "model.safetensors").unlink()
        torch.save(tensors, directory / "pytorch_model.bin")
    head = load_head("eagle", directory, target, target_dir)
    assert isinstance(head, EagleHead)
    sizes = _turned(config)
    post_norm = bool(config.get("eagle_config"))
    return Case(
        head, reference.eagle(tensors, stored(target_dir), sizes, name=layer, prefix=prefix, post_norm=post_norm)
    )


EAGLE3 = {
    "midlayer": {},
    "layers.0": {"layer": "layers.0"},
    "model-prefix": {"prefix": "model."},
    # A config copied from another model tells of layers, a tied head and an architecture that the tensors do not have.
    "copied-config": {
        "config": {"num_hidden_layers": 40, "tie_word_embeddings": True, "architectures": ["LlamaForCausalLM"]}
    },
    "int32-map": {"map": torch.int32},
    "no-t2d": {"map": None},
    "own-full-head": {"full": True, "add": {"lm_head.weight": (320, 32)}},
    "target-head-and-embedding": {"full": True, "drop": ["lm_head.weight", "embed_tokens.weight"]},
    "declared-full-vocabulary": {"full": True, "drop": ["lm_head.weight"], "config": {"draft_vocab_size": 320}},
    "fc-bias": {"add": {"fc.bias": (32,)}},
    "narrow": {"hidden": 16, "sizes": {"heads": 2, "kv_heads": 1}, "config": {"num_attention_heads": 2}},
    "norm-before-residual": {"config": {"norm_before_residual": True}},
    "recurs-on-norm": {"config": {"norm_output": True}},
    "norm-before-fc": {"add": {"input_norm.weight": (96,)}},
    "norm-of-each": {"add": {f"fc_norm.{index}.weight": (32,) for index in range(3)}},
    "speculators": {"nested": True},
    "rope-theta": {"config": {"rope_theta": 500.0}},
    "rope-scaling": {"config": {"rope_scaling": LLAMA3}},
}


def eagle3_case(directory: Path, target, target_dir: Path, name: str, method: str = "eagle3") -> Case:
    options = EAGLE3[name]
    layer, prefix, config = options.get("layer", "midlayer"), options.get("prefix", ""), options.get("config", {})
    shapes = tiny.eagle3_shapes(layer=layer, hidden=options.get("hidden", 32))
    maps = {} if options.get("full") else tiny.vocabulary_maps()
    if "map" in options:
        maps = {"d2t": maps["d2t"].to(options["map"])} | ({"t2d": maps["t2d"]} if options["map"] else {})
    tensors = draft(
        directory,
        {prefix + key: shape for key, shape in shapes.items()},
        drop=options.get("drop", ()),
        add=options.get("add"),
        tensors={prefix + key: value for key, value in maps.items()},
        **(IDS | config),
    )
    if options.get("nested"):
        nested = CONFIG | {"model_type": "llama", "vocab_size": 320}
        tiny.write_json(
            directory / "config.json",
            {
                "architectures": ["Eagle3Speculator"],
                "draft_vocab_size": 64,
                "norm_before_residual": True,
                "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
                "transformer_layer_config": nested,
            },
        )
    head = load_head(method, directory, target, target_dir)
    assert isinstance(head, Eagle3Head)
    return Case(
        head,
        reference.eagle3(
            tensors,
            stored(target_dir),
            _turned(config)._replace(**options.get("sizes", {})),
            name=layer,
            prefix=prefix,
            norm_before_residual=bool(config.get("norm_before_residual") or options.get("nested")),
            post_norm=bool(config.get("norm_output")),
        ),
    )


def mimo_target(directory: Path, num_layers: int = 1) -> Path:
    """A tiny MiMo with prediction layers."""
    sizes = tiny.llama_config(model_type="mimo")
    shapes = tiny.llama_shapes(sizes)
    parsed = llama.parse_config(sizes, shapes, "tiny")
    extra = {}
    for index in range(num_layers):
        extra |= llama.mtp_layer_tensors(parsed, index)
    return tiny.llama_checkpoint(directory, model_type="mimo", extra=extra, num_nextn_predict_layers=num_layers)


def deepseek_target(directory: Path, num_layers: int = 1, copies: str = "own", **changes):
    """A tiny DeepSeek-V3 with prediction layers whose copies of embedding and head are their own, equal or absent."""
    model = tiny.save_deepseek_v3(directory, **changes)
    tiny.edit_json(directory / "config.json", num_nextn_predict_layers=num_layers)
    checkpoint = CheckpointDir.open(directory)
    tensors = stored(directory)
    config = deepseek_v3.parse_config(checkpoint.config, {name: t.shape for name, t in tensors.items()}, "tiny")
    for index in range(num_layers):
        prefix = deepseek_v3.mtp_layer_prefix(config, index)
        tensors |= tiny.random_tensors(deepseek_v3.mtp_layer_tensors(config, index), 5 + index, torch.float32)
        copied = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}
        for name, original in copied.items():
            if copies == "equal":
                tensors[prefix + name] = tensors[original].clone()
            elif copies == "absent":
                del tensors[prefix + name]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return model.config


MTP = {
    "mimo": {},
    "mimo-two": {"num_layers": 2, "layer": 1},
    "deepseek-own": {},
    "deepseek-equal": {"copies": "equal"},
    "deepseek-absent": {"copies": "absent"},
    "deepseek-two": {"num_layers": 2, "layer": 1},
    "deepseek-dense": {"first_k_dense_replace": 9},
    "deepseek-direct-queries": {"q_lora_rank": None, "attention_bias": True},
}


def mtp_case(directory: Path, name: str) -> Case:
    options = dict(MTP[name])
    layer = options.pop("layer", 0)
    if name.startswith("mimo"):
        mimo_target(directory, **options)
        made = reference.mimo(stored(directory), LAYER, layer)
    else:
        config = deepseek_target(directory, **options)
        config._attn_implementation = config._experts_implementation = "eager"
        made = reference.deepseek(stored(directory), config, layer)
    head = load_head("mtp", None, load(directory), directory)
    assert isinstance(head, MtpHead)
    assert head.num_layers == options.get("num_layers", 1)
    return Case(head, made, layer)


def random_pairs(head, count: int, seed: int = 0) -> tuple[Tensor, list[int]]:
    """Features [count, F] and the tokens that follow them; small, so that attention without a norm is not one-hot."""
    generator = torch.Generator().manual_seed(seed)
    width = head.fc(torch.zeros(1, 96)).shape[-1] if isinstance(head, Eagle3Head) else 32
    vocab = len(head.layers[0].embedding) if isinstance(head, MtpHead) else 320
    features = 0.3 * torch.randn(count, width, generator=generator)
    return features, torch.randint(0, vocab, (count,), generator=generator).tolist()


def run(case: Case, cache, rows: Sequence[Rows], features: Tensor) -> tuple[Tensor, Tensor]:
    batch = pack(rows, cache.slot_len, case.head.dtype, case.head.device)
    with torch.inference_mode():
        outputs = case.head.forward(features, batch, cache, case.layer)
        return outputs, case.head.logits(outputs, case.layer)


def expected(case: Case, features: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The reference on a whole sequence of pairs."""
    count = len(tokens)
    visible = torch.ones(count, count, dtype=torch.bool).tril()
    return case.reference(reference.Pairs(features, torch.tensor(tokens), torch.arange(count), visible))


def assert_close(actual: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    """Outputs, and logits: the same ids are impossible, and the others are close."""
    for ours, theirs in zip(actual, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert torch.equal(ours.isinf(), theirs.isinf())
        assert (ours - theirs)[~theirs.isinf()].abs().max() <= MAX_GAP
