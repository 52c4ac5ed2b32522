"""Tiny checkpoints and tokenizers, made on the spot: nothing is downloaded, nothing is random without a seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from trt_spec.checkpoints import llama

BOS, EOS, EOT = "<|endoftext|>", "<|im_start|>", "<|im_end|>"  # ids 0, 1, 2, as in the demo model
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "the cat sat on the mat and the dog ran after the cat",
    "naïve café, 世界 世界, 🎉🎉",
    "def f(x): return x + 1",
]


def byte_level_tokenizer(directory: Path, *, vocab_size: int = 320, added: tuple[str, ...] = ()) -> int:
    """A byte-level BPE tokenizer like the demo model's, written to `directory`; returns its number of ids.

    Args:
        directory: Created where needed.
        vocab_size: Ids before the added ones: 3 special tokens, 256 bytes, and merges learnt from a small corpus.
        added: Tokens added behind, not special.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[BOS, EOS, EOT],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    _write_tokenizer(directory, tokenizer, settings | {"tokenizer_class": "PreTrainedTokenizerFast"})
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return tokenizer.get_vocab_size()


def byte_fallback_tokenizer(directory: Path, *, strip: bool = True) -> int:
    """A SentencePiece-like tokenizer with byte fallback, as Llama 2 and Mistral have; returns its number of ids."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    pieces += [*"abcdehinorst", "th", "the", "\u2581the", "\u2581c", "\u2581\u2581"]
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("\u2581", "c"), ("\u2581", "\u2581")]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    _write_tokenizer(directory, tokenizer, settings | {"tokenizer_class": "PreTrainedTokenizerFast"})
    return tokenizer.get_vocab_size()


def word_piece_tokenizer(directory: Path) -> None:
    """A BERT-like tokenizer, whose decoder is not defined on bytes."""
    tokenizer = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s"), "removed")
    tokenizer.decoder = decoders.WordPiece()
    _write_tokenizer(directory, tokenizer, {})


def _write_tokenizer(directory: Path, tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", settings)


def swap_ids(directory: Path, first: int, second: int) -> None:
    """Exchanges the tokens of two ids in a tokenizer.json: the same size, another meaning."""
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    names = {index: token for token, index in vocab.items()}
    vocab[names[first]], vocab[names[second]] = second, first
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def edit_json(path: Path, **changes: Any) -> None:
    """Sets keys of a JSON file; None removes one."""
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    write_json(path, {key: value for key, value in values.items() if value is not None})


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Norms near one, everything else small, from one seed."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        noise = torch.randn(shape, generator=generator)
        return (1 + 0.1 * noise if "norm" in name else 0.3 * noise).to(dtype)

    return {name: draw(name, shape) for name, shape in shapes.items()}


def llama_config(**changes: Any) -> dict[str, Any]:
    """config.json of a tiny Llama-like model; pass model_type and so on to change it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }


def llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a Llama-like config; biases and norms as the family has them."""
    layer = "model.layers.0.self_attn."
    marks = {f"{layer}q_proj.bias": (1,)} if config["model_type"] in ("qwen2", "mimo") else {}
    marks |= {f"{layer}q_norm.weight": (1,)} if config["model_type"] == "qwen3" else {}
    return llama.expected_tensors(llama.parse_config(config, marks, "tiny"))


def llama_checkpoint(
    directory: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    tokenizer: bool = True,
    extra: Mapping[str, tuple[int, ...]] | None = None,
    **config: Any,
) -> Path:
    """A tiny Llama-like checkpoint of random weights, with the byte-level tokenizer.

    Args:
        directory: Created.
        seed: Of the weights.
        dtype: Of the weights.
        tokenizer: Write a tokenizer too.
        extra: Further tensors by name and shape.
        config: Changes to `llama_config`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    values = llama_config(**config)
    tensors = random_tensors({**llama_shapes(values), **(extra or {})}, seed, dtype)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    write_json(directory / "config.json", values)
    if tokenizer:
        byte_level_tokenizer(directory)
    return directory


