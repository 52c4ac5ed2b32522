"""What an engine's weights are: the checkpoint's, in the engine's dtype but for what has to stay float32."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from tests import tiny
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.engines.plan import Listing
from trt_spec.engines.torch.weights import write_checkpoint
from trt_spec.runtime.models import load_model


def test_the_router_of_deepseek_v3_is_written_in_float32(tmp_path):
    source, engine = tmp_path / "source", tmp_path / "engine"
    tiny.save_deepseek_v3(source)
    checkpoint = CheckpointDir.open(source)
    write_checkpoint(
        checkpoint, Listing(str(source), checkpoint.tensor_files, ()), engine, "bfloat16", lambda part: None
    )
    written = load_file(next(engine.glob("*.safetensors")))
    wide = {name for name, tensor in written.items() if tensor.dtype is torch.float32}
    assert wide == {
        f"model.layers.{layer}.mlp.gate.{part}" for layer in (1, 2) for part in ("weight", "e_score_correction_bias")
    }
    model = load_model(engine, torch.bfloat16, torch.device("cpu"), 32)
    stored = load_file(source / "model.safetensors")["model.layers.2.mlp.gate.e_score_correction_bias"]
    assert torch.equal(model.layers[2].mlp.router.bias, stored)
