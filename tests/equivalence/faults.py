"""Faults that are seeded into a copy of the package, as one who breaks it would: a line is changed, nothing else.

`trt-spec verify` of the copy judges itself, or, for faults of the server, the untouched package judges the copy's
server.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import trt_spec

PACKAGE = Path(trt_spec.__file__).parent


@dataclass(frozen=True)
class Fault:
    """Replaces `old`, which is there once, by `new` in one file of the package.

    Attributes:
        kind: kernel, cache, sampler, acceptance or server.
        is_served: it only shows in what a server sends.
    """

    name: str
    kind: str
    path: str
    old: str
    new: str
    is_served: bool = False

    def seed(self, root: Path) -> Path:
        """Copies the package into `root` with this fault, and returns `root`, to be put on the path."""
        shutil.copytree(PACKAGE, root / "trt_spec", ignore=shutil.ignore_patterns("__pycache__"))
        file = root / "trt_spec" / self.path
        text = file.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{self.name}: {self.old!r} is there {text.count(self.old)} times"
        file.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return root


FAULTS = (
    Fault(
        "the last draft row does not see the token before it",
        "kernel",
        "runtime/batch.py",
        "        visible[index, item.num_rows :] = visible[index, :1]\n",
        "        visible[index, item.num_rows :] = visible[index, :1]\n"
        "        if item.parents:\n            visible[index, item.num_rows - 1, item.start - 1] = False\n",
    ),
    Fault(
        "attention of several rows is scaled by 1.05",
        "kernel",
        "runtime/attention.py",
        "attn_mask=mask, scale=self.scale)",
        "attn_mask=mask, scale=self.scale * (1.05 if rows > 1 else 1))",
    ),
    Fault(
        "rotary positions are 1 % short, in the engine and in its own reference",
        "kernel",
        "runtime/rope.py",
        "return self.cos[positions, None], self.sin[positions, None]",
        "return self.cos[positions * 99 // 100, None], self.sin[positions * 99 // 100, None]",
    ),
    Fault(
        "draft rows are one position ahead",
        "kernel",
        "runtime/batch.py",
        "(self.first_node + depth for depth in depths)",
        "(self.first_node + depth + 1 for depth in depths)",
    ),
    Fault(
        "a row of a rejected draft overwrites the last kept one",
        "cache",
        "runtime/engine.py",
        "            sequence.num_cached_tokens = len(sequence.token_ids) + len(path)\n",
        "            sequence.num_cached_tokens = len(sequence.token_ids) + len(path)\n"
        "            if len(item.draft.token_ids) > len(path):\n"
        "                last = sequence.slot * self.cache.slot_len + sequence.num_cached_tokens - 1\n"
        "                self.cache.rows[:, last] = self.cache.rows[:, last + 1]\n",
    ),
    Fault(
        "a sequence that changes its slot leaves its last token behind",
        "cache",
        "runtime/kv_cache.py",
        "self.by_slot[:, destination, :num_tokens] = self.by_slot[:, source, :num_tokens]",
        "self.by_slot[:, destination, : num_tokens - 2] = self.by_slot[:, source, : num_tokens - 2]",
    ),
    Fault(
        "top-p keeps 0.05 more",
        "sampler",
        "runtime/sampling.py",
        "probs.where(probs >= nucleus_threshold(probs, params.top_p), 0)",
        "probs.where(probs >= nucleus_threshold(probs, params.top_p + 0.05), 0)",
    ),
    Fault(
        "random numbers lean towards 0",
        "sampler",
        "runtime/randomness.py",
        "return (bits >> 11) * 2.0**-53",
        "return ((bits >> 11) * 2.0**-53) ** 1.2",
    ),
    Fault(
        "random numbers change with every second token",
        "sampler",
        "runtime/randomness.py",
        "counter=(draw.index, int(draw.role), draw.step, 0)",
        "counter=(draw.index, int(draw.role), draw.step // 2, 0)",
    ),
    Fault(
        "outputs end three tokens before their limit",
        "server",
        "runtime/sequence.py",
        "        elif self.room <= 0:\n",
        "        elif self.room <= 3:\n",
    ),
    Fault(
        "the row after the last draft token is sampled at 0.85 of the temperature",
        "sampler",
        "runtime/verification.py",
        "        params = self.sequence.request.params\n",
        "        params = self.sequence.request.params\n"
        "        if len(logits) > 1:\n            logits = logits.clone()\n            logits[-1] /= 0.85\n",
    ),
    Fault(
        "a rejected draft is replaced by a sample of p",
        "acceptance",
        "runtime/acceptance.py",
        "            probs = residual(probs, token, draft_probs)\n            tried",
        "            tried",
    ),
    Fault(
        "drafts are accepted 0.05 too often",
        "acceptance",
        "runtime/acceptance.py",
        "            if stream.flip(ratio, Role.ACCEPT, child):",
        "            if stream.flip(ratio + 0.05, Role.ACCEPT, child):",
    ),
    Fault(
        "the bonus token comes from the row before",
        "acceptance",
        "runtime/acceptance.py",
        "        probs, accepted = target.probs[node + 1], None",
        "        probs, accepted = target.probs[node + 1 if node == ROOT or node in branches else node], None",
    ),
    Fault(
        "requests share four random streams",
        "server",
        "triton/codec.py",
        "    return SamplingParams(**given)",
        '    given["seed"] = given.get("seed", 0) % 4\n    return SamplingParams(**given)',
        is_served=True,
    ),
    Fault(
        "the second token of a long step is not sent",
        "server",
        "triton/codec.py",
        "    last = chunks[-1]\n    has_logprobs",
        "    for chunk in chunks:\n        if len(chunk.token_ids) > 2:\n"
        "            for part in (chunk.token_ids, chunk.token_origins, chunk.logprobs or [0, 0]):\n"
        "                del part[1]\n    last = chunks[-1]\n    has_logprobs",
        is_served=True,
    ),
    Fault(
        "the temperature is rounded to a whole number",
        "server",
        "triton/codec.py",
        "    return SamplingParams(**given)",
        '    given["temperature"] = float(round(given.get("temperature", 0)))\n    return SamplingParams(**given)',
        is_served=True,
    ),
)
