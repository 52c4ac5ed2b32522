"""Command lines of TensorRT-LLM's converters and of trtllm-build, by version. Pure.

Every flag whose default differs between versions, or is wrong for a method, is written. Sources: NVIDIA/TensorRT-LLM,
examples/{llama,models/core/llama,medusa,eagle,redrafter}/convert_checkpoint.py, examples/quantization/quantize.py,
tensorrt_llm/commands/build.py and tensorrt_llm/builder.py. None of them was run here.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from trt_spec.config import versions
from trt_spec.config.schema import RunConfig
from trt_spec.errors import CapabilityError

# model_type -> folder of its converter below examples/ (up to 0.19) and examples/models/core/ (from 0.20 on).
CONVERTERS = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen", "qwen3": "qwen"}
# model_type -> the version whose converter took it first, where that is later than the first one known here.
CONVERTED_SINCE = {"qwen3": Version("1.0.0")}  # pull request 5650, July 2025; before it "Unsupported Qwen type: qwen3"
# Targets that the converters of heads take.
HEAD_TARGETS = {
    "medusa": ("llama", "mixtral", "qwen2"),
    "eagle": ("llama",),
    "redrafter": ("llama", "qwen2"),
}
MODES = {
    "draft_model": "draft_tokens_external",
    "medusa": "medusa",
    "eagle": "eagle",
    "lookahead": "lookahead_decoding",
    "redrafter": "explicit_draft_tokens",
}
_SPLIT_REDRAFTER = Version("1.0.0rc1")  # from then on the target is converted first (pull request 4875, June 2025)
_MOVED_MODELS = Version("0.20.0rc0")  # examples/llama became examples/models/core/llama


@dataclass(frozen=True)
class Commands:
    """The command lines of one run; `examples` and `work` are TensorRT-LLM's and the build's directories in them."""

    config: RunConfig
    examples: str
    work: str

    def checkpoint(self, role: str) -> str:
        """The converted checkpoint of a role: target, draft or base (a target before its ReDrafter is added)."""
        return f"{self.work}/{role}-checkpoint"

    def engine(self, role: str) -> str:
        """The engine of target or draft."""
        return f"{self.work}/{role}-engine"

    def convert_model(self, role: str, model_type: str, model_dir: str) -> tuple[str, ...]:
        """Converts a whole model: a plain target, one with external drafts or lookahead, a draft, a base of ReDrafter.

        Args:
            role: target, draft or base. A draft is small and keeps its type: calibrating it is another decision.
            model_type: config.json's word for the architecture.
            model_dir: the Hugging Face directory.

        Raises:
            CapabilityError: no converter is known for the architecture, or it does not store these weights.
        """
        quantization = "none" if role == "draft" else self.config.build.quantization
        if quantization == "fp8":
            return self._quantize(role, model_dir)
        folder = converter_folder(self.config, model_type)
        if quantization == "fp8_rowwise" and folder != "llama":
            raise CapabilityError(
                f"the converter of {model_type} does not store fp8_rowwise",
                where="build.quantization",
                got=quantization,
                remedy="set it to fp8",
            )
        root = "" if _version(self.config) < _MOVED_MODELS else "models/core/"
        further = () if role == "draft" else self._quantised
        return (*self._converter(f"{root}{folder}", role, model_dir), "--pp_size", self._pp_size, *further)

    def convert_medusa(
        self, model_type: str, model_dir: str, heads_dir: str, num_heads: int, num_blocks: int
    ) -> tuple[str, ...]:
        """Target and Medusa heads in one checkpoint. Drafts may have as many tokens as the tree has nodes."""
        heads = ["--medusa_model_dir", heads_dir, "--num_medusa_heads", str(num_heads)]
        heads += ["--num_medusa_layers", str(num_blocks), "--medusa_hidden_act", "silu"]
        num_nodes = str(self.config.speculation.max_total_draft_tokens)
        if self.config.build.quantization == "fp8":
            return (*self._quantize("target", model_dir), *heads, "--max_draft_len", num_nodes)
        command = [*self._converter("medusa", "target", model_dir), "--pp_size", self._pp_size]
        return (*command, "--model_type", model_type, *heads, "--max_medusa_token_len", num_nodes, *self._quantised)

    def convert_eagle(self, model_dir: str, draft_dir: str) -> tuple[str, ...]:
        """Target and EAGLE-1/2 draft in one checkpoint. num_eagle_layers is the depth of the tree, not of the draft."""
        spec = self.config.speculation
        command = [*self._converter("eagle", "target", model_dir), "--pp_size", self._pp_size]
        command += ["--eagle_model_dir", draft_dir, "--max_draft_len", str(spec.max_total_draft_tokens)]
        command += ["--num_eagle_layers", str(spec.max_draft_len)]
        return (*command, "--max_non_leaves_per_layer", str(max_non_leaves(self.config)), *self._quantised)

    def convert_redrafter(self, model_dir: str, drafter_dir: str) -> tuple[str, ...]:
        """Target and ReDrafter in one checkpoint; the target is in converted form where the version splits."""
        redrafter, splits = self.config.speculation.redrafter, splits_redrafter(self.config)
        source = ("--base_model_checkpoint_dir", self.checkpoint("base")) if splits else ("--model_dir", model_dir)
        command = [*self._converter("redrafter", "target", source[1], source[0]), "--drafter_model_dir", drafter_dir]
        command += ["--redrafter_num_beams", str(redrafter.num_beams)]
        return (*command, "--redrafter_draft_len_per_beam", str(redrafter.draft_len_per_beam))

    def build_engine(self, role: str) -> tuple[str, ...]:
        """trtllm-build for the target or for a draft model's own engine, which takes no flags of speculation."""
        build, spec = self.config.build, self.config.speculation
        method = spec.method if role == "target" else "none"
        command = ["trtllm-build", "--checkpoint_dir", self.checkpoint(role), "--output_dir", self.engine(role)]
        command += ["--max_batch_size", str(build.max_batch_size), "--max_input_len", str(max_input_len(self.config))]
        command += ["--max_seq_len", str(build.max_seq_len), "--max_num_tokens", str(build.max_num_tokens)]
        command += ["--max_beam_width", "1"]
        if method in MODES:
            command += ["--speculative_decoding_mode", MODES[method]]
        if method in ("draft_model", "lookahead"):  # for the others the checkpoint says it
            command += ["--max_draft_len", str(spec.max_total_draft_tokens)]
        command += ["--kv_cache_type", "paged", "--remove_input_padding", "enable", "--context_fmha", "enable"]
        has_fp8_cache = role == "target" and build.kv_cache_dtype == "fp8"
        command += ["--use_paged_context_fmha", _switch(uses_paged_context(self.config))]
        command += ["--use_fp8_context_fmha", _switch(has_fp8_cache)]
        command += ["--gemm_plugin", "auto", "--gpt_attention_plugin", "auto", "--multiple_profiles", "disable"]
        command += ["--workers", str(world_size(self.config)), "--log_level", "info"]
        cache = f"{self.work}/model.cache"  # without it trtllm-build writes one into the working directory
        return (*command, "--input_timing_cache", cache, "--output_timing_cache", cache)

    def _converter(self, folder: str, role: str, model_dir: str, model_flag: str = "--model_dir") -> list[str]:
        """A converter, and the flags that all of them have."""
        command = ["python3", f"{self.examples}/{folder}/convert_checkpoint.py", model_flag, model_dir]
        command += ["--output_dir", self.checkpoint(role), "--dtype", self.config.target.dtype]
        tp_size = str(self.config.build.tensor_parallel_size)
        return [*command, "--tp_size", tp_size, "--workers", str(world_size(self.config))]

    def _quantize(self, role: str, model_dir: str) -> tuple[str, ...]:
        """fp8 weights by calibration, with examples/quantization/quantize.py; the output is a converted checkpoint."""
        build = self.config.build
        command = ["python3", f"{self.examples}/quantization/quantize.py", "--model_dir", model_dir]
        command += ["--output_dir", self.checkpoint(role), "--dtype", self.config.target.dtype, "--qformat", "fp8"]
        if build.kv_cache_dtype == "fp8":
            command += ["--kv_cache_dtype", "fp8"]
        return (*command, "--tp_size", str(build.tensor_parallel_size), "--pp_size", self._pp_size, *self._calibration)

    @property
    def _pp_size(self) -> str:
        return str(self.config.build.pipeline_parallel_size)

    @property
    def _quantised(self) -> tuple[str, ...]:
        flags: list[str] = []
        if self.config.build.quantization in ("int8_weight_only", "int4_weight_only"):
            flags += ["--use_weight_only", "--weight_only_precision", self.config.build.quantization.partition("_")[0]]
        if self.config.build.quantization == "fp8_rowwise":
            flags.append("--use_fp8_rowwise")
        if self.config.build.kv_cache_dtype == "int8":
            flags += ["--int8_kv_cache", *self._calibration]
        return tuple(flags)

    @property
    def _calibration(self) -> tuple[str, ...]:
        dataset = self.config.build.calibration_dataset
        return () if dataset is None else ("--calib_dataset", dataset)


