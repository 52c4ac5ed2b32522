"""What the training tests share: a tiny target with everything around it."""

from __future__ import annotations

from pathlib import Path

import torch

from tests import tiny
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.runtime.acceptance import ACCEPTANCE_RULES
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.models import load_model
from trt_spec.training.chat import ChatFormat
from trt_spec.training.corpus import Conversation, Corpus, CorpusSettings, CorpusWriter

CPU = torch.device("cpu")
NUM_POSITIONS = 128
SETTINGS = CorpusSettings(max_reply_tokens=10, max_prompt_tokens=118, shard_size=6, self_written=0.5)


def make_target(directory: Path, *, num_layers: int = 6, **config) -> Path:
    """A tiny Llama-like checkpoint, deep enough for EAGLE-3's default layers."""
    return tiny.llama_checkpoint(directory, num_hidden_layers=num_layers, **config)


def load(directory: Path, dtype: torch.dtype = torch.float32):
    return load_model(directory, dtype, CPU, NUM_POSITIONS)


def plain_engine(directory: Path, batch_size: int = 4) -> Engine:
    target = load(directory)
    limits = EngineLimits(max_batch_size=batch_size, max_seq_len=NUM_POSITIONS, max_num_tokens=256)
    return Engine(target, None, ACCEPTANCE_RULES["rejection"], limits, eos_token_ids=(2,), num_valid_tokens=315)


def writer(directory: Path, target_dir: Path, prompts=(), settings: CorpusSettings = SETTINGS) -> CorpusWriter:
    chat = ChatFormat(Tokenizer.load(target_dir))
    return CorpusWriter(Corpus(directory, settings), plain_engine(target_dir), chat, prompts)


class FixedCorpus(Corpus):
    """A corpus that was never written: random conversations, one shard each `shard_size` of them."""

    def __init__(self, num_shards: int = 2, *, size: int = 5, vocab_size: int = 320, longest: int = 24):
        super().__init__(Path("nowhere"), CorpusSettings())
        generator = torch.Generator().manual_seed(1)

        def ids(low: int) -> list[int]:
            length = int(torch.randint(low, longest // 2, (1,), generator=generator))
            return torch.randint(3, vocab_size, (length,), generator=generator).tolist()

        self.shards = [[Conversation(ids(1), ids(4), 0.0, "seed") for _ in range(size)] for _ in range(num_shards)]

    def read(self, index: int) -> list[Conversation]:
        return self.shards[index]
