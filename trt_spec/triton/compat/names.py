"""The tensors of `ensemble` and `tensorrt_llm_bls` in TensorRT-LLM's inflight_batcher layout, and what they are here.

All versions together: min_length and min_tokens, random_seed and seed. Names and types are TensorRT-LLM's, see
`data/inflight_batcher.json`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trt_spec.triton.contract import OUTPUT_BY_NAME, PREFIX
from trt_spec.triton.pbtxt import Tensor
from trt_spec.triton.trtllm import inflight_batcher

_NO_LORA = "this engine has no LoRA adapters"
_NO_TABLE = "this engine reads text, not embeddings"
_NO_GUIDE = "this engine has no guided decoding"
_NO_LOGITS = "it does not send logits; return_log_probs sends log-probabilities"


@dataclass(frozen=True)
class CompatInput:
    """One input of this layout.

    Attributes:
        to: the contract's input that it becomes as it is; empty where `decode` does more.
        refused: why no value is honoured.
        only_false: a flag that is accepted where it is off.
    """

    name: str
    doc: str
    to: str = ""
    refused: str = ""
    only_false: bool = False


INPUTS: tuple[CompatInput, ...] = (
    CompatInput("text_input", "The prompt.", to="text_input"),
    CompatInput("max_tokens", "Most tokens to generate. Default 64.", to=f"{PREFIX}max_tokens"),
    CompatInput("stream", "Send deltas; `ensemble` only.", to="streaming"),
    CompatInput("num_return_sequences", "Sequences of this prompt, told apart by sequence_index.", to=f"{PREFIX}n"),
    CompatInput("beam_width", "Only 1.", to=f"{PREFIX}beam_width"),
    CompatInput("temperature", "Used with top_k or top_p; without both the most probable token is taken."),
    CompatInput("top_k", "Keep the k most probable tokens; 0 keeps all."),
    CompatInput("top_p", "Keep the smallest set of tokens with this much probability; 0 counts as not sent."),
    CompatInput("min_tokens", "Tokens before anything but max_tokens may end the text.", to=f"{PREFIX}min_tokens"),
    CompatInput("min_length", "The same, in older versions.", to=f"{PREFIX}min_tokens"),
    CompatInput("seed", "Makes sampling repeatable. Default: fresh.", to=f"{PREFIX}seed"),
    CompatInput("random_seed", "The same, in older versions.", to=f"{PREFIX}seed"),
    CompatInput(
        "repetition_penalty", "Divides (or multiplies) the logits of tokens seen.", to=f"{PREFIX}repetition_penalty"
    ),
    CompatInput("presence_penalty", "Subtracted from logits of tokens generated.", to=f"{PREFIX}presence_penalty"),
    CompatInput("frequency_penalty", "Subtracted once per time generated.", to=f"{PREFIX}frequency_penalty"),
    CompatInput("length_penalty", "Any value: it ranks beams, and there is one."),
    CompatInput("stop_words", "Strings that end the text; they are cut from it. Empty ones count as not sent."),
    CompatInput("bad_words", "Words of one token that are never chosen. Empty ones count as not sent."),
    CompatInput("embedding_bias_words", "Words whose tokens get a bias."),
    CompatInput("embedding_bias_weights", "One for each of these words, added to its tokens' logits."),
    CompatInput("end_id", "The id that ends the text; -1 for none. Default: the tokenizer's."),
    CompatInput("pad_id", "Any value: one text needs no padding."),
    CompatInput(
        "exclude_input_in_output",
        "false puts the prompt before the text. Default true.",
        to=f"{PREFIX}exclude_input_from_output",
    ),
    CompatInput("return_log_probs", "Send output_log_probs and cum_log_probs. Default false."),
    CompatInput("return_perf_metrics", "Send times, cache and acceptance. Default false."),
    CompatInput("return_num_input_tokens", "Send num_input_tokens. Default false."),
    CompatInput("return_num_output_tokens", "Send num_output_tokens. Default false."),
    CompatInput("num_draft_tokens", "Most draft tokens a step; 0 drafts nothing. Default: the engine's."),
    CompatInput("use_draft_logits", "Only false.", refused="the acceptance rule is the engine's", only_false=True),
    CompatInput("return_context_logits", "Only false.", refused=_NO_LOGITS, only_false=True),
    CompatInput("return_generation_logits", "Only false.", refused=_NO_LOGITS, only_false=True),
    CompatInput("decoder_text_input", "Refused.", refused="this engine has no encoder"),
    *(CompatInput(name, "Refused.", refused=_NO_TABLE) for name in ("prompt_embedding_table", "prompt_table_extra_id")),
    CompatInput("prompt_vocab_size", "Refused.", refused=_NO_TABLE),
    *(
        CompatInput(name, "Refused.", refused="this engine serves text models")
        for name in ("image_input", "image_bytes_input", "image_url_input", "video_bytes_input")
    ),
    *(CompatInput(name, "Refused.", refused=_NO_LORA) for name in ("lora_task_id", "lora_weights", "lora_config")),
    *(
        CompatInput(name, "Refused.", refused=_NO_GUIDE)
        for name in ("guided_decoding_guide_type", "guided_decoding_guide")
    ),
)
INPUT_BY_NAME = {item.name: item for item in INPUTS}
# Outputs that are the contract's under another name, or the same one; the others are computed in `requests.Translator`.
RENAMED = {
    "kv_cache_reused_blocks": "kv_cache_reused_block",
    **{
        name: name
        for name in (
            *("kv_cache_alloc_new_blocks", "kv_cache_alloc_total_blocks", "arrival_time_ns", "first_scheduled_time_ns"),
            *("first_token_time_ns", "last_token_time_ns", "acceptance_rate", "total_accepted_draft_tokens"),
            "total_draft_tokens",
        )
    },
}
NEVER_SENT = ("context_logits", "generation_logits")
OUTPUT_DOCS = {
    "text_output": "The text; in a stream, what this response adds to it.",
    "cum_log_probs": "Sum of the log-probabilities so far, of each sequence.",
    "output_log_probs": "Log-probability of each token of this response, of each sequence; 0 after its end.",
    "sequence_index": "Which sequences this response is of.",
    "batch_index": "0.",
    "num_input_tokens": "Tokens of the prompt.",
    "num_output_tokens": "Tokens of each sequence so far.",
    **{name: OUTPUT_BY_NAME[to].doc for name, to in RENAMED.items()},
    **dict.fromkeys(NEVER_SENT, "Declared, never sent."),
}
ONE_OF = (("min_tokens", "min_length"), ("seed", "random_seed"))
COMPAT_NAMES = {item.to: item.name for item in reversed(INPUTS) if item.to} | {
    "max_draft_len": "num_draft_tokens",
    f"{PREFIX}stop": "stop_words",
}


def tensors() -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Inputs and outputs as config.pbtxt declares them."""
    inputs, outputs = inflight_batcher.client_tensors()
    first = tuple(Tensor(item.name, *inputs[item.name], optional=item.name != "text_input") for item in INPUTS)
    return first, tuple(Tensor(name, *outputs[name]) for name in OUTPUT_DOCS)
