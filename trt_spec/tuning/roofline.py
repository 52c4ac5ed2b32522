"""What a step costs on a GPU that is not here: bytes over bandwidth, plus arithmetic over peak, plus launches.

    T = bytes / (0.8 · bandwidth) + operations / (0.6 · peak) + layers · 18 µs

The two terms are added: kernels that read much and compute much overlap only in part, and adding them is what comes
closest to published throughput (docs/tuning.md says how close). A step reads every weight once, whatever its rows, and
each sequence's cache once; verifying k drafts adds arithmetic, and hardly a byte. Source: the roofline model
(Williams, Waterman, Patterson 2009); peaks and bandwidths are those of the data sheets, dense.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from trt_spec.errors import UsageError
from trt_spec.tuning.model_shapes import ModelShape

MEMORY_EFFICIENCY, COMPUTE_EFFICIENCY = 0.8, 0.6  # of data sheets, as large kernels reach them
LAYER_OVERHEAD_US = 18.0  # launches and gaps of one layer, with CUDA graphs: from published batch-1 speeds
ALL_REDUCE_US = 10.0  # latency of one; there are two per layer where several GPUs share it
EAGLE3_DRAFT_VOCAB = 32_000  # of the published heads
USABLE_MEMORY = 0.9

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
    """The GPU of a name, in any case.

    Raises:
        UsageError: not a known one.
    """
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
        host_ms: work of the host that no step hides.
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
    host_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.method == "draft_model" and self.draft is None:
            raise UsageError("the size of the draft model is not known", remedy="give --draft-params, such as 1e9")
        if self.method not in _DRAFT_MS:
            raise UsageError(f"no roofline for method {self.method}", expected="one of " + ", ".join(_DRAFT_MS))
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

    def calibrated(self, plain_tokens_per_s: float) -> Roofline:
        """Set to a measured speed of plain decoding at batch 1.

        Time beyond the roofline is put on the layers, as launches; where it is faster, memory gets more efficient.
        """
        bare = replace(self, layer_overhead_us=0.0, host_ms=0.0)
        missing_ms = 1e3 / plain_tokens_per_s - bare.verify_ms(1, 1)
        if missing_ms >= 0:
            return replace(bare, layer_overhead_us=1e3 * missing_ms / self.target.num_layers)
        return replace(bare, memory_efficiency=self.memory_efficiency * bare.verify_ms(1, 1) * plain_tokens_per_s / 1e3)

    # ---- the cost model ----

    def verify_ms(self, batch: float, rows: float) -> float:
        return self.forward_ms(self.target, batch, rows)

    def draft_ms(self, batch: float, draft_len: int) -> float:
        return _DRAFT_MS[self.method](self, batch, draft_len) if draft_len else 0.0

    def overhead_ms(self, batch: float, rows: float) -> float:
        return self.host_ms

    def prefill_ms(self, num_tokens: float) -> float:
        """One sequence whose prompt is read at once."""
        return replace(self, context=num_tokens / 2).forward_ms(self.target, 1, num_tokens)

    # ---- its parts ----

    def forward_ms(self, shape: ModelShape, batch: float, rows: float) -> float:
        """A forward of a whole model, so many rows for each sequence."""
        total = batch * rows
        cached = self.context * shape.num_layers
        return self._pass_ms(
            shape.read_params(total),
            shape.active_params,
            total,
            num_layers=shape.num_layers,
            hidden_size=shape.hidden_size,
            kv_bytes=batch * cached * shape.kv_width * self.kv_bytes,
            attention_operations=2.0 * total * cached * shape.attention_width,
        )

    def head_ms(self, extra_params: float, vocab_size: float, batch: float) -> float:
        """One layer of the target's kind with its projections and output layer, one row for each sequence."""
        shape = self.target
        share = 1 - (1 - shape.experts_per_token / shape.num_experts) ** batch if shape.num_experts else 0.0
        fixed = extra_params + shape.hidden_size * vocab_size
        return self._pass_ms(
            fixed + shape.layer_params(share * shape.num_experts),
            fixed + shape.layer_params(shape.experts_per_token),
            batch,
            num_layers=1,
            hidden_size=shape.hidden_size,
            kv_bytes=batch * self.context * shape.kv_width * self.kv_bytes,
            attention_operations=2.0 * batch * self.context * shape.attention_width,
        )

    def _pass_ms(
        self,
        read_params: float,
        active_params: float,
        rows: float,
        *,
        num_layers: float,
        hidden_size: float,
        kv_bytes: float = 0.0,
        attention_operations: float = 0.0,
    ) -> float:
        gpu, num = self.gpu, self.num_gpus
        peak = gpu.peak8 if self.weights == "fp8" else gpu.peak16
        memory_s = (read_params * self._weight_bytes + kv_bytes) / (num * gpu.bandwidth * 1e9 * self.memory_efficiency)
        linear_s = 2.0 * active_params * rows / (num * peak * 1e12 * COMPUTE_EFFICIENCY)
        attention_s = attention_operations / (num * gpu.peak16 * 1e12 * COMPUTE_EFFICIENCY)
        shared_s = 0.0
        if num > 1:  # a ring sends (G − 1) / G of the activations twice
            moved = 2 * (num - 1) / num * rows * hidden_size * 2.0
            shared_s = 2 * num_layers * (ALL_REDUCE_US * 1e-6 + moved / (gpu.link * 1e9))
        return 1e3 * (memory_s + linear_s + attention_s + shared_s) + num_layers * self.layer_overhead_us / 1e3

    @property
    def _weight_bytes(self) -> float:
        return WEIGHT_BYTES[self.weights]

    @property
    def _room(self) -> float:
        return self.num_gpus * self.gpu.memory * 1e9 * USABLE_MEMORY


def _draft_model_ms(roofline: Roofline, batch: float, draft_len: int) -> float:
    assert roofline.draft is not None
    return draft_len * roofline.forward_ms(roofline.draft, batch, 1)


def _feature_ms(num_inputs: int, vocab_size: float | None) -> Callable[[Roofline, float, int], float]:
    """One layer applied again and again, on `num_inputs` features that are projected to one."""

    def draft_ms(roofline: Roofline, batch: float, draft_len: int) -> float:
        hidden = roofline.target.hidden_size
        return draft_len * roofline.head_ms(num_inputs * hidden**2, vocab_size or roofline.target.vocab_size, batch)

    return draft_ms


def _medusa_ms(roofline: Roofline, batch: float, draft_len: int) -> float:
    """As many heads as tokens, each a residual block and an output layer, at once."""
    params = draft_len * (roofline.target.hidden_size**2 + roofline.target.head_params)
    return roofline._pass_ms(params, params, batch, num_layers=1, hidden_size=roofline.target.hidden_size)


_DRAFT_MS: dict[str, Callable[[Roofline, float, int], float]] = {
    "draft_model": _draft_model_ms,
    "ngram": lambda roofline, batch, draft_len: 0.0,
    "medusa": _medusa_ms,
    "eagle": _feature_ms(2, None),
    "eagle3": _feature_ms(3, EAGLE3_DRAFT_VOCAB),
    "mtp": _feature_ms(2, None),
}
