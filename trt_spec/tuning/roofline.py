"""What a step costs on a GPU that is not here: bytes over bandwidth, plus arithmetic over peak, plus launches.

    T = bytes / (0.8 · bandwidth) + operations / (0.6 · peak) + layers · 18 µs

The two terms are added: kernels that read much and compute much overlap only in part, and adding them is what comes
closest to published throughput (docs/tuning.md says how close). A step reads every weight once, whatever its rows, and
each sequence's cache once; verifying k drafts adds arithmetic, and hardly a byte. Source: the roofline model
(Williams, Waterman, Patterson 2009); peaks and bandwidths are those of the data sheets, dense.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trt_spec.errors import UsageError
from trt_spec.tuning.model_shapes import ModelShape

MEMORY_EFFICIENCY, COMPUTE_EFFICIENCY = 0.8, 0.6  # of data sheets, as large kernels reach them
LAYER_OVERHEAD_US = 18.0  # launches and gaps of one layer, with CUDA graphs: from published batch-1 speeds
ALL_REDUCE_US = 10.0  # latency of one; there are two per layer where several GPUs share it
EAGLE3_DRAFT_VOCAB = 32_000  # of the published heads
USABLE_MEMORY = 0.9

# Methods that draft with one layer of the target's kind, again and again: on how many features, projected to one,
# and with which vocabulary (None: the target's).
_HEADS = {"eagle": (2, None), "eagle3": (3, EAGLE3_DRAFT_VOCAB), "mtp": (2, None)}
_METHODS = ("draft_model", "ngram", "medusa", *_HEADS)

Weights = Literal["bf16", "fp8", "int8", "int4"]
WEIGHT_BYTES: dict[str, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True)
class Gpu:
    """Memory bandwidth in GB/s, dense peaks in TFLOP/s, memory in GB, and GB/s to its neighbours, one way."""

    bandwidth: float
    peak16: float
    peak8: float
    memory: float
    link: float


GPUS: dict[str, Gpu] = {
    "B200": Gpu(8000, 2250, 4500, 180, 900),
    "H200": Gpu(4800, 989, 1979, 141, 450),
    "H100": Gpu(3350, 989, 1979, 80, 450),
    "H100-PCIE": Gpu(2000, 756, 1513, 80, 64),
    "A100": Gpu(2039, 312, 312, 80, 300),
    "A100-40GB": Gpu(1555, 312, 312, 40, 300),
    "L40S": Gpu(864, 362, 733, 48, 32),
    "L4": Gpu(300, 121, 242, 24, 32),
    "A10": Gpu(600, 125, 125, 24, 32),
    "RTX-4090": Gpu(1008, 165, 330, 24, 32),
    "RTX-3090": Gpu(936, 71, 71, 24, 32),
}


def find_gpu(name: str) -> Gpu:
    """The GPU of a name, in any case; UsageError where it is not known."""
    wanted = name.upper().replace(" ", "-").replace("_", "-")
    if wanted not in GPUS:
        raise UsageError("no such GPU is known here", where="--gpu", got=name, expected="one of " + ", ".join(GPUS))
    return GPUS[wanted]


@dataclass(frozen=True)
class Roofline:
    """A cost model (`cost_model.CostModel`) without a measurement.

    Attributes:
        target, method: what runs, and who drafts. `draft` is the shape of a draft_model.
        context: cached tokens of each sequence.
        num_gpus: tensor parallel size, for the target and the drafter alike.
        weights: how weights are stored; fp8 also computes in it. `kv_bytes` per cached number.
    """

    gpu: Gpu
    target: ModelShape
    method: str
    draft: ModelShape | None = None
    context: float = 1024
    num_gpus: int = 1
    weights: Weights = "bf16"
    kv_bytes: float = 2.0
    memory_efficiency: float = MEMORY_EFFICIENCY
    layer_overhead_us: float = LAYER_OVERHEAD_US

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise UsageError(f"no roofline for method {self.method}", expected="one of " + ", ".join(_METHODS))
        if self.max_batch < 1:
            raise UsageError(
                "the weights do not fit into the memory",
                where="--gpu",
                got=f"{self.target.num_params * self._weight_bytes / 1e9:.0f} GB on {self.num_gpus} GPU(s)",
                expected=f"at most {self._room / 1e9:.0f} GB",
                remedy="raise --num-gpus, or store weights in fewer bits: --weights fp8",
            )

    @property
    def max_batch(self) -> int:
        """Sequences whose caches fit beside the weights."""
        left = self._room - self._weight_bytes * (self.target.num_params + (self.draft.num_params if self.draft else 0))
        return max(0, int(left / (self.target.kv_width * self.target.num_layers * self.context * self.kv_bytes)))

    @property
    def plain_tokens_per_s(self) -> float:
        """Speed of plain decoding at batch 1."""
        return 1e3 / self.verify_ms(1, 1)

    def calibrated(self, plain_tokens_per_s: float) -> Roofline:
        """Set to a measured speed of plain decoding at batch 1.

        Time beyond the roofline is put on the layers, as launches; where it is faster, memory gets more efficient.
        """
        bare = replace(self, layer_overhead_us=0.0)
        missing_ms = 1e3 / plain_tokens_per_s - bare.verify_ms(1, 1)
        if missing_ms >= 0:
            return replace(bare, layer_overhead_us=1e3 * missing_ms / self.target.num_layers)
        return replace(bare, memory_efficiency=self.memory_efficiency * bare.verify_ms(1, 1) * plain_tokens_per_s / 1e3)

    # ---- the cost model ----

    def verify_ms(self, batch: float, rows: float) -> float:
        return self._forward_ms(self.target, batch, rows)

    def draft_ms(self, batch: float, draft_len: int) -> float:
        if not draft_len or self.method == "ngram":
            return 0.0
        if self.method == "medusa":
            return self._forward_ms(self.target.medusa_heads(draft_len), batch, 1)
        if self.method == "draft_model":
            return draft_len * self._forward_ms(self.draft, batch, 1)
        num_inputs, vocab_size = _HEADS[self.method]
        head = self.target.one_layer(num_inputs, vocab_size or self.target.vocab_size)
        return draft_len * self._forward_ms(head, batch, 1)

    def overhead_ms(self, batch: float, rows: float) -> float:
        return 0.0

    def prefill_ms(self, num_tokens: float) -> float:
        """One sequence whose prompt is read at once."""
        return replace(self, context=num_tokens / 2).verify_ms(1, num_tokens)

    def _forward_ms(self, shape: ModelShape, batch: float, rows: float) -> float:
        """A forward of a whole model, so many rows for each sequence."""
        gpu, num, total, cached = self.gpu, self.num_gpus, batch * rows, self.context * shape.num_layers
        peak = gpu.peak8 if self.weights == "fp8" else gpu.peak16
        kv_bytes = batch * cached * shape.kv_width * self.kv_bytes
        attention_operations = 2.0 * total * cached * shape.attention_width
        read_bytes = shape.read_params(total) * self._weight_bytes + kv_bytes
        memory_s = read_bytes / (num * gpu.bandwidth * 1e9 * self.memory_efficiency)
        linear_s = 2.0 * shape.active_params * total / (num * peak * 1e12 * COMPUTE_EFFICIENCY)
        attention_s = attention_operations / (num * gpu.peak16 * 1e12 * COMPUTE_EFFICIENCY)
        shared_s = 0.0
        if num > 1:  # a ring sends (G − 1) / G of the activations twice
            moved = 2 * (num - 1) / num * total * shape.hidden_size * 2.0
            shared_s = 2 * shape.num_layers * (ALL_REDUCE_US * 1e-6 + moved / (gpu.link * 1e9))
        launches_ms = shape.num_layers * self.layer_overhead_us / 1e3
        return 1e3 * (memory_s + linear_s + attention_s + shared_s) + launches_ms

    @property
    def _weight_bytes(self) -> float:
        return WEIGHT_BYTES[self.weights]

    @property
    def _room(self) -> float:
        return self.num_gpus * self.gpu.memory * 1e9 * USABLE_MEMORY
