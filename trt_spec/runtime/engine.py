"""The batched engine: draft, verify all sequences in one packed forward of the target, commit.

step = schedule → propose → forward → verify → commit        (plain decoding: with empty drafts)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.config.schema import RunConfig
from trt_spec.errors import RequestError, TrtSpecError
from trt_spec.runtime.acceptance import AcceptanceRule, Draft, Verdict
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.batch import Batch, pack
from trt_spec.runtime.detokenizer import Detokenizer
from trt_spec.runtime.draft_lengths import DraftLengths
from trt_spec.runtime.drafters.base import Drafter
from trt_spec.runtime.drafters.guard import DrafterGuard, check_draft
from trt_spec.runtime.kv_cache import KVCache
from trt_spec.runtime.models import Hidden, Model
from trt_spec.runtime.randomness import PhiloxRandomness, Randomness
from trt_spec.runtime.request import ACCEPTED, RECOVERED, TARGET, Chunk, Generation, Request, bad_parameter, join
from trt_spec.runtime.sampling import History, LogitsProcessor, finite_rows
from trt_spec.runtime.scheduler import Scheduler, Work
from trt_spec.runtime.sequence import Sequence
from trt_spec.runtime.stats import EngineStats
from trt_spec.runtime.step import DraftRecord, Now, StepRecord
from trt_spec.runtime.tree import ROOT
from trt_spec.runtime.verification import Verification, no_choice, not_finite

T = TypeVar("T")


class Engine:
    """Serves many requests at once from one thread. Not thread-safe: `EngineWorker` gives it a thread of its own.

    Args:
        target: the model whose distribution every emitted token follows.
        drafter: None for plain decoding.
        rule: how drafts are accepted.
        tokenizer: None serves ids only (no text, no stop strings).
        eos_token_ids: ids that end an output.
        num_valid_tokens: ids from here on are padding of the vocabulary and are never emitted; None for all of them.
        source: where random numbers come from.
        config: the run config that the engine was built from, where there is one.
        draft_lengths: how long drafts may be; None for drafts of full length.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None,
        rule: AcceptanceRule,
        limits: EngineLimits,
        *,
        tokenizer: Tokenizer | None = None,
        eos_token_ids: Iterable[int] = (),
        num_valid_tokens: int | None = None,
        source: Randomness | None = None,
        config: RunConfig | None = None,
        draft_lengths: DraftLengths | None = None,
    ):
        self.target, self.drafter, self.rule, self.limits = target, drafter, rule, limits
        self.tokenizer, self.eos_token_ids, self.config = tokenizer, tuple(eos_token_ids), config
        self.num_valid_tokens = num_valid_tokens or target.vocab_size
        self.draft_lengths = draft_lengths or DraftLengths(None, None)
        self.source = source or PhiloxRandomness()
        self.slot_len = limits.slot_len
        self.cache = target.make_cache(limits.max_batch_size, self.slot_len)
        self.scheduler = Scheduler(limits.max_batch_size, limits.max_num_tokens, self._move)
        self.stats = EngineStats()
        self.guard = DrafterGuard(self.stats)
        self._in_flight: dict[str, Sequence] = {}
        self._cancelled: list[str] = []
        self.now: Now = time.perf_counter  # of the step's times; see `synchronized_clock`
        self._record = StepRecord()

    # ---- requests ----

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            RequestError: the request cannot be served by this engine; names the parameter.
            OverloadedError: the queue is full.
        """
        self.check(request)
        if request.request_id in self._in_flight:
            raise RequestError("request id is in flight already", where="request_id", got=request.request_id)
        self.limits.refuse_overload(len(self._in_flight))
        params, target = request.params, self.target
        eos = () if params.ignore_eos else self.eos_token_ids
        processor = LogitsProcessor(params, self.num_valid_tokens, (*eos, *params.stop_token_ids))
        has_history = processor.needs_history()
        sequence = Sequence(
            request,
            processor,
            eos_token_ids=eos,
            max_seq_len=self.limits.max_seq_len,
            detokenizer=Detokenizer(self.tokenizer, params.stop) if self.tokenizer else None,
            history=History.of(request.input_ids, target.vocab_size, target.device) if has_history else None,
        )
        self._in_flight[request.request_id] = sequence
        self.scheduler.waiting.append(sequence)

    def check(self, request: Request) -> None:
        """Refuses what this engine cannot serve; touches no state, so any thread may call it.

        Raises:
            RequestError: see above; names the parameter.
        """
        params, longest = request.params, self.limits.max_draft_len
        self.limits.check_prompt(request, self.target.vocab_size)
        if request.max_draft_len is not None and not 0 <= request.max_draft_len <= longest:
            raise bad_parameter("max_draft_len", request.max_draft_len, f"from 0 to the engine's {longest}")
        if params.stop and self.tokenizer is None:
            raise bad_parameter("stop", params.stop, "an engine with a tokenizer")
        if params.temperature > 0 and not self.rule.serves_sampling:
            expected = f"0: the engine was built with acceptance {self.rule.name}"
            raise bad_parameter("temperature", params.temperature, expected)

    def cancel(self, request_id: str) -> None:
        """Ends a request at the next step; an unknown or finished id is ignored."""
        if request_id in self._in_flight:
            self._cancelled.append(request_id)

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight)

    # ---- the step ----

    @torch.inference_mode()
    def step(self) -> StepRecord:
        """Runs one step; the record holds what each sequence gained."""
        started = self.now()
        record = self._record = StepRecord(self._cancel())
        work = self.scheduler.schedule(self.limits.rows_per_sequence)
        if work.decoding or work.prefills:
            record.batch, record.has_prompt = len(work.decoding), bool(work.prefills)
            asked = self._propose(work.decoding)
            batch, verifications = self._pack(work, asked)
            with self._timed("target_s"):
                hidden = self.target.forward(batch, self.cache, self.drafter.capture if self.drafter else ())
            spoiled = self._prefill(batch, work.prefills, hidden)
            record.chunks += self._verify(verifications, hidden, spoiled)
            self.stats.num_steps += 1
        record.total_s = self.now() - started
        return record

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Adds what it takes to a part of the step."""
        started = self.now()
        try:
            yield
        finally:
            setattr(self._record, part, getattr(self._record, part) + self.now() - started)

    def generate(self, requests: SequenceOf[Request]) -> list[Generation]:
        """Runs requests to their end, in the order given, sharing steps with whatever else is in flight."""
        chunks: dict[str, list[Chunk]] = {request.request_id: [] for request in requests}
        pending = list(requests)
        while pending or any(request_id in self._in_flight for request_id in chunks):
            while pending and len(self._in_flight) < self.limits.capacity:
                self.add(pending.pop(0))
            for chunk in self.step():
                chunks.setdefault(chunk.request_id, []).append(chunk)
        return [join(chunks[request.request_id]) for request in requests]

    def _cancel(self) -> list[Chunk]:
        chunks = []
        for request_id in self._cancelled:
            if sequence := self._in_flight.get(request_id):
                chunks.append(sequence.cancel())
                self._release(sequence)
                self.stats.num_cancelled += 1
        self._cancelled.clear()
        return chunks

    def _propose(self, decoding: SequenceOf[Sequence]) -> list[tuple[Draft, int | None]]:
        """By decoding sequence a draft, empty without speculation or room for it, and the length that was asked for."""
        found: dict[Sequence, tuple[Draft, int]] = {}
        rooms = {sequence: self._draft_room(sequence) for sequence in decoding}
        able = [sequence for sequence, room in rooms.items() if room > 0]
        if able:
            most = [rooms[sequence] for sequence in able]
            if self.draft_lengths.costs is not None:
                reached = self._ask(able, lambda part: self.drafter.reachable_lengths(able[part], most[part]))
                most = [length or 0 for length in reached]
            lengths = self.draft_lengths.choose(able, most, len(decoding))
            asked = [(sequence, length) for sequence, length in zip(able, lengths, strict=True) if length > 0]
            drafts = self._ask([sequence for sequence, _ in asked], lambda part: self._drafts(asked[part]))
            for (sequence, length), draft in zip(asked, drafts, strict=True):
                if draft is not None:
                    found[sequence] = draft, length
                    sequence.acceptance.asked()
        return [found.get(sequence, (Draft.empty(), None)) for sequence in decoding]

    def _draft_room(self, sequence: Sequence) -> int:
        if self.drafter is None:
            return 0
        return sequence.draft_room(self.limits.max_draft_len, self.drafter.max_positions)

    def _drafts(self, asked: SequenceOf[tuple[Sequence, int]]) -> list[Draft]:
        """One draft per sequence and length; raises where the target could not verify one."""
        drafts = self.drafter.propose(*map(list, zip(*asked, strict=True)), self.source)
        for draft in drafts:
            check_draft(draft, self.limits.rows_per_sequence - 1, self.target.vocab_size)
        return drafts

    def _ask(self, sequences: SequenceOf[Sequence], call: Callable[[slice], SequenceOf[T]]) -> list[T | None]:
        """The drafter's answers, see `DrafterGuard`."""
        with self._timed("draft_s"):
            return self.guard.ask(self.drafter, sequences, call)

    def _tell(self, sequences: SequenceOf[Sequence], call: Callable[[slice], None]) -> None:
        """As `_ask`, for what has no answer."""
        self._ask(sequences, lambda part: [call(part)] * (part.stop - part.start))

    def _pack(self, work: Work, asked: SequenceOf[tuple[Draft, int | None]]) -> tuple[Batch, list[Verification]]:
        """The step's rows, and those of them that decide next tokens: prompts that go on in the next step have none."""
        rows = [
            sequence.next_rows(sequence.num_pending_tokens, draft)
            for sequence, (draft, _) in zip(work.decoding, asked, strict=True)
        ]
        rows += [sequence.next_rows(num_tokens) for sequence, num_tokens in work.prefills]
        batch = pack(rows, self.slot_len, self.target.dtype, self.target.device)
        bounds = list(pairwise(batch.offsets))
        verifications = [
            Verification(sequence, draft, start, end, length)
            for sequence, (draft, length), (start, end) in zip(work.decoding, asked, bounds, strict=False)
        ]
        verifications += [
            Verification(sequence, Draft.empty(), end - 1, end)
            for (sequence, num_tokens), (_, end) in zip(work.prefills, bounds[len(work.decoding) :], strict=True)
            if num_tokens == sequence.num_pending_tokens
        ]
        return batch, verifications

    def _prefill(self, batch: Batch, prefills: SequenceOf[tuple[Sequence, int]], hidden: Hidden) -> list[Sequence]:
        """Counts prompt chunks as cached and shows them to the drafter; returns unfinished prompts that overflowed.

        A chunk's last row attends to all of the prompt before it, so it is not finite where any of that is not.
        """
        if not prefills:
            return []
        first = len(batch.rows) - len(prefills)
        sequences, offsets = [sequence for sequence, _ in prefills], batch.offsets[first:]
        for sequence, num_tokens in prefills:
            sequence.num_cached_tokens += num_tokens
        if self.drafter is not None:
            prompts = list(zip(sequences, batch.rows[first:], strict=True))
            self._tell(
                sequences,
                lambda part: self.drafter.prefill(prompts[part], hidden.rows(offsets[part.start], offsets[part.stop])),
            )
        is_finite = finite_rows(hidden.last[torch.tensor(offsets[1:], device=self.target.device) - 1])
        return [
            sequence
            for sequence, is_good in zip(sequences, is_finite, strict=True)
            if not is_good and sequence.num_pending_tokens
        ]

    def _verify(
        self, verifications: SequenceOf[Verification], hidden: Hidden, spoiled: SequenceOf[Sequence]
    ) -> list[Chunk]:
        """Decides every sequence's step, then commits them all and ends what is finished or `spoiled`."""
        if not verifications:
            return [self._fail(sequence, not_finite(sequence)) for sequence in spoiled]
        index = [row for item in verifications for row in range(item.start, item.end)]
        with self._timed("target_s"):
            all_logits = self.target.logits(hidden.last[torch.tensor(index, device=self.target.device)])
        is_finite = finite_rows(all_logits)
        decided, offset = [], 0
        failed = [(sequence, not_finite(sequence)) for sequence in spoiled]
        for item in verifications:
            raw = all_logits[offset : offset + item.end - item.start]
            if not all(is_finite[offset : offset + len(raw)]):
                failed.append((item.sequence, not_finite(item.sequence)))
            elif (logits := item.process(raw)) is None:
                failed.append((item.sequence, no_choice(item.sequence)))
            else:
                decided.append((item, raw, item.decide(self.rule, logits, self.source)))
            offset += len(raw)
        if self.drafter is not None:
            told = [(item.draft, verdict, hidden.rows(item.start, item.end)) for item, _, verdict in decided]
            sequences = [item.sequence for item, _, _ in decided]
            self._tell(sequences, lambda part: self.drafter.commit(sequences[part], *zip(*told[part], strict=True)))
        chunks = [self._commit(item, raw, verdict) for item, raw, verdict in decided]
        # Before others leave and it is moved: what is not finite must not stay behind in the slot that it had.
        failures = [self._fail(sequence, error) for sequence, error in failed]
        for item, _, _ in decided:
            if item.sequence.finish_reason is not None:
                self._release(item.sequence)
                self.stats.num_finished += 1
        return chunks + failures

    def _commit(self, item: Verification, raw: Tensor, verdict: Verdict) -> Chunk:
        """Keeps the accepted rows of the cache, appends the tokens and counts."""
        sequence, path = item.sequence, verdict.path.tolist()
        if item.draft.token_ids.numel() or sequence.is_decoding:
            self.cache.keep(sequence.slot, len(sequence.token_ids), path)
            sequence.num_cached_tokens = len(sequence.token_ids) + len(path)
        tokens = [*item.draft.token_ids[verdict.path].tolist(), verdict.next_token]
        logprobs = None
        if sequence.request.params.logprobs:
            rows = raw[[0, *(node + 1 for node in path)]].log_softmax(-1)
            logprobs = rows[range(len(tokens)), tokens].tolist()
        has_draft = (path[-1] if path else ROOT) in item.draft.tree.children
        num_drafted = len(item.draft.token_ids)
        chunk = sequence.append(tokens, logprobs, RECOVERED if has_draft else TARGET, num_drafted)
        num_accepted = chunk.token_origins.count(ACCEPTED)
        if num_drafted:
            sequence.acceptance.judge(item.depth, len(path))
            self.stats.count(num_drafted, num_accepted)
        if item.asked is not None:
            self._record.drafts.append(DraftRecord(chunk.request_id, item.asked, item.depth, num_accepted))
        self.stats.num_output_tokens += len(chunk.token_ids)
        return chunk

    # ---- slots ----

    @property
    def _caches(self) -> tuple[KVCache, ...]:
        return self.cache, *(self.drafter.caches if self.drafter else ())

    def _move(self, source: int, destination: int, sequence: Sequence) -> None:
        for cache in self._caches:
            cache.move(source, destination, len(sequence.token_ids))

    def _release(self, sequence: Sequence) -> None:
        del self._in_flight[sequence.request.request_id]
        self.scheduler.release(sequence)

    def _fail(self, sequence: Sequence, error: TrtSpecError) -> Chunk:
        """Ends a request that has no next token, and wipes its slot: a mask does not hide a NaN."""
        for cache in self._caches:
            cache.wipe(sequence.slot)
        self._release(sequence)
        return Chunk(sequence.request.request_id, error=error)
