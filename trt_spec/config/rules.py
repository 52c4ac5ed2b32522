"""Rules between the keys of a run config: pure functions, each naming the key to change and the remedy.

Bounds of a single key live in its type, in `schema`; these are the rules that need two keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from trt_spec.errors import ConfigError

if TYPE_CHECKING:
    from trt_spec.config.schema import RunConfig

METHODS_WITH_CHECKPOINT = frozenset(
    {"draft_model", "medusa", "eagle", "eagle3", "redrafter"}
)  # the others draft without one


class Problem(NamedTuple):
    """A cross-field rule that does not hold: the key to change, why, and what to do."""

    key: str
    message: str
    remedy: str


class CrossFieldError(ConfigError):
    """Rules between keys that do not hold; `problems` lets the loader find their lines."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(
            "the run config contradicts itself",
            details=[f"{problem.key}: {problem.message}; {problem.remedy}" for problem in problems],
        )
        self.problems = problems


Rule = Callable[["RunConfig"], Iterator[Problem]]


def _checkpoint_rule(config: RunConfig) -> Iterator[Problem]:
    spec = config.speculation
    if spec.method in METHODS_WITH_CHECKPOINT and spec.checkpoint is None:
        yield Problem(
            "speculation.checkpoint",
            f"method {spec.method} needs a draft checkpoint",
            "set speculation.checkpoint to its directory, or use method ngram, which needs none",
        )
    if spec.method not in METHODS_WITH_CHECKPOINT and spec.checkpoint is not None:
        holder = "its layers are in the target checkpoint" if spec.method == "mtp" else "it would be ignored"
        yield Problem(
            "speculation.checkpoint",
            f"method {spec.method} takes no checkpoint ({holder})",
            "remove the key, or set speculation.method to what the checkpoint is",
        )


def _draft_len_rule(config: RunConfig) -> Iterator[Problem]:
    spec = config.speculation
    if spec.method == "none" and spec.max_draft_len != 0:
        yield Problem(
            "speculation.max_draft_len",
            f"method none drafts nothing, so {spec.max_draft_len} cannot be honoured",
            "remove the key or set it to 0",
        )
    if spec.method != "none" and spec.max_draft_len == 0:
        yield Problem(
            "speculation.max_draft_len",
            f"method {spec.method} has to draft at least one token",
            "set it to 1 or more, or set speculation.method to none",
        )


def _ngram_rule(config: RunConfig) -> Iterator[Problem]:
    spec = config.speculation
    if spec.ngram is None:
        if spec.method == "ngram":
            yield Problem(
                "speculation.ngram", "method ngram needs its settings", "remove the null to take the defaults"
            )
        return
    if spec.method != "ngram":
        yield Problem(
            "speculation.ngram", f"method {spec.method} does no n-gram lookup", "remove the section or use method ngram"
        )
    if spec.ngram.min_ngram > spec.ngram.max_ngram:
        yield Problem(
            "speculation.ngram.min_ngram",
            f"{spec.ngram.min_ngram} is above max_ngram {spec.ngram.max_ngram}",
            "lower min_ngram or raise max_ngram",
        )


NEURAL_METHODS = frozenset({"draft_model", "medusa", "eagle", "eagle3", "mtp"})


def _combination_rule(config: RunConfig) -> Iterator[Problem]:
    spec = config.speculation
    if spec.ngram_first is not None:
        if spec.method not in NEURAL_METHODS:
            yield Problem(
                "speculation.ngram_first", f"method {spec.method} has no other drafter to precede", "remove the section"
            )
        if spec.ngram_first.min_ngram > spec.ngram_first.max_ngram:
            yield Problem(
                "speculation.ngram_first.min_ngram",
                f"{spec.ngram_first.min_ngram} is above max_ngram {spec.ngram_first.max_ngram}",
                "lower min_ngram or raise max_ngram",
            )
    if spec.adaptive_draft_len and spec.method == "none":
        yield Problem("speculation.adaptive_draft_len", "method none drafts nothing", "remove the key")


def _tree_rule(config: RunConfig) -> Iterator[Problem]:
    spec, tree = config.speculation, config.speculation.tree
    if tree is None:
        return
    if spec.method not in NEURAL_METHODS:
        yield Problem("speculation.tree", f"method {spec.method} drafts no trees", "remove the section")
    if spec.acceptance == "block":
        yield Problem("speculation.acceptance", "block judges chains only", "use rejection, or remove speculation.tree")
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
            "a dynamic tree chooses among tokens by their probability, which would change the law of drawn ones",
            "use top, or a static tree",
        )
    elif tree.choices is not None and max(map(len, tree.choices)) != spec.max_draft_len:
        yield Problem(
            "speculation.max_draft_len",
            f"{spec.max_draft_len} is not the depth of tree.choices, {max(map(len, tree.choices))}",
            "remove the key; the tree gives it",
        )


