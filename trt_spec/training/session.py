"""One training run from end to end: corpus, feature cache, training, checkpoint, measurement, card."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trt_spec import provenance
from trt_spec.atomic import atomic_directory
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.detect import Opened
from trt_spec.checkpoints.method import refuse_other_draft, refuse_problems
from trt_spec.config.schema import RunConfig
from trt_spec.errors import CapabilityError, PairError
from trt_spec.runtime.acceptance import ACCEPTANCE_RULES
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.loading import TORCH_DTYPES, check_context, make_engine, pick_device
from trt_spec.runtime.models import Model, load_model
from trt_spec.training import card
from trt_spec.training.chat import ChatFormat, prompts_digest, read_prompts
from trt_spec.training.corpus import Corpus, CorpusSettings, CorpusWriter
from trt_spec.training.draft_model import DraftModelRecipe
from trt_spec.training.eagle3 import Eagle3Recipe
from trt_spec.training.evaluate import measure_acceptance
from trt_spec.training.feature_cache import FeatureCache
from trt_spec.training.files import checkpoint_digest
from trt_spec.training.medusa import MedusaRecipe
from trt_spec.training.mtp import MtpRecipe
from trt_spec.training.options import LEARNING_RATES, TRAINABLE, TrainOptions, refuse_foreign, split_prompts
from trt_spec.training.recipe import Recipe
from trt_spec.training.trainer import Figures, Trainer, TrainSettings

LEAST_HEADS = 4  # of medusa, as upstream: what a run drafts today may be less than its next tree wants
GENERATION_BATCH = 32  # conversations written at once; more of them outgrow a CPU's caches
Advance = Callable[[float | None, str | None], None]
Stage = Callable[[str], AbstractContextManager[Advance]]


class Session:
    """A run of `trt-spec train`.

    Args:
        config: names the target, the method, and how drafts are made when the result is measured.
        options: everything else.
        stage: shows that a stage is at work, see `Reporter.progress`.
        note: shows one line.

    Raises:
        CapabilityError: the method is not trained here.
        UsageError: the output directory holds something else.
        CheckpointError: the target has problems.
    """

    def __init__(self, config: RunConfig, options: TrainOptions, stage: Stage, note: Callable[[str], None]):
        self.config, self.options, self.stage, self.note = config, options, stage, note
        self.method = config.speculation.method
        if self.method not in TRAINABLE:
            raise CapabilityError(
                f"method {self.method} is not trained here",
                where="speculation.method",
                got=self.method,
                expected=f"one of {', '.join(TRAINABLE)}",
                remedy="train an EAGLE-3 head" if self.method == "eagle" else None,
            )
        refuse_foreign(options.output)
        self.target_dir = Path(config.target.checkpoint)
        self.target = Opened.of(self.target_dir)
        refuse_problems("target", self.target.inspection)
        self.num_target_positions = self.target.inspection.max_position_embeddings
        self.device, self.dtype = pick_device(config.build.device), TORCH_DTYPES[config.target.dtype]
        self.checkpoint, self.tokenizer = self.target.checkpoint, self.target.checkpoint.tokenizer
        self.chat = ChatFormat(self.tokenizer)
        self.target_digest = checkpoint_digest(self.target_dir)
        prompts = read_prompts(options.prompts_path) if options.prompts_path else []
        self.prompts, self.held_out = split_prompts(prompts)
        self.start = None if options.start_dir is None else self._open_start(options.start_dir)

    def run(self) -> dict[str, Any]:
        """Trains, writes the checkpoint and measures it; returns the card."""
        started = time.monotonic()
        settings = self._corpus_settings()
        target = load_model(self.target_dir, self.dtype, self.device, settings.max_seq_len)
        check_context(target, settings.max_seq_len, str(self.target_dir))
        folder = self.options.cache_dir / f"{self.target_dir.resolve().name}-{self.target_digest}"
        corpus = Corpus(folder / f"corpus-{settings.digest()}", settings)
        num_shards = self._write_corpus(corpus, target)
        recipe, facts = self._recipe(target, corpus, num_shards)
        trainer = self._train(recipe, corpus, num_shards, folder, target)
        written = {
            "method": self.method,
            "target": {"name": self.target_dir.resolve().name, "digest": self.target_digest},
            "recipe": recipe.notes,
            "corpus": {**card.corpus_facts(corpus, num_shards), **facts},
            "training": card.training_facts(trainer),
            "licence": self.options.licence or card.stated_licence(self.target_dir),
            "provenance": provenance.collect(self.config).as_dict(),
        }
        if self.start is not None:
            written["continues"] = card.earlier(self.start.folder)
        weights = {name: tensor.detach().cpu() for name, tensor in trainer.weights.items()}
        with atomic_directory(self.options.output) as staging:
            recipe.save(staging, weights)
            card.write(staging, written)
            for path in staging.iterdir():  # safetensors makes its files private; a checkpoint is shared
                path.chmod(0o644)
        del target, trainer, recipe
        if self.options.held_out_tokens:
            written["acceptance"] = self._measure()
        written["seconds"] = round(time.monotonic() - started, 1)
        card.write(self.options.output, written)
        return written

    # ---- stages ----

    def _open_start(self, directory: Path) -> CheckpointDir:
        """The checkpoint of an earlier run, which has to be of this method and to fit this target."""
        is_target = self.method == "mtp"
        opened = Opened.of(directory)
        found = opened.inspection_for(None if is_target else self.target)
        refuse_problems("target" if is_target else "draft", found)
        if not is_target:
            refuse_other_draft(self.method, found)
        return opened.checkpoint

    def _initial(self, recipe: Recipe) -> dict[str, Tensor]:
        """The weights that training starts from, in float32.

        Raises:
            PairError: the checkpoint to go on from has other tensors.
        """
        start = recipe.initial(torch.Generator().manual_seed(self.options.seed))
        if self.start is None:
            return start
        tensors = self.start.tensors
        others = [name for name, one in start.items() if name not in tensors or tensors[name].shape != one.shape]
        if others:
            raise PairError(
                "the checkpoint to go on from was trained with other settings",
                where=str(self.start.path),
                details=[f"{name} is not there in shape {list(start[name].shape)}" for name in others],
                remedy="give the options that it was trained with, or leave --from out",
            )
        return {name: self.start.read(name).float() for name in start}

    def _corpus_settings(self) -> CorpusSettings:
        """The settings of the options, shortened for targets with few positions."""
        settings = CorpusSettings(
            seed=self.options.seed,
            max_reply_tokens=self.options.reply_tokens,
            prompts_digest=prompts_digest(self.prompts),
            target_digest=self.target_digest,
        )
        limit = self.num_target_positions
        if limit is None or settings.max_seq_len <= limit:
            return settings
        longest = min(settings.max_prompt_tokens, limit // 2)
        return replace(settings, max_prompt_tokens=longest, max_reply_tokens=min(self.options.reply_tokens, limit // 2))

    def _write_corpus(self, corpus: Corpus, target: Model) -> int:
        found = corpus.num_shards(self.options.num_tokens)
        if found is not None:
            return found
        limits = EngineLimits(
            max_batch_size=GENERATION_BATCH,
            max_seq_len=corpus.settings.max_seq_len,
            max_num_tokens=1024,
            max_queue_size=GENERATION_BATCH,
        )
        engine = Engine(
            target,
            None,
            ACCEPTANCE_RULES["rejection"],
            limits,
            eos_token_ids=sorted(self.tokenizer.eos_token_ids),
            num_valid_tokens=min(self.tokenizer.vocab_size, target.vocab_size),
        )
        with self.stage("the target writes text to train on") as advance:
            writer = CorpusWriter(corpus, engine, self.chat, self.prompts)
            return writer.write(
                self.options.num_tokens,
                lambda done, wanted: advance(done / wanted, f"text to train on, {done:,} of {wanted:,} tokens"),
            )

    def _recipe(self, target: Model, corpus: Corpus, num_shards: int) -> tuple[Recipe, dict[str, Any]]:
        """The method's recipe, and what the corpus tells of it."""
        options, positions = self.options, corpus.settings.max_seq_len
        draft_len = max(self.config.speculation.max_draft_len, 1)
        steps = options.num_positions or min(draft_len, 5)
        if self.method == "mtp":
            return MtpRecipe(target, self.checkpoint, steps, positions), {}
        if self.method == "draft_model":
            return DraftModelRecipe(target, self.checkpoint, options.num_layers, positions), {}
        replies = [token for one in corpus.conversations(num_shards) for token in one.reply_ids]
        counts = torch.tensor(replies, dtype=torch.int64).bincount(minlength=target.vocab_size)
        if self.method == "medusa":
            heads = options.num_heads or max(draft_len, LEAST_HEADS)
            ids = draft_vocabulary(counts, options.draft_vocab_size, ())
            return MedusaRecipe(target, heads, options.num_blocks, options.row_share, ids), {}
        if self.start is None:
            ids = draft_vocabulary(counts, options.draft_vocab_size, self.tokenizer.eos_token_ids)
        else:
            d2t = self.start.read("d2t").long()
            ids = d2t + torch.arange(len(d2t))
        facts = {"draft_vocabulary_coverage": round(float(counts[ids].sum() / counts.sum()), 5)}
        return Eagle3Recipe(target, self.checkpoint, ids, steps, positions), facts

    def _train(self, recipe: Recipe, corpus: Corpus, num_shards: int, folder: Path, target: Model) -> Trainer:
        cache = self._feature_cache(recipe, corpus, folder, num_shards)
        with self.stage("the target's states over that text") as advance:
            cache.write(target, num_shards, lambda done, wanted: advance(done / wanted, None))
        settings = self._train_settings(corpus, num_shards)
        start = "" if self.start is None else checkpoint_digest(self.start.folder)
        parts = [recipe.method, recipe.notes, asdict(settings), num_shards, cache.directory.name, start]
        key = json.dumps(parts, sort_keys=True)
        state = folder / f"state-{hashlib.sha256(key.encode()).hexdigest()[:12]}.safetensors"
        initial = self._initial(recipe)
        trainer = Trainer(recipe, initial, settings, cache, num_shards, state, key, self.dtype, self.device)
        if trainer.figures.step:
            self.note(f"going on from step {trainer.figures.step} of {settings.num_steps}")
        with self.stage(f"training {self.method}") as advance:
            told = time.monotonic()

            def show(figures: Figures) -> None:
                nonlocal told
                line = figures.text(settings.num_steps)
                advance(figures.step / settings.num_steps, line)
                if time.monotonic() - told > NOTE_EVERY_S:
                    self.note(line)
                    told = time.monotonic()

            trainer.run(show)
        return trainer

    def _feature_cache(self, recipe: Recipe, corpus: Corpus, folder: Path, num_shards: int) -> FeatureCache:
        """The cache of the recipe's layers; one that holds more serves a recipe that reads the last state alone."""
        stem = f"features-{corpus.settings.digest()}-{self.config.target.dtype}-"
        if not recipe.capture:
            for directory in sorted(folder.glob(f"{stem}*")):
                cache = FeatureCache(directory, corpus)
                if all(cache.shard_path(index).is_file() for index in range(num_shards)):
                    return cache
        layers = "-".join(map(str, recipe.capture)) or "last"
        return FeatureCache(folder / (stem + layers), corpus, recipe.capture)

    def _train_settings(self, corpus: Corpus, num_shards: int) -> TrainSettings:
        options = self.options
        num_tokens = sum(len(one.prompt_ids) + len(one.reply_ids) for one in corpus.conversations(num_shards))
        return TrainSettings(
            num_steps=options.num_steps or max(round(options.epochs * num_tokens / options.batch_tokens), 1),
            batch_tokens=options.batch_tokens,
            learning_rate=options.learning_rate or LEARNING_RATES[self.method],
            seed=options.seed,
        )

    def _measure(self) -> dict[str, Any]:
        """Acceptance on held-out prompts, drafted as the run drafts."""
        config = measured_config(self.config, self.options.output, self.num_target_positions)
        target_dir = Path(config.target.checkpoint)
        engine = make_engine(config, target_dir, self.options.output, self.device)
        longest = config.build.max_seq_len - self.options.held_out_tokens
        prompts = [ids for ids in map(self.chat.prompt, self.held_out) if 0 < len(ids) <= longest]
        with self.stage("acceptance on held-out prompts") as advance:
            found = measure_acceptance(
                engine,
                prompts,
                max_tokens=self.options.held_out_tokens,
                seed=self.options.seed,
                progress=lambda part: advance(part, None),
            )
        tree = config.speculation.tree
        return {
            "max_tokens": self.options.held_out_tokens,
            "draft_dtype": config.target.dtype,
            "max_draft_len": config.speculation.max_draft_len,
            "tree": None if tree is None else tree.model_dump(mode="json", exclude_none=True),
            "acceptance": config.speculation.acceptance,
            "by_temperature": [one.as_dict() for one in found],
        }


NOTE_EVERY_S = 60.0


def draft_vocabulary(counts: Tensor, size: int, always: Sequence[int] | frozenset[int]) -> Tensor:
    """The `size` ids that occur most often, ids that end a text among them: rising, [min(size, V)].

    Args:
        counts: [V] how often each id occurs.
    """
    ranked = counts.double() - torch.arange(len(counts)) / len(counts) / 2  # of equal counts the lower id
    ranked[[token for token in always if token < len(counts)]] = float("inf")
    return ranked.topk(min(size, len(counts))).indices.sort().values


def measured_config(config: RunConfig, output: Path, num_positions: int | None) -> RunConfig:
    """The run with the trained checkpoint in place: as draft, or, for MTP layers, as the target that holds them.

    Its context is shortened to what the target was made for: the measurement needs no more of it.
    """
    if num_positions is not None and num_positions < config.build.max_seq_len:
        config = config.model_copy(update={"build": config.build.model_copy(update={"max_seq_len": num_positions})})
    if config.speculation.method == "mtp":
        return config.model_copy(update={"target": config.target.model_copy(update={"checkpoint": str(output)})})
    speculation = config.speculation.model_copy(update={"checkpoint": str(output)})
    return config.model_copy(update={"speculation": speculation})
