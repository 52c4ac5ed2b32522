"""A tiny engine directory, written by hand: what `build` would write, in less than a second and without its checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from trt_spec.config import loader
from trt_spec.config.schema import RunConfig

EOS_ID, VOCAB_SIZE = 256, 264  # 256 bytes, <eos>, and 7 rows of padding


def run_config(name: str = "tiny", model_name: str = "tensorrt_llm", **build: Any) -> RunConfig:
    """A run of the tiny model with n-gram drafts."""
    return RunConfig.model_validate(
        {
            "name": name,
            "target": {"checkpoint": "checkpoints/tiny", "dtype": "float32"},
            "speculation": {"method": "ngram", "max_draft_len": 4},
            "build": {"max_batch_size": 8, "max_seq_len": 2048, "max_queue_size": 4, "device": "cpu", **build},
            "serve": {"model_name": model_name},
        }
    )


def make_manifest(config: RunConfig) -> dict[str, Any]:
    """The parts of a manifest that the server reads."""
    return {
        "digest": "0" * 64,
        "engine": {
            "method": config.speculation.method,
            "acceptance": config.speculation.acceptance,
            "max_draft_len": config.speculation.max_draft_len,
            "max_batch_size": config.build.max_batch_size,
            "max_seq_len": config.build.max_seq_len,
            "dtype": config.target.dtype,
            "vocab_size": VOCAB_SIZE,
        },
        "config": config.model_dump(mode="json", exclude_none=True),
    }


def write_engine(directory: Path, config: RunConfig) -> Path:
    """Writes an engine of random weights, the same every time."""
    target = directory / "target"
    target.mkdir(parents=True)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        tie_word_embeddings=False,
        **sizes,
    )
    LlamaForCausalLM(llama).to(torch.float32).save_pretrained(target)
    write_tokenizer(target)
    (directory / "resolved.yaml").write_text(loader.dump(config))
    (directory / "manifest.json").write_text(json.dumps(make_manifest(config)))
    return directory


def write_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer: id = byte."""
    alphabet = _byte_characters()
    tokenizer = Tokenizer(models.BPE(vocab={character: byte for byte, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    assert tokenizer.token_to_id("<eos>") == EOS_ID
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<eos>",
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def _byte_characters() -> list[str]:
    """GPT-2's printable character for each byte, in the order of the bytes."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]