def _shape_section_rule(config: RunConfig) -> Iterator[Problem]:
    """lookahead and redrafter have a section each, which gives the draft length."""
    spec = config.speculation
    lengths = {
        "lookahead": spec.lookahead and ("lookahead.ngram_size - 1", spec.lookahead.ngram_size - 1),
        "redrafter": spec.redrafter and ("redrafter.draft_len_per_beam", spec.redrafter.draft_len_per_beam),
    }
    for name, length in lengths.items():
        key = f"speculation.{name}"
        if length is None and spec.method == name:
            yield Problem(key, f"method {name} needs its settings", "remove the null to take the defaults")
        elif length is not None and spec.method != name:
            yield Problem(key, f"method {spec.method} does not read it", f"remove the section or use method {name}")
        elif length is not None and spec.max_draft_len != length[1]:
            yield Problem(
                "speculation.max_draft_len",
                f"{spec.max_draft_len} is not {length[0]}, which is {length[1]}",
                "remove the key; the section gives it",
            )


def _schedule_rule(config: RunConfig) -> Iterator[Problem]:
    spec, schedule = config.speculation, config.speculation.draft_len_schedule
    key = "speculation.draft_len_schedule"
    if spec.costs is not None and not spec.adaptive_draft_len:
        yield Problem("speculation.costs", "nothing weighs them", "set speculation.adaptive_draft_len to true")
    if schedule is None:
        return
    if spec.method == "none":
        yield Problem(key, "method none drafts nothing", "remove the key")
    elif schedule.get(1) != spec.max_draft_len:
        yield Problem(
            key,
            f"it starts with {schedule.get(1, 'nothing')} for one request, and max_draft_len is {spec.max_draft_len}",
            f"begin it with 1: {spec.max_draft_len}",
        )
    elif max(schedule.values()) > spec.max_draft_len:
        yield Problem(key, f"it drafts more than max_draft_len {spec.max_draft_len}", "raise speculation.max_draft_len")


def _limits_rule(config: RunConfig) -> Iterator[Problem]:
    build = config.build
    draft_len = max(config.speculation.max_draft_len, config.speculation.max_total_draft_tokens)
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


# Keys of the section build that only the TensorRT-LLM targets read.
TRTLLM_KEYS = (
    "tensorrt_llm_version",
    "container",
    "examples_dir",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "quantization",
    "calibration_dataset",
    "kv_cache_dtype",
    "kv_cache_free_gpu_memory_fraction",
    "enable_kv_cache_reuse",
    "llm_args",
)
MAY_BE_UNSET = ("container", "examples_dir", "calibration_dataset", "llm_args")


def _target_keys_rule(config: RunConfig) -> Iterator[Problem]:
    """Keys that the build target does not read."""
    build = config.build
    for name in TRTLLM_KEYS:
        value = getattr(build, name)
        if build.target == "torch" and value is not None:
            yield Problem(
                f"build.{name}",
                "the torch target does not use TensorRT-LLM",
                "remove the key, or set build.target to tensorrt or llmapi",
            )
        if build.target != "torch" and value is None and name not in MAY_BE_UNSET:
            yield Problem(f"build.{name}", f"{build.target} needs a value", "remove the null to take the default")
    if build.target != "torch" and build.device != "auto":
        yield Problem("build.device", f"only the torch target chooses a device, not {build.target}", "remove the key")


def _ports_rule(config: RunConfig) -> Iterator[Problem]:
    owners: dict[int, str] = {}
    for key in ("http_port", "grpc_port", "metrics_port"):
        port = getattr(config.serve, key)
        if port in owners:
            yield Problem(f"serve.{key}", f"port {port} is also serve.{owners[port]}", "give each its own port")
        owners.setdefault(port, key)


def _decoupled_rule(config: RunConfig) -> Iterator[Problem]:
    if config.build.target == "tensorrt" and config.serve.decoupled_mode is not None:
        yield Problem(
            "serve.decoupled_mode",
            "the tensorrt target's ensemble streams and its tensorrt_llm_bls answers once",
            "remove the key, or use the build target torch or llmapi",
        )


def _latency_rule(config: RunConfig) -> Iterator[Problem]:
    measured = config.latency.concurrencies
    if list(measured) != sorted(set(measured)):
        yield Problem("latency.concurrencies", f"{list(measured)} does not rise", "list each once, smallest first")
    for concurrency in config.latency.min_speedup:
        if concurrency not in measured:
            yield Problem(
                f"latency.min_speedup.{concurrency}",
                f"concurrency {concurrency} is judged but not measured",
                f"add {concurrency} to latency.concurrencies or remove it here",
            )


RULES: tuple[Rule, ...] = (
    _checkpoint_rule,
    _draft_len_rule,
    _ngram_rule,
    _tree_rule,
    _combination_rule,
    _shape_section_rule,
    _schedule_rule,
    _limits_rule,
    _target_keys_rule,
    _ports_rule,
    _decoupled_rule,
    _latency_rule,
)


def cross_field_problems(config: RunConfig) -> list[Problem]:
    """Every rule between keys that `config` breaks, in the order of `RULES`; empty for a sound config."""
    return [problem for rule in RULES for problem in rule(config)]
