"""The one module that imports TensorRT-LLM: `LLM` and its results, reduced to what the served model needs.

Imports it when an engine is opened, never before. Names and behaviour are those of tensorrt_llm 1.0 to 1.4.0rc4 as
read in its sources (llmapi/llm.py, sampling_params.py, executor/result.py, triton_backend/all_models/llmapi); the tests
run it against a stand-in with the same signatures. It was never run against the library itself.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_spec.config import versions
from trt_spec.config.capabilities import FORCED_ACCEPTANCE
from trt_spec.errors import MachineError
from trt_spec.runtime.request import KvCacheUse

ARGUMENTS_FILE = "llm_args.yaml"
# What the library raises of arguments, weights and devices that it cannot use; pydantic's are ValueErrors, CUDA's
# RuntimeErrors.
LOAD_ERRORS = (AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Metrics:
    """What TensorRT-LLM measured of one request; None where it did not.

    Attributes:
        total_draft_tokens, total_accepted_draft_tokens: of the whole request.
        queue_ns: from arrival to the first step.
        kv_cache: blocks of the paged cache.
    """

    total_draft_tokens: int | None = None
    total_accepted_draft_tokens: int | None = None
    queue_ns: int | None = None
    kv_cache: KvCacheUse | None = None


@dataclass(frozen=True)
class Update:
    """What one response adds to a request.

    Attributes:
        token_ids: new ones.
        logprobs: theirs, where asked for.
        finish_reason: stop, length, timeout or cancelled; None while it goes on.
        metrics: with the last one.
    """

    token_ids: list[int]
    logprobs: list[float] | None = None
    finish_reason: str | None = None
    metrics: Metrics | None = None


def read_arguments(engine_dir: Path) -> dict[str, Any]:
    """The arguments of `LLM` from an engine directory, with the paths that they hold made absolute."""
    import yaml  # comes with TensorRT-LLM

    arguments = yaml.safe_load((Path(engine_dir) / ARGUMENTS_FILE).read_text(encoding="utf-8"))
    arguments["model"] = str(Path(engine_dir) / arguments["model"])
    speculative = arguments.get("speculative_config") or {}
    if "speculative_model_dir" in speculative:
        speculative["speculative_model_dir"] = str(Path(engine_dir) / speculative["speculative_model_dir"])
    return arguments


def is_compatible(found: str, written_for: str) -> bool:
    """Whether arguments for one version are arguments for another: the same, or two releases of one line."""
    one, other = versions.parse(found), versions.parse(written_for)
    if one.public == other.public:
        return True
    return not one.is_prerelease and not other.is_prerelease and versions.line_of(one) == versions.line_of(other)


class TrtLlm:
    """An open `tensorrt_llm.LLM`. Use `open`."""

    def __init__(self, library: Any, llm: Any) -> None:
        self._library, self._llm = library, llm

    @classmethod
    def open(cls, engine_dir: Path, version: str) -> TrtLlm:
        """Loads the model of a built llmapi engine, whose arguments were written for `version`; takes minutes.

        Raises:
            MachineError: TensorRT-LLM is not installed here, or is another version, or refuses the arguments; or the
                environment makes it accept drafts unseen.
        """
        if FORCED_ACCEPTANCE in os.environ:
            raise MachineError(
                "TensorRT-LLM would accept drafts without judging them",
                where=FORCED_ACCEPTANCE,
                got=os.environ[FORCED_ACCEPTANCE],
                remedy="unset it; it is for benchmarks of the system, and its answers are not the target's",
            )
        try:
            import tensorrt_llm
            from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict
        except ImportError as error:
            raise MachineError(
                "TensorRT-LLM is not installed here",
                got=str(error),
                expected=f"tensorrt_llm {version}",
                remedy="serve it in the container that trt-spec plan names",
            ) from error
        found = str(tensorrt_llm.__version__)
        if not is_compatible(found, version):
            raise MachineError(
                "the engine's arguments were written for another version of TensorRT-LLM",
                where=str(engine_dir),
                got=found,
                expected=version,
                remedy=f"set build.tensorrt_llm_version to {found} and build again, or use the container of {version}",
            )
        # The same conversion that trtllm-serve and TensorRT-LLM's own Triton model do with a YAML file.
        arguments = update_llm_args_with_extra_dict({}, read_arguments(engine_dir))
        try:
            return cls(tensorrt_llm, tensorrt_llm.LLM(**arguments))
        except LOAD_ERRORS as error:
            raise MachineError(
                "TensorRT-LLM could not load the model",
                where=str(engine_dir),
                got=f"{type(error).__name__}: {error}",
                remedy=f"see the server's log above, and {engine_dir}/{ARGUMENTS_FILE}",
            ) from error

    def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any]) -> Generation:
        """Starts a request with arguments of `SamplingParams`; for the thread of the event loop that will read it."""
        if "embedding_bias" in sampling:
            import torch  # versions differ in whether they take a list

            sampling = {**sampling, "embedding_bias": torch.tensor(sampling["embedding_bias"], dtype=torch.float32)}
        params = self._library.SamplingParams(**sampling)
        prompt = {"prompt_token_ids": list(input_ids)}
        return Generation(self._llm.generate_async(prompt, sampling_params=params, streaming=True))

    def close(self) -> None:
        """Frees the GPUs."""
        self._llm.shutdown()


class Generation:
    """A running request: an asynchronous iterator over what each response adds."""

    def __init__(self, output: Any) -> None:
        self._output = output
        self._num_seen = 0

    def abort(self) -> None:
        """Ends it; a last update still comes."""
        self._output.abort()

    async def __aiter__(self) -> AsyncIterator[Update]:
        async for _ in self._output:  # one object, which grows
            yield self._next()

    def _next(self) -> Update:
        completion = self._output.outputs[0]
        start, self._num_seen = self._num_seen, max(self._num_seen, len(completion.token_ids))
        token_ids = list(completion.token_ids[start:])
        is_last = bool(self._output.finished)
        return Update(
            token_ids,
            logprobs=_logprobs(token_ids, completion.logprobs[start:]) if completion.logprobs else None,
            finish_reason=(completion.finish_reason or "cancelled") if is_last else None,
            metrics=_metrics(getattr(completion, "request_perf_metrics", None)) if is_last else None,
        )


def _logprobs(token_ids: Sequence[int], entries: Sequence[Any]) -> list[float] | None:
    """The chosen tokens' own; an entry is a number, or a mapping from token to `Logprob`."""
    values = []
    for token, entry in zip(token_ids, entries, strict=False):
        found = entry.get(token) if isinstance(entry, Mapping) else entry
        if found is None:
            return None
        values.append(float(getattr(found, "logprob", found)))
    return values if len(values) == len(token_ids) else None


