"""RMS norm in as few operations as the device allows."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

NormFn = Callable[[Tensor], Tensor]


def make_rms_norm(weight: Tensor, eps: float) -> NormFn:
    """Returns x [..., H] -> x / sqrt(mean(x²) + eps) · weight.

    torch has no fused RMS norm on CPU, but a fused layer norm: [x, −x] has mean 0 and variance mean(x²), so its layer
    norm is the RMS norm of x followed by its negative. That halves the time of a row in bfloat16, and rounds once
    instead of twice.
    """
    size = weight.shape[0]
    if weight.device.type != "cpu" or weight.dtype is torch.float32:
        return lambda x: F.rms_norm(x, (size,), weight, eps)
    doubled = torch.cat((weight, weight))
    return lambda x: torch.layer_norm(torch.cat((x, -x), -1), (2 * size,), doubled, None, eps)[..., :size]
