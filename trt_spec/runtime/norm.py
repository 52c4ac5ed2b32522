"""RMS norm in as few operations as the device allows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.runtime.kernels.library import activation_dtype


class RmsNorm:
    """x [..., H] -> x / sqrt(mean(x²) + eps) · weight, on activations of the dtype that goes with the weight's.

    torch has no fused RMS norm on CPU, but a fused layer norm: [x, −x] has mean 0 and variance mean(x²), so its layer
    norm is the RMS norm of x followed by its negative. That halves the time of a row in bfloat16, and rounds once
    instead of twice.
    """

    def __init__(self, weight: Tensor, eps: float):
        self.weight, self.eps = weight.to(activation_dtype(weight.dtype, weight.device)), eps
        is_plain = weight.device.type != "cpu" or self.weight.dtype is torch.float32
        self._doubled = None if is_plain else torch.cat((self.weight, self.weight))

    def __call__(self, x: Tensor) -> Tensor:
        size = len(self.weight)
        if self._doubled is None:
            return F.rms_norm(x, (size,), self.weight, self.eps)
        return torch.layer_norm(torch.cat((x, -x), -1), (2 * size,), self._doubled, None, self.eps)[..., :size]