# --- what follows from the run ---------------------------------------------------------------------------------------


def world_size(config: RunConfig) -> int:
    """GPUs, and ranks of an engine."""
    return (config.build.tensor_parallel_size or 1) * (config.build.pipeline_parallel_size or 1)


def max_input_len(config: RunConfig) -> int:
    """Longest prompt: it leaves room for one token, and fits into one step, since prompts are not cut into chunks."""
    return min(config.build.max_seq_len - 1, config.build.max_num_tokens)


def uses_paged_context(config: RunConfig) -> bool:
    """Whether the context phase reads the paged KV cache: reuse and external drafts need it, int8 excludes it."""
    return config.build.kv_cache_dtype != "int8"


def max_non_leaves(config: RunConfig) -> int:
    """Most nodes of one level of the tree that have children; 1 for a chain."""
    tree = config.speculation.tree
    if tree is None or not tree.choices:
        return 1
    parents = {choice[:-1] for choice in tree.choices if len(choice) > 1}
    return max((sum(len(other) == len(parent) for other in parents) for parent in parents), default=1)


def splits_redrafter(config: RunConfig) -> bool:
    """Whether the version converts a ReDrafter's target first."""
    return _version(config) >= _SPLIT_REDRAFTER


def converter_folder(config: RunConfig, model_type: str) -> str:
    """The folder of the converter of an architecture.

    Raises:
        CapabilityError: none is known, or the pinned version's does not take the architecture.
    """
    since = CONVERTED_SINCE.get(model_type)
    if since is not None and _version(config) < since:
        raise CapabilityError(
            f"the converter of TensorRT-LLM {config.build.tensorrt_llm_version} does not take {model_type}",
            where="target.checkpoint",
            got=model_type,
            remedy=f"set build.tensorrt_llm_version to {since} or later",
        )
    if model_type in CONVERTERS:
        return CONVERTERS[model_type]
    raise CapabilityError(
        "no converter to TensorRT engines is known here for this architecture",
        where="target.checkpoint",
        got=model_type,
        expected="one of " + ", ".join(CONVERTERS),
        remedy="set build.target to llmapi",
    )


def check_head_target(config: RunConfig, model_type: str) -> None:
    """Raises CapabilityError where the converter of the run's heads does not take such a target."""
    method = config.speculation.method
    known = HEAD_TARGETS.get(method)
    if known is None:
        return
    if method == "redrafter" and not splits_redrafter(config):
        known = ("llama",)
    if model_type not in known:
        later = "; Qwen2 targets from 1.0 on" if method == "redrafter" and "qwen2" not in known else ""
        raise CapabilityError(
            f"the {method} converter of TensorRT-LLM {config.build.tensorrt_llm_version} does not take this target",
            where="target.checkpoint",
            got=model_type,
            expected="one of " + ", ".join(known),
            remedy=f"use such a target, or set build.target to llmapi or torch with another method{later}",
        )


def _version(config: RunConfig) -> Version:
    return versions.parse(config.build.tensorrt_llm_version or "")


def _switch(value: bool) -> str:
    return "enable" if value else "disable"
