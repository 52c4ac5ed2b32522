"""The noise floor of a model: how far two shapes of one forward are apart, measured here and now."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trt_spec.equivalence.certificate import Noise
from trt_spec.equivalence.greedy import MIN_TOLERANCE, NOISE_FACTOR
from trt_spec.equivalence.reference.scoring import NativeScorer, Served, Vocabulary, processed
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.models import Model

STEPS = (1e-6, 1e-5, 1e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2)  # coarse, so that runs can be added up
_NUM_RIVALS = 4  # tokens that could change places with the best one


# Where nothing can be measured because the model is not native: what small models show in each dtype.
TYPICAL = {
    "float32": Noise(1e-6, 1e-5, MIN_TOLERANCE, 1e-5, 1e-4),
    "float16": Noise(2e-3, 1e-3, 0.125, 5e-3, 5e-2),
    "bfloat16": Noise(2e-2, 5e-3, 1.0, 4e-2, 0.4),
}


def largest_mean_tv(dtype: str) -> float:
    """More than this between two shapes of one forward is no rounding: one of the two is wrong."""
    return max(1e-4, 3 * TYPICAL[dtype].mean_tv)


@torch.inference_mode()
def measure(model: Model, outputs: Sequence[Served], vocabulary: Vocabulary) -> Noise:
    """Scores outputs packed, as the harness does, and token by token, as plain decoding does.

    Rounding that is as likely to favour a token as not leaves every bet fair; a tolerance has to cover what is left.
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    gaps, off = [], []
    for served, packed in zip(outputs, NativeScorer(model).logits(outputs), strict=True):
        single = _one_by_one(model, served)
        temperature = served.params.temperature or 1.0
        pair = [(processed(x, served, vocabulary) / temperature).softmax(-1) for x in (packed, single)]
        pairs.append((pair[0], pair[1]))
        off += (_logprobs(packed, served) - _logprobs(single, served)).abs().tolist()
        best = packed.topk(_NUM_RIVALS, dim=-1).indices
        one, other = packed.gather(-1, best), single.gather(-1, best)
        gaps.append(float(((one - one[:, :1]) - (other - other[:, :1])).abs().max()))
    p, change = torch.cat([one for one, _ in pairs]), torch.cat([other - one for one, other in pairs])
    typical = torch.special.entr(p).sum(-1, keepdim=True).neg().exp()
    sets = (p == p.amax(-1, keepdim=True), p > typical)
    signed = torch.stack([(change * members).sum(-1) for members in sets])
    bound = float((signed.mean(-1).abs() + 2 * signed.std(-1) / signed.shape[1] ** 0.5).max())
    tolerance = next((step for step in STEPS if step >= bound), STEPS[-1])
    mean_tv = float(0.5 * change.abs().sum(-1).mean())
    greedy_tolerance = max(MIN_TOLERANCE, NOISE_FACTOR * max(gaps))
    return Noise(mean_tv, tolerance, greedy_tolerance, sum(off) / len(off), max(off))


def _logprobs(logits: Tensor, served: Served) -> Tensor:
    """[n] log-probabilities of the served tokens by raw logits [n, V]."""
    return logits.log_softmax(-1)[range(len(logits)), list(served.output_ids)]


def mean_tv(outputs: Sequence[Served], one: Sequence[Tensor], other: Sequence[Tensor], vocabulary: Vocabulary) -> float:
    """Mean TV per token between the laws that two references give, from their raw logits [n, V] per output."""
    distances = []
    for served, *pair in zip(outputs, one, other, strict=True):
        temperature = served.params.temperature or 1.0
        p, other_p = ((processed(x, served, vocabulary) / temperature).softmax(-1) for x in pair)
        distances.append(0.5 * (p - other_p).abs().sum(-1))
    return float(torch.cat(distances).mean())


def _one_by_one(model: Model, served: Served) -> Tensor:
    """Logits [n, V] with the output fed token by token."""
    tokens, start = (*served.prompt_ids, *served.output_ids[:-1]), len(served.prompt_ids)
    cache = model.make_cache(1, len(tokens))
    rows = []
    for begin, end in ((0, start), *((i, i + 1) for i in range(start, len(tokens)))):
        batch = pack([Rows(0, begin, tokens[begin:end])], len(tokens), model.dtype, model.device)
        rows.append(model.logits(model.forward(batch, cache).last[-1:]))
    return torch.cat(rows)
