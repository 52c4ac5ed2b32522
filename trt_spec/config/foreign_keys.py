"""Names from TensorRT-LLM that people write into a run config, and what is meant or why it is refused.

The run config has its own words. A name from upstream that has none here is an unknown key; its message comes from this
table, so that a refusal says the reason and not only the nearest spelling.
"""

from __future__ import annotations

LOSSY = "it accepts tokens that the target would not have drawn, so the output is not the target's; it is not offered"
_TREE = "use speculation.tree.choices"
_SAMPLER = "the sampler judges the drafts, so speculation.acceptance and the version decide it; leave it out"
_WRITTEN = "the plan writes it where the method needs it; leave it out"

FOREIGN_KEYS: dict[str, str] = {
    # what would change the law of the tokens
    "draft_acceptance_threshold": f"{LOSSY}; speculation.acceptance exact_match is exact",
    "posterior_threshold": f"{LOSSY}; leave it out (eagle on tensorrt verifies greedily)",
    "eagle_posterior_threshold": f"{LOSSY}; leave it out (eagle on tensorrt verifies greedily)",
    "use_relaxed_acceptance_for_thinking": f"{LOSSY}; leave it out",
    "relaxed_acceptance": f"{LOSSY}; leave it out",
    "relaxed_topk": f"{LOSSY}; leave it out",
    "relaxed_delta": f"{LOSSY}; leave it out",
    "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "it accepts drafts without judging them, for benchmarks of the "
    "system; it is no key, and a build refuses to run while the variable is set",
    "sampler_type": _SAMPLER,
    "enable_trtllm_sampler": _SAMPLER,
    "load_format": "the checkpoints are loaded as they are; dummy weights are not the target's",
    # what engines cannot do together with drafts
    "gather_context_logits": "trtllm-build rejects it for engines that take drafts; leave it out",
    "gather_all_token_logits": "trtllm-build rejects it for engines that take drafts; leave it out",
    "gather_generation_logits": "deprecated at build time since 0.18, and not needed; leave it out",
    "use_draft_logits": "rejection with draft logits is not exact on tensorrt; speculation.acceptance exact_match is",
    "max_beam_width": "it is 1 in every engine: drafts go with sampling, not with beams",
    "streamingllm": "not in TensorRT-LLM 1.1 and later; leave it out",
    "auto_parallel": "not in TensorRT-LLM 1.1 and later; use build.tensor_parallel_size",
    "opt_num_tokens": "leave it out; trtllm-build derives it",
    "multiple_profiles": _WRITTEN,
    "use_paged_context_fmha": _WRITTEN,
    "speculative_decoding_mode": _WRITTEN,
    # what has another name here
    "medusa_choices": _TREE,
    "eagle_choices": _TREE,
    "num_medusa_heads": "the checkpoint says it; speculation.max_draft_len is how many of the heads draft",
    "num_medusa_layers": "the checkpoint says it; leave it out",
    "num_eagle_layers": "it is the depth of the drafts: use speculation.max_draft_len",
    "max_non_leaves_per_layer": "it follows from speculation.tree.choices; leave it out",
    "num_nextn_predict_layers": "use speculation.max_draft_len",
    "max_matching_ngram_size": "use speculation.ngram.max_ngram; upstream's default 0 fails its own check up to 1.2",
    "speculative_model": "use speculation.checkpoint",
    "speculative_model_dir": "use speculation.checkpoint",
    "decoding_type": "use speculation.method",
    "max_concurrency": "use speculation.draft_len_schedule: {1: <length>, <requests>: 0}",
    "use_dynamic_tree": "use speculation.tree.top_k and speculation.tree.max_total_draft_tokens",
    "dynamic_tree_max_topK": "use speculation.tree.top_k",
    "use_rejection_sampling": "use speculation.acceptance: rejection",
    "allow_advanced_sampling": "use speculation.acceptance: exact_match or rejection",
    "greedy_sampling": "use speculation.acceptance: greedy",
    "max_window_size": "use speculation.lookahead.window_size",
    "max_ngram_size": "use speculation.lookahead.ngram_size, or speculation.ngram.max_ngram",
    "max_verification_set_size": "use speculation.lookahead.verification_set_size",
    "redrafter_num_beams": "use speculation.redrafter.num_beams",
    "redrafter_draft_len_per_beam": "use speculation.redrafter.draft_len_per_beam",
    "tp_size": "use build.tensor_parallel_size",
    "pp_size": "use build.pipeline_parallel_size",
    "free_gpu_memory_fraction": "use build.kv_cache_free_gpu_memory_fraction",
    "enable_block_reuse": "use build.enable_kv_cache_reuse",
}
