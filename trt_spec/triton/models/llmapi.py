"""The served model of the llmapi target: hosts tensorrt_llm.LLM in Triton's Python stub, see host.streaming.

Same inputs and outputs as the torch target, but for those that TensorRT-LLM does not tell: see trtllm.worker. Runs in a
container of TensorRT-LLM in which trt_spec is installed; imports the library when the model is loaded.
"""

from __future__ import annotations

from pathlib import Path

import triton_python_backend_utils as pb_utils

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.triton import repository
from trt_spec.triton.host.streaming import StreamingModel
from trt_spec.triton.metrics import LLMAPI, EngineMetrics
from trt_spec.triton.trtllm.adapter import TrtLlm
from trt_spec.triton.trtllm.requests import LlmEngine
from trt_spec.triton.trtllm.worker import LlmWorker


class TritonPythonModel(StreamingModel):
    """Triton looks for this class by name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the engine, after everything that the configuration says of it was found to be true."""
        parameters = repository.checked_parameters(args, "llmapi")
        engine_dir, version = Path(parameters["engine_dir"]), parameters["tensorrt_llm_version"]
        tokenizer = Tokenizer.load(engine_dir / "target")
        engine = LlmEngine.of(repository.read_manifest(engine_dir), tokenizer.eos_token_ids)
        worker = LlmWorker(lambda: TrtLlm.open(engine_dir, version), engine, tokenizer).start()
        metrics = EngineMetrics(pb_utils, worker, args["model_name"], LLMAPI)
        self.host_engine(pb_utils, worker, tokenizer, metrics, args)
