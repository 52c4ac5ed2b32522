"""Rules between the keys of a run config: pure functions, each naming the key to change and the remedy.

Bounds of a single key live in its type, in its section; these are the rules that need two keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trt_spec.config.build_config import BuildConfig
from trt_spec.config.latency_config import LatencyConfig
from trt_spec.config.section import For, Section
from trt_spec.config.serve_config import ServeConfig
from trt_spec.config.speculation import SpeculationConfig
from trt_spec.errors import ConfigError
from trt_spec.methods import ACCEPTANCE, DEFAULT_ACCEPTANCE, METHODS, in_words, taking

# Keys that some methods take and others do not.
SPECULATION_KEYS = tuple(key for key in SpeculationConfig.model_fields if taking(key))


class Problem(NamedTuple):
    """A cross-field rule that does not hold: the key to change, why, and what to do."""

    key: str
    message: str
    remedy: str

    def line(self) -> str:
        """All of it in one line."""
        return f"{self.key}: {self.message}; {self.remedy}"


class CrossFieldError(ConfigError):
    """Rules between keys that do not hold; `problems` lets the loader find their lines."""

    problems: Sequence[Problem] = ()


def _method_rule(spec: SpeculationConfig) -> Iterator[Problem]:
    """Keys that the method does not take, and those that it needs."""
    method = METHODS[spec.method]
    for key in SPECULATION_KEYS:
        value = getattr(spec, key)
        if key in method.keys:
            if value is None and key == "checkpoint":
                remedy = "set speculation.checkpoint to its directory, or use method ngram, which needs none"
                yield Problem("speculation.checkpoint", f"method {method.name} needs a draft checkpoint", remedy)
            elif value is None and key == method.name:
                message = f"method {method.name} needs its settings"
                yield Problem(f"speculation.{key}", message, "remove the null to take the defaults")
        elif value not in (None, False):
            others = in_words(taking(key), "or")
            message = f"method {method.name} ({method.doc}) does not take it"
            yield Problem(f"speculation.{key}", message, f"remove the key, or set speculation.method to {others}")


def _draft_len_rule(spec: SpeculationConfig) -> Iterator[Problem]:
    key, shape = "speculation.max_draft_len", spec.shape
    if spec.method == "none" and spec.max_draft_len != 0:
        message = f"method none drafts nothing, so {spec.max_draft_len} cannot be honoured"
        yield Problem(key, message, "remove the key or set it to 0")
    elif spec.method != "none" and spec.max_draft_len == 0:
        message = f"method {spec.method} has to draft at least one token"
        yield Problem(key, message, "set it to 1 or more, or set speculation.method to none")
    elif shape is not None and shape.max_len not in (None, spec.max_draft_len):
        message = f"{spec.max_draft_len} is not {shape.len_key}, which is {shape.max_len}"
        yield Problem(key, message, "remove the key; the section gives it")


def _ngram_rule(spec: SpeculationConfig) -> Iterator[Problem]:
    for key in ("ngram", "ngram_first"):
        ngram = getattr(spec, key)
        if ngram is not None and ngram.min_ngram > ngram.max_ngram:
            message = f"{ngram.min_ngram} is above max_ngram {ngram.max_ngram}"
            yield Problem(f"speculation.{key}.min_ngram", message, "lower min_ngram or raise max_ngram")


def _tree_rule(spec: SpeculationConfig) -> Iterator[Problem]:
    tree = spec.tree
    if tree is None:
        return
    if not ACCEPTANCE[spec.acceptance].judges_trees:
        remedy = f"use {DEFAULT_ACCEPTANCE}, or remove speculation.tree"
        yield Problem("speculation.acceptance", f"{spec.acceptance} judges chains only", remedy)
    dynamic = (tree.top_k, tree.max_total_draft_tokens)
    is_static, is_dynamic = tree.choices is not None, None not in dynamic
    if is_static == is_dynamic or (is_static and dynamic != (None, None)):
        yield Problem(
            "speculation.tree",
            "a tree is static (choices) or dynamic (top_k and max_total_draft_tokens)",
            "give choices alone, or the other two together",
        )
    elif tree.choices is None and tree.siblings != "top":
        yield Problem(
            "speculation.tree.siblings",
            "a dynamic tree takes tokens by their probability, which would change that of drawn ones",
            "use top, or a static tree",
        )


def _schedule_rule(spec: SpeculationConfig) -> Iterator[Problem]:
    key, schedule = "speculation.draft_len_schedule", spec.draft_len_schedule
    if spec.costs is not None and not spec.adaptive_draft_len:
        yield Problem("speculation.costs", "nothing weighs them", "set speculation.adaptive_draft_len to true")
    if schedule is None or "draft_len_schedule" not in METHODS[spec.method].keys:
        return
    if schedule.get(1) != spec.max_draft_len:
        yield Problem(
            key,
            f"it starts with {schedule.get(1, 'nothing')} for one request, and max_draft_len is {spec.max_draft_len}",
            f"begin it with 1: {spec.max_draft_len}",
        )
    elif max(schedule.values()) > spec.max_draft_len:
        yield Problem(key, f"it drafts more than max_draft_len {spec.max_draft_len}", "raise speculation.max_draft_len")


def _limits_rule(spec: SpeculationConfig, build: BuildConfig) -> Iterator[Problem]:
    draft_len = max(spec.max_draft_len, spec.max_total_draft_tokens)
    need = build.max_batch_size * (draft_len + 1)
    if build.max_num_tokens < need:
        yield Problem(
            "build.max_num_tokens",
            f"{build.max_num_tokens} is too small for a full step: max_batch_size {build.max_batch_size} × "
            f"({draft_len} draft tokens + 1) = {need} tokens",
            f"set it to {need} or more, or lower build.max_batch_size or the draft",
        )
    if build.max_seq_len < draft_len + 2:
        yield Problem(
            "build.max_seq_len",
            f"{build.max_seq_len} leaves no room for one prompt token, {draft_len} draft tokens and one more",
            f"set it to {draft_len + 2} or more",
        )


def target_problems(name: str, section: Section, build_target: str) -> Iterator[Problem]:
    """Keys of a section that the build target does not read, and those that it needs; see `section.For`."""
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        for mark in (mark for mark in field.metadata if isinstance(mark, For)):
            if build_target in mark.build_targets:
                if value is None and field.default_factory is not None:
                    message = f"{build_target} needs a value"
                    yield Problem(f"{name}.{key}", message, "remove the null to take the default")
            elif value != mark.unset:
                remedy = f"remove the key, or set build.target to {in_words(mark.build_targets, 'or')}"
                yield Problem(f"{name}.{key}", f"{mark.why}, and build.target is {build_target}", remedy)


def _ports_rule(serve: ServeConfig) -> Iterator[Problem]:
    owners: dict[int, str] = {}
    for key in ("http_port", "grpc_port", "metrics_port"):
        port = getattr(serve, key)
        if port in owners:
            yield Problem(f"serve.{key}", f"port {port} is also serve.{owners[port]}", "give each its own port")
        owners.setdefault(port, key)


def _decoupled_rule(build: BuildConfig, serve: ServeConfig) -> Iterator[Problem]:
    if build.target == "tensorrt" and serve.decoupled_mode is not None:
        yield Problem(
            "serve.decoupled_mode",
            "the tensorrt target's ensemble streams and its tensorrt_llm_bls answers once",
            "remove the key, or use the build target torch or llmapi",
        )


def _latency_rule(latency: LatencyConfig) -> Iterator[Problem]:
    measured = latency.concurrencies
    if list(measured) != sorted(set(measured)):
        yield Problem("latency.concurrencies", f"{list(measured)} does not rise", "list each once, smallest first")
    for concurrency in latency.min_speedup:
        if concurrency not in measured:
            yield Problem(
                f"latency.min_speedup.{concurrency}",
                f"concurrency {concurrency} is judged but not measured",
                f"add {concurrency} to latency.concurrencies or remove it here",
            )


def check(speculation: SpeculationConfig, build: BuildConfig, serve: ServeConfig, latency: LatencyConfig) -> None:
    """Returns where the sections of a run config go together.

    Raises:
        CrossFieldError: with every rule between keys that is broken.
    """
    problems = [
        *_method_rule(speculation),
        *_draft_len_rule(speculation),
        *_ngram_rule(speculation),
        *_tree_rule(speculation),
        *_schedule_rule(speculation),
        *_limits_rule(speculation, build),
        *target_problems("build", build, build.target),
        *_ports_rule(serve),
        *_decoupled_rule(build, serve),
        *_latency_rule(latency),
    ]
    if problems:
        error = CrossFieldError("the run config contradicts itself", details=[problem.line() for problem in problems])
        error.problems = problems
        raise error
