"""Weights in the panels that the kernels read."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from trt_spec.runtime.kernels.library import DTYPES, Library, Packed

ALIGNMENT = 64  # bytes


class PackedWeight:
    """A weight in panels, and the products with it.

    Args:
        weight: [out, in]; with `is_gated` the gate's rows, then those of the up projection.
        bias: [out], or None.
    """

    def __init__(self, library: Library, weight: Tensor, bias: Tensor | None = None, is_gated: bool = False):
        self.library = library
        num_rows, in_features = weight.shape
        assert bias is None or bias.shape == (num_rows,), (weight.shape, bias.shape)
        self.out_features = num_rows // 2 if is_gated else num_rows
        per_panel = library.width if is_gated else 2 * library.width
        num_panels = -(-self.out_features // per_panel)
        self.struct = Packed(DTYPES[weight.dtype], in_features, self.out_features, num_panels, is_gated)
        self._panels = aligned_bytes(library.c.trt_spec_panel_bytes(ctypes.byref(self.struct)))
        self._bias = None if bias is None else self._in_panels(bias.float(), num_panels, is_gated)
        self.struct.panels = self._panels.data_ptr()
        self.struct.bias = None if self._bias is None else self._bias.data_ptr()
        rows = weight.contiguous()
        library.c.trt_spec_pack(ctypes.byref(self.struct), ctypes.c_void_p(rows.data_ptr()), ctypes.c_int64(num_rows))

    def _in_panels(self, values: Tensor, num_panels: int, is_gated: bool) -> Tensor:
        """[out] in the order of the panels' outputs [panels, 2 W], zeros behind the last."""
        parts = values.chunk(2) if is_gated else (values,)
        width = 2 * self.library.width // len(parts)
        padded = [torch.nn.functional.pad(part, (0, num_panels * width - len(part))) for part in parts]
        return torch.cat([part.view(num_panels, width) for part in padded], dim=1).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, in] -> [N, out] in x's dtype; summed in float32, in one order for any N."""
        assert x.dim() == 2, x.shape
        assert x.shape[1] == self.struct.in_features, (x.shape, self.struct.in_features)
        given = x.to(torch.float32).contiguous()
        out = torch.empty(len(given), self.out_features)
        self.library.c.trt_spec_linear(
            ctypes.byref(self.struct),
            ctypes.c_void_p(given.data_ptr()),
            ctypes.c_void_p(out.data_ptr()),
            len(given),
            torch.get_num_threads(),
        )
        return out.to(x.dtype)


def aligned_bytes(count: int) -> Tensor:
    """[count] bytes that begin on a cache line; zeros."""
    memory = torch.zeros(count + ALIGNMENT, dtype=torch.uint8)
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + count]
