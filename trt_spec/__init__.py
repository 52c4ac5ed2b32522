"""trt_spec: speculative decoding from checkpoints to a served, proven and gated Triton model."""
