"""Medusa heads on the target's hidden state: residual blocks, then an output to the vocabulary.

    x = hidden state behind the final norm;  per block x = x + silu(W x + b);  logits = lm_head x

Source: Medusa (Cai et al. 2024, arXiv:2401.10774), FasterDecoding/Medusa model/medusa_model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from trt_spec.checkpoints.medusa import count_heads
from trt_spec.runtime.heads.base import OutputHead
from trt_spec.runtime.linear import Linear, fuse


class MedusaHeads:
    """Heads that each guess one token, from one hidden state and blind to each other.

    Args:
        tensors: by canonical name: heads.{i}.blocks.{j}.linear.{weight, bias} and heads.{i}.lm_head.weight.
        vocab_size: V of the target.
        shared_output: the target's states [N, H] -> logits [N, V], for heads without outputs of their own.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        vocab_size: int,
        shared_output: Callable[[Tensor], Tensor] | None = None,
    ):
        self.vocab_size, self.shared_output = vocab_size, shared_output
        self.num_heads, num_blocks = count_heads(tensors)

        def parts(head: int, block: int) -> tuple[Tensor, Tensor | None]:
            prefix = f"heads.{head}.blocks.{block}.linear."
            return tensors[f"{prefix}weight"], tensors.get(f"{prefix}bias")

        heads = range(self.num_heads)
        first = [parts(head, 0) for head in heads]
        # A head without bias beside one that has it gets zeros in the fused one.
        has_bias = any(bias is not None for _, bias in first)
        biases = [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in first]
        self.first = Linear(fuse(*(weight for weight, _ in first)), fuse(*biases) if has_bias else None)
        self.blocks = [[Linear(*parts(head, block)) for block in range(1, num_blocks)] for head in heads]
        self.outputs = [
            OutputHead(tensors[name], vocab_size)
            for name in (f"heads.{head}.lm_head.weight" for head in heads)
            if name in tensors or shared_output is None
        ]

    def logits(self, hidden_last: Tensor, num_heads: int | None = None) -> Tensor:
        """[R, H] -> [num_heads, R, V] in float32, of the first heads or of all.

        Head i guesses the token i + 2 places after the row's own, which is i + 1 after the target's own next token.
        """
        num_heads = self.num_heads if num_heads is None else min(num_heads, self.num_heads)
        first = F.silu(self.first(hidden_last)).unflatten(-1, (self.num_heads, -1))  # all heads read the same state
        states = []
        for head, blocks in enumerate(self.blocks[:num_heads]):
            x = hidden_last + first[:, head]
            for block in blocks:
                x = x + F.silu(block(x))
            states.append(x)
        if not self.outputs:
            return self.shared_output(torch.cat(states)).unflatten(0, (num_heads, -1))
        return torch.stack([output(x) for output, x in zip(self.outputs, states, strict=False)])