def medusa_shapes(
    *, prefix: str = "", num_heads: int = 3, num_blocks: int = 1, hidden: int = 32, vocab: int = 320
) -> dict[str, tuple[int, ...]]:
    """Medusa heads as its trainer saves them: nn.Sequential numbers, the output behind the blocks."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            shapes[f"{prefix}{head}.{block}.linear.weight"] = (hidden, hidden)
            shapes[f"{prefix}{head}.{block}.linear.bias"] = (hidden,)
        shapes[f"{prefix}{head}.{num_blocks}.weight"] = (vocab, hidden)
    return shapes


def eagle_shapes(*, layer: str = "layers.0", hidden: int = 32, vocab: int = 320) -> dict[str, tuple[int, ...]]:
    """An EAGLE-1 or 2 draft: fc over [embedding, feature], one layer, the embedding of the target."""
    return {
        "embed_tokens.weight": (vocab, hidden),
        "fc.weight": (hidden, 2 * hidden),
        **_layer_shapes(layer, hidden, hidden),
        f"{layer}.post_attention_layernorm.weight": (hidden,),
    }


def eagle3_shapes(
    *, layer: str = "midlayer", hidden: int = 32, target_hidden: int = 32, vocab: int = 320, draft_vocab: int = 64
) -> dict[str, tuple[int, ...]]:
    """An EAGLE-3 draft but for its maps d2t and t2d."""
    return {
        "embed_tokens.weight": (vocab, hidden),
        "fc.weight": (hidden, 3 * target_hidden),
        **_layer_shapes(layer, hidden, 2 * hidden),
        f"{layer}.input_layernorm.weight": (hidden,),
        f"{layer}.hidden_norm.weight": (hidden,),
        f"{layer}.post_attention_layernorm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (draft_vocab, hidden),
    }


def vocabulary_maps(vocab: int = 320, draft_vocab: int = 64) -> dict[str, torch.Tensor]:
    """d2t (offsets) and t2d (marks) of a draft vocabulary of every fifth token."""
    target_ids = torch.arange(draft_vocab) * (vocab // draft_vocab)
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[target_ids] = True
    return {"d2t": target_ids - torch.arange(draft_vocab), "t2d": t2d}


def _layer_shapes(layer: str, hidden: int, wide: int) -> dict[str, tuple[int, ...]]:
    kv, inner = hidden // 2, hidden * 3 // 2
    return {
        f"{layer}.self_attn.q_proj.weight": (hidden, wide),
        f"{layer}.self_attn.k_proj.weight": (kv, wide),
        f"{layer}.self_attn.v_proj.weight": (kv, wide),
        f"{layer}.self_attn.o_proj.weight": (hidden, hidden),
        f"{layer}.mlp.gate_proj.weight": (inner, hidden),
        f"{layer}.mlp.up_proj.weight": (inner, hidden),
        f"{layer}.mlp.down_proj.weight": (hidden, inner),
    }


EAGLE_CONFIG = {"head_dim": 8, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 0, 1]}}


def save_draft(
    directory: Path, shapes: Mapping[str, tuple[int, ...]], *, tensors: Mapping[str, Any] | None = None, **config: Any
) -> Path:
    """Draft heads of random weights, `tensors` added as they are, with `config` as config.json (none where empty).

    EAGLE drafts always have one: the tensors cannot tell the heads, and the default layers need a deeper target.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if "fc.weight" in (name.removeprefix("model.") for name in shapes):
        config = EAGLE_CONFIG | config
    save_file({**random_tensors(shapes, 0, torch.float32), **(tensors or {})}, directory / "model.safetensors")
    if config:
        write_json(directory / "config.json", config)
    return directory


def save_reference(directory: Path, config: Any, *, seed: int = 0, **kwargs: Any) -> Any:
    """A model of transformers with weights from one seed, saved to `directory`; returns it, for comparison.

    Args:
        directory: Created.
        config: A config of transformers; its class picks the model.
        seed: Of the weights: norms near one, biases and matrices of scale 0.3, large enough that attention and routing
            are far from uniform.
        kwargs: For transformers' from_config.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, **kwargs).to(torch.float32).eval()
    state = model.state_dict()
    drawn = random_tensors({name: tuple(tensor.shape) for name, tensor in state.items()}, seed, torch.float32)
    if config.tie_word_embeddings:
        drawn["lm_head.weight"] = drawn["model.embed_tokens.weight"]
    model.load_state_dict(drawn)
    model.save_pretrained(directory)
    return model


def save_deepseek_v3(directory: Path, *, seed: int = 0, **changes: Any) -> Any:
    """A tiny DeepSeek-V3 of transformers, saved: one dense layer, then two of 16 experts in 4 groups; returns it.

    Args:
        directory: Created.
        seed: Of the weights.
        changes: Keys of its config.
    """
    from transformers import DeepseekV3Config

    sizes = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 10,
        "n_routed_experts": 16,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "num_nextn_predict_layers": 0,
    }
    # Eager experts: a plain loop, where transformers' default is the grouped product that the package uses too.
    config = DeepseekV3Config(**(sizes | changes))
    return save_reference(directory, config, seed=seed, experts_implementation="eager")
