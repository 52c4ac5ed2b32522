"""A worker over the stand-in for TensorRT-LLM, and requests to it."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.waiting import WAIT_S
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.config.schema import RunConfig
from trt_spec.engines.builder import build
from trt_spec.runtime.admission import EngineLimits
from trt_spec.runtime.request import Chunk, Generation, Request, SamplingParams, join
from trt_spec.triton.trtllm.adapter import TrtLlm
from trt_spec.triton.trtllm.requests import LlmEngine
from trt_spec.triton.trtllm.worker import LlmWorker

STAND_INS = Path(__file__).parents[1] / "stand_ins"
EOS = 2


def llm_engine(line: str = "1.2", placement: str = "two_model", **changes: Any) -> LlmEngine:
    """What the stand-in can serve."""
    limits = EngineLimits(max_batch_size=2, max_seq_len=64, max_num_tokens=64, max_queue_size=2, max_draft_len=3)
    known = {"serves_sampling": True, "vocab_size": 320, "eos_token_ids": (EOS,)}
    return LlmEngine(limits, line, placement, **{**known, **changes})


def llmapi_config(root: Path, method: str = "ngram", version: str = "1.2.1", **build_keys: Any) -> RunConfig:
    """A run on a tiny checkpoint below `root`."""
    if not (root / "checkpoint").exists():
        tiny.llama_checkpoint(root / "checkpoint")
    return RunConfig.model_validate(
        {
            "name": f"served-{method}",
            "target": {"checkpoint": str(root / "checkpoint"), "dtype": "float32"},
            "speculation": {"method": method, **({"max_draft_len": 3} if method != "none" else {})},
            "build": {
                "target": "llmapi",
                "tensorrt_llm_version": version,
                "max_batch_size": 8,
                "max_queue_size": 4,
                "max_seq_len": 4000,
                **build_keys,
            },
        }
    )


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in as `tensorrt_llm` of this process."""
    monkeypatch.syspath_prepend(str(STAND_INS))
    import tensorrt_llm

    yield tensorrt_llm
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    """A built llmapi engine."""
    return build(llmapi_config(tmp_path), engines_dir=tmp_path / "engines").engine_dir


@contextmanager
def running(engine_dir: Path, engine: LlmEngine | None = None) -> Iterator[LlmWorker]:
    """A started worker, closed at the end."""
    tokenizer = Tokenizer.load(engine_dir / "target")
    worker = LlmWorker(lambda: TrtLlm.open(engine_dir, "1.2.1"), engine or llm_engine(), tokenizer).start()
    try:
        yield worker
    finally:
        worker.close()


def request(
    ids: tuple[int, ...] = (5, 6), request_id: str = "r", *, speculation: bool = True, **params: Any
) -> Request:
    return Request(request_id, ids, SamplingParams(**{"max_tokens": 10, **params}), speculation)


def submit(worker: LlmWorker, asked: Request) -> queue.Queue[Chunk]:
    chunks: queue.Queue[Chunk] = queue.Queue()
    worker.submit(asked, chunks.put)
    return chunks


def collect(chunks: queue.Queue[Chunk]) -> list[Chunk]:
    """All chunks of one request."""
    seen = [chunks.get(timeout=WAIT_S)]
    while not seen[-1].is_last:
        seen.append(chunks.get(timeout=WAIT_S))
    return seen


def generate(worker: LlmWorker, asked: Request) -> Generation:
    return join(collect(submit(worker, asked)))


def greedy_ids(step: Callable[[int, int], int], prompt: tuple[int, ...], count: int) -> list[int]:
    """What the stand-in's model says after a prompt, computed here."""
    ids = [0, *prompt]
    for _ in range(count):
        ids.append(step(ids[-2], ids[-1]))
    return ids[len(prompt) + 1 :]
