"""What goes wrong with one request ends nothing else: this process serves others too."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from trt_spec.triton.errortext import to_response

T = TypeVar("T")


def isolated(work: Callable[[], T], on_error: Callable[[Exception], T]) -> T:
    """Does something for one request or client; whatever it raises is told to `on_error` alone."""
    try:
        return work()
    except Exception as error:  # isolation of requests: anything at all, or the thread ends that the others need
        return on_error(error)


def arrays_of(tensors: Iterable[Any]) -> dict[str, np.ndarray]:
    """The values of Triton's tensors, by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in tensors}


def respond(request: Any, answer: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]], pb_utils: Any) -> Any:
    """The response that says what `answer` makes of a request's inputs, tensors by name, or what went wrong."""

    def work() -> Any:
        found = answer(arrays_of(request.inputs()))
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in found.items()])

    return isolated(work, lambda error: to_response(error, pb_utils))


def send(sender: Any, response: Any, pb_utils: Any, *, is_last: bool = True) -> None:
    """Sends one response; the last one says so. A client that is gone is no reason to stop serving the others."""
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0

    def log(error: Exception) -> None:
        text = "".join(traceback.format_exception(error, limit=1))
        pb_utils.Logger.log_warn(f"trt_spec: a response could not be sent: {text}")

    isolated(lambda: sender.send(response, flags=flags), log)
