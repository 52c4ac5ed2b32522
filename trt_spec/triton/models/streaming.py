"""The served model of the torch target: hosts the engine in Triton's Python stub, see triton.host.streaming."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from trt_spec.triton.host import threads

threads.spin_briefly()  # before torch is imported

from trt_spec.runtime.loading import load_engine  # noqa: E402
from trt_spec.runtime.worker import EngineWorker  # noqa: E402
from trt_spec.triton import repository  # noqa: E402
from trt_spec.triton.host.streaming import StreamingModel  # noqa: E402
from trt_spec.triton.metrics import EngineMetrics  # noqa: E402


class TritonPythonModel(StreamingModel):
    """Triton looks for this class by name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the engine, after everything that the configuration says of it was found to be true."""
        parameters = repository.checked_parameters(args, "torch")
        worker = EngineWorker(lambda: load_engine(parameters["engine_dir"])).start()
        repository.check_loaded(parameters, worker.engine)
        metrics = EngineMetrics(pb_utils, worker, args["model_name"])
        self.host_engine(pb_utils, worker, worker.engine.tokenizer, metrics, args)
