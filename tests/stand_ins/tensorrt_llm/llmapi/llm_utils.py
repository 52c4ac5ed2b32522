"""The one function of the library's module that is used."""

from __future__ import annotations


def update_llm_args_with_extra_dict(llm_args: dict, llm_args_dict: dict) -> dict:
    """Merges the second into the first; speculative_config becomes an object."""
    from tensorrt_llm import decoding_config

    merged = {**llm_args, **llm_args_dict}
    if "speculative_config" in merged:
        merged["speculative_config"] = decoding_config(merged["speculative_config"])
    return merged