def _metrics(found: Any) -> Metrics | None:
    if found is None:
        return None
    speculative, timing = getattr(found, "speculative_decoding", None), getattr(found, "timing_metrics", None)
    cache = getattr(found, "kv_cache_metrics", None)
    return Metrics(
        total_draft_tokens=_int(speculative, "total_draft_tokens"),
        total_accepted_draft_tokens=_int(speculative, "total_accepted_draft_tokens"),
        queue_ns=_queue_ns(timing),
        kv_cache=KvCacheUse(
            reused_block=_int(cache, "num_reused_blocks"),
            missed_block=_int(cache, "num_missed_blocks"),
            alloc_new_blocks=_int(cache, "num_new_allocated_blocks"),
            alloc_total_blocks=_int(cache, "num_total_allocated_blocks"),
            hit_rate=getattr(cache, "kv_cache_hit_rate", None),
        ),
    )


def _int(holder: Any, name: str) -> int | None:
    value = getattr(holder, name, None)
    return None if value is None else int(value)


def _queue_ns(timing: Any) -> int | None:
    """Both are `datetime.timedelta` of one clock whose zero is not known; only their difference means something."""
    arrival, scheduled = (getattr(timing, name, None) for name in ("arrival_time", "first_scheduled_time"))
    if arrival is None or scheduled is None:
        return None
    return max(round((scheduled - arrival).total_seconds() * 1e9), 0)
