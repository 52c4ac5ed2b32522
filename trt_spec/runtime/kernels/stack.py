"""Decoder layers as one compiled call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from trt_spec.runtime.kernels import library as c
from trt_spec.runtime.kernels.library import DTYPES

if TYPE_CHECKING:
    from trt_spec.checkpoints.llama import LlamaConfig
    from trt_spec.runtime.attention import ForwardContext, GroupedQueryAttention
    from trt_spec.runtime.linear import Linear
    from trt_spec.runtime.mlp import GatedMLP
    from trt_spec.runtime.norm import RmsNorm


class LlamaLayer(Protocol):
    """What is compiled: `models.llama.LlamaLayer`."""

    qkv: Linear
    output: Linear
    mlp: GatedMLP
    attention: GroupedQueryAttention
    input_norm: RmsNorm | None
    post_norm: RmsNorm
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None


def compiled_stack(
    config: LlamaConfig, layers: Sequence[LlamaLayer], final_norm: RmsNorm | None = None
) -> CompiledStack | None:
    """The layers as one call where their weights are packed for the kernels, else None."""
    return None if layers[0].qkv.packed is None else CompiledStack(config, layers, final_norm)


class CompiledStack:
    """Llama-like decoder layers, and the norm behind the last, in one call per step.

    Args:
        layers: whose linear layers are packed.
        final_norm: None where the residual stream behind the last layer is the result.
    """

    def __init__(self, config: LlamaConfig, layers: Sequence[LlamaLayer], final_norm: RmsNorm | None = None):
        self.library = layers[0].qkv.packed.library
        self.layers, self.final_norm = layers, final_norm  # keeps what the structs point to
        self._structs = (c.Layer * len(layers))(*(_struct(layer) for layer in layers))
        self._stack = c.Stack(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            len(layers),
            layers[0].mlp.down.in_features,
            layers[0].post_norm.eps,
            layers[0].attention.scale,
            self._structs,
            None if final_norm is None else final_norm.weight.data_ptr(),
        )

    def __call__(
        self,
        x: Tensor,
        context: ForwardContext,
        indices: Sequence[int],
        capture: Sequence[int] = (),
        normed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Runs the layers on residual rows x [N, H] and writes their keys and values.

        Args:
            indices: of the cache's layers.
            capture: layers whose input is returned; the number of layers for the stream behind the last.
            normed: [N, width] the first layer's normed input, where it does not norm x itself.

        Returns:
            [N, H], and the captured streams [N, C · H] or None; in float32.
        """
        batch, caches = context.batch, [context.cache.layers[index] for index in indices]
        x = x.to(torch.float32).contiguous()
        normed = None if normed is None else normed.to(torch.float32).contiguous()
        self._check(x, normed, caches, context)
        (num_rows, hidden_size), seen = x.shape, batch.visibility
        order = [layer for layer in range(len(self.layers) + 1) if layer in capture]
        captured = torch.empty(num_rows, len(order) * hidden_size) if order else None
        out, captured_layers = torch.empty_like(x), torch.tensor(order, dtype=torch.int32)
        num_floats = self.library.c.trt_spec_workspace_floats(ctypes.byref(self._stack), ctypes.c_int64(num_rows))
        workspace = torch.empty(num_floats)
        bases = (ctypes.c_void_p * len(caches))(*(rows.data_ptr() for rows in caches))
        step = c.Step(
            num_rows,
            len(order),
            0 if normed is None else normed.shape[1],
            caches[0].shape[1],
            DTYPES[caches[0].dtype],
            0,
            x.data_ptr(),
            None if normed is None else normed.data_ptr(),
            ctypes.addressof(bases),
            batch.cache_rows.data_ptr(),
            seen.slot_starts.data_ptr(),
            seen.prefixes.data_ptr(),
            seen.extra_starts.data_ptr(),
            seen.extras.data_ptr(),
            context.cos.data_ptr(),
            context.sin.data_ptr(),
            captured_layers.data_ptr(),
            None if captured is None else captured.data_ptr(),
            out.data_ptr(),
            workspace.data_ptr(),
        )
        self.library.c.trt_spec_forward(ctypes.byref(self._stack), ctypes.byref(step), torch.get_num_threads())
        return out, captured

    def _check(self, x: Tensor, normed: Tensor | None, caches: Sequence[Tensor], context: ForwardContext) -> None:
        """What the kernels take for granted: they would read past the end of anything else."""
        stack, first = self._stack, self.layers[0].qkv.in_features
        assert len(caches) == len(self.layers), (len(caches), len(self.layers))
        assert all(rows.is_contiguous() and rows.dtype is caches[0].dtype for rows in caches)
        assert caches[0].shape[1] == 2 * stack.num_kv_heads * stack.head_dim, caches[0].shape
        assert x.shape[1] == stack.hidden_size == self.layers[0].output.out_features, x.shape
        assert (x if normed is None else normed).shape == (len(x), first), (x.shape, first)
        for table in (context.cos, context.sin):
            assert table.shape == (len(x), 1, stack.head_dim), table.shape
            assert table.dtype is torch.float32, table.dtype


def _struct(layer: LlamaLayer) -> c.Layer:
    linears = [linear.packed.struct for linear in (layer.qkv, layer.output, *layer.mlp.linears)]
    norms = (layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm)
    return c.Layer(*linears, *(None if norm is None else norm.weight.data_ptr() for norm in norms))
