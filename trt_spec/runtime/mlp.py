"""The gated SiLU MLP of Llama-like models, of DeepSeek's dense layers and of its shared experts."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from trt_spec.runtime.linear import Linear, linear_of


class GatedMLP:
    """x -> down(silu(gate(x)) · up(x)), from the tensors {gate,up,down}_proj.{weight,bias} below `prefix`."""

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str):
        self.gate_up = linear_of(tensors, f"{prefix}gate_proj", f"{prefix}up_proj")
        self.down = linear_of(tensors, f"{prefix}down_proj")

    @property
    def linears(self) -> list[Linear]:
        return [self.gate_up, self.down]

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, H] -> [N, H]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))
