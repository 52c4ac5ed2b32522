"""Text to train on: prompts, and the replies that the target itself gives them, kept on disk in shards.

Drafts have to guess what the target will say, so it is the target that writes: replies at several temperatures, to
prompts from a file, from the shipped seeds, or written by the target too, as the user's turn of an empty chat.

A shard is one JSONL file that appears whole or not at all. Whatever was written is kept and used again: a corpus that
was stopped goes on, and one that is too small grows.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trt_spec.atomic import write_text
from trt_spec.errors import CheckpointError, RequestError
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.request import Chunk, Request, SamplingParams
from trt_spec.training.chat import ChatFormat
from trt_spec.training.files import read_json_lines
from trt_spec.training.prompts import seed_prompt

Progress = Callable[[int, int], None]  # reply tokens so far, and wanted


@dataclass(frozen=True)
class CorpusSettings:
    """What decides the text of a corpus, but for its length.

    Attributes:
        seed: of everything that is drawn.
        temperatures: of the replies, taken in turn.
        self_written: share of prompts that the target writes; the others are seeds. Without effect on given prompts.
        max_reply_tokens: most tokens of a reply.
        max_prompt_tokens: most tokens of a prompt, template included; a longer one is left out.
        shard_size: conversations in a shard.
        prompts_digest: of the given prompts; empty where there are none.
        target_digest: of the target's files.
    """

    seed: int = 0
    temperatures: tuple[float, ...] = (0.0, 0.7, 0.0, 1.0)
    self_written: float = 0.4
    max_reply_tokens: int = 160
    max_prompt_tokens: int = 128
    shard_size: int = 128
    prompts_digest: str = ""
    target_digest: str = ""

    @property
    def max_seq_len(self) -> int:
        """Longest conversation, in tokens."""
        return self.max_prompt_tokens + self.max_reply_tokens

    def digest(self) -> str:
        """A short name for these settings."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Conversation:
    """One prompt and one reply, as ids.

    Attributes:
        prompt_ids: the chat template included, up to where the reply starts.
        reply_ids: with the id that ended it, where one did.
        temperature: at which the reply was sampled.
        source: self (the target wrote the prompt), seed or file.
    """

    prompt_ids: list[int]
    reply_ids: list[int]
    temperature: float
    source: str


class Corpus:
    """The shards of one corpus directory.

    Args:
        directory: of the shards; created on writing.
        settings: a directory belongs to one set of them.
    """

    def __init__(self, directory: Path, settings: CorpusSettings):
        self.directory, self.settings = directory, settings

    def shard_path(self, index: int) -> Path:
        return self.directory / f"shard-{index:05d}.jsonl"

    def read(self, index: int) -> list[Conversation]:
        """The conversations of one shard.

        Raises:
            CheckpointError: the file is damaged.
        """
        path = self.shard_path(index)
        try:
            return [Conversation(**value) for _, value in read_json_lines(path)]
        except (RequestError, TypeError) as error:
            remedy = f"remove {path}; it will be written again"
            raise CheckpointError(
                "a shard of the corpus is damaged", where=str(path), got=str(error), remedy=remedy
            ) from None

    def conversations(self, num_shards: int) -> Iterator[Conversation]:
        """Those of the first shards, in order."""
        for index in range(num_shards):
            yield from self.read(index)

    def num_shards(self, num_tokens: int) -> int | None:
        """Shards, from the first, that hold `num_tokens` reply tokens; None where there are not enough yet."""
        total, index = 0, 0
        while total < num_tokens:
            if not self.shard_path(index).is_file():
                return None
            total += self.count(index)
            index += 1
        return index

    def count(self, index: int) -> int:
        """Reply tokens of one shard."""
        return sum(len(one.reply_ids) for one in self.read(index))


@dataclass
class _Task:
    """One conversation on its way: its shard, its place there, and what is known of it."""

    shard: int
    place: int
    temperature: float
    source: str
    seed: int
    prompt_ids: list[int] | None = None  # None: the target still has to write it


