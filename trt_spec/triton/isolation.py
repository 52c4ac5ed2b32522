"""What goes wrong with one request ends nothing else: this process serves others too."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trt_spec.triton.errortext import to_response


def isolated(work: Callable[[], None], on_error: Callable[[Exception], None]) -> None:
    """Does something for one request or client; whatever it raises is told to `on_error` alone."""
    try:
        work()
    except Exception as error:  # isolation of requests: anything at all, or the thread ends that the others need
        on_error(error)


def respond(answer: Callable[[], Mapping[str, np.ndarray]], pb_utils: Any) -> Any:
    """The response that says what `answer` returns, tensors by name, or what went wrong."""
    responses = []

    def work() -> None:
        tensors = [pb_utils.Tensor(name, array) for name, array in answer().items()]
        responses.append(pb_utils.InferenceResponse(tensors))

    isolated(work, lambda error: responses.append(to_response(error, pb_utils)))
    return responses[0]


def send(sender: Any, response: Any, pb_utils: Any, *, is_last: bool = True) -> None:
    """Sends one response; the last one says so. A client that is gone is no reason to stop serving the others."""
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0

    def log(error: Exception) -> None:
        text = "".join(traceback.format_exception(error, limit=1))
        pb_utils.Logger.log_warn(f"trt_spec: a response could not be sent: {text}")

    isolated(lambda: sender.send(response, flags=flags), log)
