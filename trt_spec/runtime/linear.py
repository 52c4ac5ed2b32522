"""Linear layers as the decode step wants them: weights packed once, at load time.

On CPU the compiled kernels read them in panels. Without those, in bfloat16, a weight in oneDNN's own blocked layout is
read about 1.5 times faster than a plain one. Elsewhere (CUDA, float64, no oneDNN) this is
`torch.nn.functional.linear`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.runtime.kernels.library import library_for
from trt_spec.runtime.kernels.packed import PackedWeight


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can hold this weight in its blocked layout on this machine."""
    return (
        weight.device.type == "cpu"
        and weight.dtype is torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


class Linear:
    """x [N, in] -> [N, out] for weight [out, in] and an optional bias [out].

    Attributes:
        packed: the weight as the compiled kernels read it; None where torch computes.
    """

    is_gated = False

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        self.out_features, self.in_features = weight.shape
        library = library_for(weight.dtype, weight.device)
        self.packed = None if library is None else PackedWeight(library, weight, bias, self.is_gated)
        if self.packed is not None:
            self._run: Callable[[Tensor], Tensor] = self.packed
        elif can_pack(weight):
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1)
            run = torch.ops.mkldnn._linear_pointwise.default
            self._run = lambda x: run(x, packed, bias, "none", [], "")
        else:
            self._run = lambda x: F.linear(x, weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x)


class GatedLinear(Linear):
    """x [N, in] -> silu(gate · x) · (up · x) [N, out] for the rows of the gate and then of the up projection."""

    is_gated = True

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            return self.packed(x)
        gate, up = self._run(x).chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


def fuse(*tensors: Tensor | None) -> Tensor | None:
    """Stacks the rows of several weights (or biases) so that one call computes them all; None when there are none."""
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(present) if present else None


def linear_of(tensors: Mapping[str, Tensor], *names: str, kind: type[Linear] = Linear) -> Linear:
    """The layers {name}.weight and, where any has one, {name}.bias, as one; zeros where another has none."""
    weights, biases = ([tensors.get(f"{name}.{part}") for name in names] for part in ("weight", "bias"))
    if any(bias is not None for bias in biases):
        pairs = zip(weights, biases, strict=True)
        biases = [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in pairs]
    return kind(fuse(*weights), fuse(*biases))
