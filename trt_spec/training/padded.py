"""A batch of samples, padded on the right to one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trt_spec.training.feature_cache import Sample


@dataclass(frozen=True)
class Padded:
    """B samples of at most L tokens.

    Attributes:
        token_ids: [B, L]; padding is id 0.
        lengths: [B] tokens of each sample.
        num_prompt: [B] tokens before its reply.
        last: [B, L, H] states behind the final norm.
        aux: [B, L, C · H] captured layers, or None.
    """

    token_ids: Tensor
    lengths: Tensor
    num_prompt: Tensor
    last: Tensor
    aux: Tensor | None

    @classmethod
    def of(cls, samples: Sequence[Sample], dtype: torch.dtype, device: torch.device) -> Padded:
        """Pads samples and moves them to `device`, the states in `dtype`."""

        def padded(tensors: Sequence[Tensor], kind: torch.dtype) -> Tensor:
            return pad_sequence(list(tensors), batch_first=True).to(device, kind)

        has_aux = samples[0].aux is not None
        return cls(
            padded([one.token_ids for one in samples], torch.int64),
            torch.tensor([len(one) for one in samples], device=device),
            torch.tensor([one.num_prompt for one in samples], device=device),
            padded([one.last for one in samples], dtype),
            padded([one.aux for one in samples], dtype) if has_aux else None,
        )

    @property
    def first_reply(self) -> int:
        """Where the earliest reply of the batch starts."""
        return int(self.num_prompt.min())

    def predicts_reply(self, distance: int, extra: int = 0) -> Tensor:
        """[B, L]: rows t from which token t + `distance` is predicted while the reply is decoded.

        The last token that a row can know is t + distance − 1 − extra, `extra` of them drafted; it is of the reply, as
        the first token of a reply comes from the prompt's own forward.

        Args:
            distance: from the row to the token that is predicted.
            extra: tokens between the row's known ones and the predicted one that are drafts.
        """
        row = torch.arange(self.token_ids.shape[1], device=self.token_ids.device)
        is_known = row + distance - 1 - extra >= self.num_prompt[:, None]
        return is_known & (row + distance < self.lengths[:, None])
