"""The batched engine: draft, verify all sequences in one packed forward of the target, commit.

step = schedule → propose → forward → verify → commit        (plain decoding: with empty drafts)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager

import torch
from torch import Tensor

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.config.schema import RunConfig
from trt_spec.errors import RequestError, TrtSpecError
from trt_spec.runtime.acceptance import AcceptanceRule, Draft, Verdict
from trt_spec.runtime.admission import Admission, EngineLimits
from trt_spec.runtime.batch import Batch, Rows, pack
from trt_spec.runtime.draft_lengths import DraftLengths
from trt_spec.runtime.drafters.base import Drafter
from trt_spec.runtime.drafters.guard import DrafterGuard, check_draft
from trt_spec.runtime.models import Hidden, Model
from trt_spec.runtime.randomness import PhiloxRandomness, Randomness
from trt_spec.runtime.request import ACCEPTED, RECOVERED, TARGET, Chunk, Generation, Request, join
from trt_spec.runtime.sampling import finite_rows
from trt_spec.runtime.scheduler import Scheduler
from trt_spec.runtime.sequence import Sequence
from trt_spec.runtime.stats import EngineStats
from trt_spec.runtime.step import DraftRecord, Now, StepRecord
from trt_spec.runtime.tree import ROOT
from trt_spec.runtime.verification import Verification, no_choice, not_finite


class Engine:
    """Serves many requests at once from one thread. Not thread-safe: `EngineWorker` gives it a thread of its own.

    Args:
        target: the model whose law every emitted token follows.
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
        self.admission = Admission(limits, rule, target.vocab_size, tokenizer is not None)
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
        sequence = Sequence.of(
            request,
            eos_token_ids=self.eos_token_ids,
            max_seq_len=self.limits.max_seq_len,
            num_valid_tokens=self.num_valid_tokens,
            vocab_size=self.target.vocab_size,
            device=self.target.device,
            tokenizer=self.tokenizer,
        )
        self._in_flight[request.request_id] = sequence
        self.scheduler.waiting.append(sequence)

    def check(self, request: Request) -> None:
        """Raises RequestError where this engine cannot serve the request; may be called from any thread."""
        self.admission.check(request)

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
            batch, verifications = self._pack(work.decoding, asked, work.prefills)
            with self._timed("target_s"):
                hidden = self.target.forward(batch, self.cache, self.drafter.capture if self.drafter else ())
            spoiled = self._observe(batch, work.prefills, hidden)
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
        drafts: list[tuple[Draft, int | None]] = [(Draft.empty(), None) for _ in decoding]
        if self.drafter is None:
            return drafts
        limits = [each.draft_room(self.limits.max_draft_len, self.drafter.max_positions) for each in decoding]
        able = [index for index, limit in enumerate(limits) if limit > 0]
        if not able:
            return drafts
        able_sequences, most = [decoding[i] for i in able], [limits[i] for i in able]
        if self.draft_lengths.costs is not None:
            most = self._within(able_sequences, most)
        chosen = self.draft_lengths.choose(able_sequences, most, len(decoding))
        drafting = [(index, length) for index, length in zip(able, chosen, strict=True) if length > 0]
        if drafting:
            sequences, lengths = [decoding[index] for index, _ in drafting], [length for _, length in drafting]
            for (index, length), draft in zip(drafting, self._ask(sequences, lengths), strict=True):
                if draft is not None:
                    drafts[index] = draft, length
                    decoding[index].acceptance.asked()
        return drafts

    def _within(self, sequences: SequenceOf[Sequence], most: SequenceOf[int]) -> list[int]:
        def within(start: int, end: int) -> list[int]:
            return self.drafter.within(sequences[start:end], most[start:end])

        with self._timed("draft_s"):
            return [length or 0 for length in self.guard.ask(self.drafter, sequences, within)]

    def _ask(self, sequences: SequenceOf[Sequence], lengths: SequenceOf[int]) -> list[Draft | None]:
        """The drafter's proposals; None where it raised, or proposed what the target cannot verify."""

        def propose(start: int, end: int) -> list[Draft]:
            drafts = self.drafter.propose(sequences[start:end], lengths[start:end], self.source)
            for draft in drafts:
                check_draft(draft, self.limits.rows_per_sequence - 1, self.target.vocab_size)
            return drafts

        with self._timed("draft_s"):
            return self.guard.ask(self.drafter, sequences, propose)

    def _pack(
        self,
        decoding: SequenceOf[Sequence],
        asked: SequenceOf[tuple[Draft, int | None]],
        prefills: SequenceOf[tuple[Sequence, int]],
    ) -> tuple[Batch, list[Verification]]:
        rows = [
            Rows(
                sequence.slot,
                sequence.num_cached_tokens,
                sequence.token_ids[sequence.num_cached_tokens :] + draft.token_ids.tolist(),
                draft.parents.tolist(),
            )
            for sequence, (draft, _) in zip(decoding, asked, strict=True)
        ]
        for sequence, num_tokens in prefills:
            start = sequence.num_cached_tokens
            rows.append(Rows(sequence.slot, start, sequence.token_ids[start : start + num_tokens]))
        batch = pack(rows, self.slot_len, self.target.dtype, self.target.device)
        verifications = []
        for index, sequence in enumerate((*decoding, *(sequence for sequence, _ in prefills))):
            is_prefill = index >= len(decoding)
            if is_prefill and prefills[index - len(decoding)][1] < sequence.num_pending_tokens:
                continue  # the prompt goes on in the next step
            end = batch.offsets[index + 1]
            start = end - 1 if is_prefill else batch.offsets[index]
            draft, length = (Draft.empty(), None) if is_prefill else asked[index]
            verifications.append(Verification(sequence, draft, start, end, length))
        return batch, verifications

    def _observe(self, batch: Batch, prefills: SequenceOf[tuple[Sequence, int]], hidden: Hidden) -> list[Sequence]:
        """Counts prompt chunks as cached and shows them to the drafter; returns unfinished prompts that overflowed.

        A chunk's last row attends to all of the prompt before it, so it is not finite where any of that is not.
        """
        if not prefills:
            return []
        first = len(batch.rows) - len(prefills)
        prompts = [(sequence, rows) for (sequence, _), rows in zip(prefills, batch.rows[first:], strict=True)]
        for sequence, num_tokens in prefills:
            sequence.num_cached_tokens += num_tokens
        if self.drafter is not None:
            offsets, sequences = batch.offsets[first:], [sequence for sequence, _ in prompts]

            def observe(start: int, end: int) -> None:
                self.drafter.observe(prompts[start:end], hidden.rows(offsets[start], offsets[end]))

            with self._timed("draft_s"):
                self.guard.tell(self.drafter, sequences, observe)
        last = hidden.last[torch.tensor(batch.offsets[first + 1 :], device=self.target.device) - 1]
        is_finite = finite_rows(last)
        return [
            sequence
            for (sequence, _), is_good in zip(prefills, is_finite, strict=True)
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
            sequences, drafts = [item.sequence for item, _, _ in decided], [item.draft for item, _, _ in decided]
            verdicts = [verdict for _, _, verdict in decided]
            rows = [hidden.rows(item.start, item.end) for item, _, _ in decided]

            def commit(start: int, end: int) -> None:
                part = slice(start, end)
                self.drafter.commit(sequences[part], drafts[part], verdicts[part], rows[part])

            with self._timed("draft_s"):
                self.guard.tell(self.drafter, sequences, commit)
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

    def _move(self, source: int, destination: int, sequence: Sequence) -> None:
        for cache in (self.cache, *(self.drafter.caches if self.drafter else ())):
            cache.move(source, destination, len(sequence.token_ids))

    def _release(self, sequence: Sequence) -> None:
        del self._in_flight[sequence.request.request_id]
        self.scheduler.release(sequence)
        if self.drafter is not None:
            self.guard.release(self.drafter, sequence)

    def _fail(self, sequence: Sequence, error: TrtSpecError) -> Chunk:
        """Ends a request that has no next token, and wipes its slot: a mask does not hide a NaN."""
        for cache in (self.cache, *(self.drafter.caches if self.drafter else ())):
            cache.wipe(sequence.slot)
        self._release(sequence)
        return Chunk(sequence.request.request_id, error=error)