class CorpusWriter:
    """Writes the missing shards of a corpus with an engine that decodes plainly.

    Conversations of neighbouring shards share the engine's batch, so that it stays full.

    Args:
        engine: of the target, without drafter; its batch is what is generated at once.
        prompts: given prompts, taken in a shuffled order, again and again; empty for seeds and self-written ones.
    """

    def __init__(self, corpus: Corpus, engine: Engine, chat: ChatFormat, prompts: Sequence[str] = ()):
        self.corpus, self.engine, self.chat = corpus, engine, chat
        self.prompts = [prompt for prompt in prompts if len(chat.prompt(prompt)) <= corpus.settings.max_prompt_tokens]
        if prompts and not self.prompts:
            raise RequestError(
                "every given prompt is too long",
                expected=f"prompts of at most {corpus.settings.max_prompt_tokens} tokens, chat template included",
                remedy="shorten them",
            )
        self._waiting: deque[_Task] = deque()
        self._running: dict[str, tuple[_Task, list[int]]] = {}
        self._done: dict[int, list[Conversation | None]] = {}
        self._left: dict[int, int] = {}

    def write(self, num_tokens: int, progress: Progress) -> int:
        """Generates until the shards from the first on hold `num_tokens` reply tokens; returns how many shards."""
        next_shard, total = 0, 0
        while self.corpus.shard_path(next_shard).is_file() and total < num_tokens:
            total += self.corpus.count(next_shard)
            next_shard += 1
        progress(total, num_tokens)
        while total < num_tokens or self._running or self._waiting:
            if total < num_tokens and len(self._waiting) + len(self._running) < self.engine.limits.max_batch_size:
                if not self.corpus.shard_path(next_shard).is_file():  # a later one may be there from an earlier run
                    self._open(next_shard)
                else:
                    total += self.corpus.count(next_shard)
                next_shard += 1
            self._admit()
            for chunk in self.engine.step():
                finished = self._take(chunk)
                if finished is not None:
                    total += sum(len(one.reply_ids) for one in finished)
                    progress(total, num_tokens)
        found = self.corpus.num_shards(num_tokens)
        return next_shard if found is None else found

    def _open(self, shard: int) -> None:
        """Queues the conversations of a shard. What they are depends on the settings and the shard's number alone."""
        settings = self.corpus.settings
        rng = random.Random(f"{settings.seed}/{shard}")
        self._done[shard], self._left[shard] = [None] * settings.shard_size, settings.shard_size
        for place in range(settings.shard_size):
            temperature = settings.temperatures[place % len(settings.temperatures)]
            task = _Task(shard, place, temperature, "self", rng.getrandbits(63))
            if self.prompts:
                task.source, task.prompt_ids = "file", self.chat.prompt(self._given(shard, place))
            elif not self.chat.can_open or rng.random() >= settings.self_written:
                task.source, task.prompt_ids = "seed", self.chat.prompt(seed_prompt(rng))
            self._waiting.append(task)

    def _given(self, shard: int, place: int) -> str:
        """Every pass over the given prompts has an order of its own."""
        turn, index = divmod(shard * self.corpus.settings.shard_size + place, len(self.prompts))
        order = list(range(len(self.prompts)))
        random.Random(f"{self.corpus.settings.seed}/order/{turn}").shuffle(order)
        return self.prompts[order[index]]

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.engine.limits.max_batch_size:
            task = self._waiting.popleft()
            request_id = f"{task.shard}/{task.place}/{'user' if task.prompt_ids is None else 'reply'}"
            if task.prompt_ids is not None and not 0 < len(task.prompt_ids) <= self.corpus.settings.max_prompt_tokens:
                self._finish(task, None)
                continue
            self.engine.add(self._request(request_id, task))
            self._running[request_id] = (task, [])

    def _request(self, request_id: str, task: _Task) -> Request:
        settings = self.corpus.settings
        if task.prompt_ids is None:
            room = settings.max_prompt_tokens - len(self.chat.opening) - len(self.chat.closing)
            params = SamplingParams(
                max_tokens=max(room, 1), temperature=1.0, seed=task.seed, stop_token_ids=self.chat.stop_ids()
            )
            return Request(request_id, tuple(self.chat.opening), params)
        params = SamplingParams(max_tokens=settings.max_reply_tokens, temperature=task.temperature, seed=task.seed ^ 1)
        return Request(request_id, tuple(task.prompt_ids), params)

    def _take(self, chunk: Chunk) -> list[Conversation] | None:
        """One chunk; returns a whole shard where it ends one, which is then on disk."""
        if chunk.error is not None:
            raise chunk.error
        task, ids = self._running[chunk.request_id]
        ids += chunk.token_ids
        if chunk.completion is None:
            return None
        del self._running[chunk.request_id]
        if task.prompt_ids is not None:
            return self._finish(task, Conversation(task.prompt_ids, ids, task.temperature, task.source))
        text = self.chat.tokenizer.decode(ids).strip()
        if chunk.completion.finish_reason == "length" or not text:  # a turn without an end is no prompt
            return self._finish(task, None)
        task.prompt_ids = self.chat.prompt(text)
        self._waiting.appendleft(task)
        return None

    def _finish(self, task: _Task, conversation: Conversation | None) -> list[Conversation] | None:
        self._done[task.shard][task.place] = conversation
        self._left[task.shard] -= 1
        if self._left[task.shard]:
            return None
        conversations = [one for one in self._done.pop(task.shard) if one is not None]
        lines = [json.dumps(asdict(one), separators=(",", ":")) for one in conversations]
        write_text(self.corpus.shard_path(task.shard), "".join(f"{line}\n" for line in lines))
        return conversations
