"""Hidden states of the target over the corpus, computed once and kept on disk.

Every head reads the state behind the final norm (`last`); EAGLE-3 also reads three layers of the residual stream
(`aux`). They come from the forward that serves, in the dtype of its weights, so a head trains on what it will be fed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from trt_spec.atomic import replacing
from trt_spec.errors import CheckpointError
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.models import Model
from trt_spec.training.corpus import Corpus

Progress = Callable[[int, int], None]  # shards done, and wanted
BATCH_TOKENS = 2048  # tokens of one forward while the cache is written


@dataclass(frozen=True)
class Sample:
    """One conversation with its states: N tokens, H hidden size.

    Attributes:
        token_ids: [N] int64.
        num_prompt: tokens before the reply.
        last: [N, H] behind the final norm.
        aux: [N, C · H] the captured layers; None where none was captured.
    """

    token_ids: Tensor
    num_prompt: int
    last: Tensor
    aux: Tensor | None

    def __len__(self) -> int:
        return len(self.token_ids)


class FeatureCache:
    """States of the first shards of a corpus, one safetensors file a shard.

    Args:
        directory: of the files; belongs to one corpus, one dtype and one choice of layers.
        capture: target layers whose input is kept, see `Model.forward`.
    """

    def __init__(self, directory: Path, corpus: Corpus, capture: Sequence[int] = ()):
        self.directory, self.corpus, self.capture = directory, corpus, tuple(capture)

    def shard_path(self, index: int) -> Path:
        return self.directory / f"shard-{index:05d}.safetensors"

    def write(self, target: Model, num_shards: int, progress: Progress) -> None:
        """Computes the shards that are missing."""
        missing = [index for index in range(num_shards) if not self.shard_path(index).is_file()]
        for done, index in enumerate(missing):
            progress(num_shards - len(missing) + done, num_shards)
            self._write_shard(target, index)
        progress(num_shards, num_shards)

    @torch.inference_mode()
    def _write_shard(self, target: Model, index: int) -> None:
        found = self.corpus.read(index)
        token_ids = [one.prompt_ids + one.reply_ids for one in found]
        last, aux = [], []
        for group in _groups(token_ids):
            rows = [Rows(slot, 0, ids) for slot, ids in enumerate(group)]
            slot_len = max(len(ids) for ids in group)
            cache = target.make_cache(len(rows), slot_len)
            hidden = target.forward(pack(rows, slot_len, target.dtype, target.device), cache, self.capture)
            last.append(hidden.last.to("cpu", target.dtype))
            aux += [hidden.aux.to("cpu", target.dtype)] if hidden.aux is not None else []
        tensors = {
            "token_ids": torch.tensor([token for ids in token_ids for token in ids], dtype=torch.int32),
            "lengths": torch.tensor([len(ids) for ids in token_ids], dtype=torch.int32),
            "prompt_lengths": torch.tensor([len(one.prompt_ids) for one in found], dtype=torch.int32),
            "last": torch.cat(last),
        }
        if aux:
            tensors["aux"] = torch.cat(aux)
        self.directory.mkdir(parents=True, exist_ok=True)
        with replacing(self.shard_path(index)) as temporary:
            save_file(tensors, temporary)

    def read(self, index: int) -> list[Sample]:
        """The samples of one shard, which views of its file hold.

        Raises:
            CheckpointError: the file is damaged.
        """
        path = self.shard_path(index)
        try:
            with safe_open(path, "pt") as file:
                names = ("token_ids", "lengths", "prompt_lengths", "last", *(("aux",) if self.capture else ()))
                tensors = {name: file.get_tensor(name) for name in names}
            lengths = tensors["lengths"].tolist()
            columns = [tensors[name].split(lengths) for name in ("token_ids", "last")]
            aux = tensors["aux"].split(lengths) if self.capture else [None] * len(lengths)
        except (SafetensorError, OSError, KeyError, RuntimeError, TypeError) as error:  # torch: lengths that do not fit
            remedy = f"remove {path}; it will be computed again"
            raise CheckpointError(
                "a shard of the feature cache is damaged", where=str(path), got=str(error), remedy=remedy
            ) from None
        prompts = tensors["prompt_lengths"].tolist()
        return [
            Sample(ids.long(), num_prompt, last, states)
            for ids, num_prompt, last, states in zip(columns[0], prompts, columns[1], aux, strict=True)
        ]


def _groups(token_ids: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Neighbouring conversations of `BATCH_TOKENS` tokens together, at least one."""
    group: list[list[int]] = []
    for ids in token_ids:
        if group and sum(map(len, group)) + len(ids) > BATCH_TOKENS:
            yield group
            group = []
        group.append(ids)
    if group:
        yield group


def batches(
    cache: FeatureCache, shards: Sequence[int], batch_tokens: int, seed: str, *, buffered_shards: int = 4
) -> Iterator[list[Sample]]:
    """One pass over the samples in an order of its own, as batches of about `batch_tokens` tokens.

    Shards are shuffled; the samples of a few of them are mixed, put into batches of similar length, and the batches
    shuffled.

    Args:
        seed: decides the order.
        buffered_shards: shards whose samples are mixed with each other.
    """
    rng = random.Random(seed)
    order = list(shards)
    rng.shuffle(order)
    for start in range(0, len(order), buffered_shards):
        samples = [one for index in order[start : start + buffered_shards] for one in cache.read(index)]
        rng.shuffle(samples)
        samples.sort(key=len)
        groups: list[list[Sample]] = []
        for sample in samples:
            if not groups or len(sample) * (len(groups[-1]) + 1) > batch_tokens:
                groups.append([])
            groups[-1].append(sample)
        rng.shuffle(groups)
        yield from groups
