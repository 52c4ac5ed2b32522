"""The gated SiLU MLP of Llama-like models, of DeepSeek's dense layers and of its shared experts."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from trt_spec.runtime.linear import GatedLinear, Linear, linear_of


class GatedMLP:
    """x -> down(silu(gate(x)) · up(x)), from the tensors {gate,up,down}_proj.{weight,bias} below `prefix`."""

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str):
        self.gate_up = linear_of(tensors, f"{prefix}gate_proj", f"{prefix}up_proj", kind=GatedLinear)
        self.down = linear_of(tensors, f"{prefix}down_proj")

    @property
    def linears(self) -> list[Linear]:
        return [self.gate_up, self.down]

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, H] -> [N, H]."""
        return self.down(self.gate_up(x))
