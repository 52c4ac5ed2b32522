"""The tensors of `ensemble` and `tensorrt_llm_bls` in TensorRT-LLM's inflight_batcher layout, and what they are here.

All versions together: min_length and min_tokens, random_seed and seed. Names and types are TensorRT-LLM's, see
`data/inflight_batcher.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trt_spec.triton.contract import OUTPUT_BY_NAME, PREFIX, Input
from trt_spec.triton.pbtxt import Tensor
from trt_spec.triton.trtllm import inflight_batcher

_NO_LOGITS = "it does not send logits; return_log_probs sends log-probabilities"
_REFUSED = {
    "this engine has no encoder": ("decoder_text_input",),
    "this engine reads text, not embeddings": ("prompt_embedding_table", "prompt_table_extra_id", "prompt_vocab_size"),
    "this engine serves text models": ("image_input", "image_bytes_input", "image_url_input", "video_bytes_input"),
    "this engine has no LoRA adapters": ("lora_task_id", "lora_weights", "lora_config"),
    "this engine has no guided decoding": ("guided_decoding_guide_type", "guided_decoding_guide"),
}
_INPUTS, _OUTPUTS = inflight_batcher.client_tensors()


@dataclass(frozen=True)
class CompatInput(Input):
    """One input of this layout.

    Attributes:
        to: the contract's input that it becomes as it is; empty where `requests.read` does more.
        only_false: a flag that is accepted where it is off, though it is refused.
    """

    to: str = ""
    only_false: bool = False


def _input(name: str, doc: str = "Refused.", **others: Any) -> CompatInput:
    return CompatInput(name, _INPUTS[name].data_type, _INPUTS[name].dims, doc, **others)


INPUTS: tuple[CompatInput, ...] = (
    _input("text_input", "The prompt.", to="text_input", optional=False),
    _input("max_tokens", "Most tokens to generate. Default 64.", to=f"{PREFIX}max_tokens"),
    _input("stream", "Send deltas; `ensemble` only.", to="streaming"),
    _input("num_return_sequences", "Sequences of this prompt, told apart by sequence_index.", to=f"{PREFIX}n"),
    _input("beam_width", "Only 1.", only=1, to=f"{PREFIX}beam_width"),
    _input("temperature", "Used with top_k or top_p; without both the most probable token is taken."),
    _input("top_k", "Keep the k most probable tokens; 0 keeps all."),
    _input("top_p", "Keep the smallest set of tokens with this much probability; 0 counts as not sent."),
    _input("min_tokens", "Tokens before anything but max_tokens may end the text.", to=f"{PREFIX}min_tokens"),
    _input("min_length", "The same, in older versions.", to=f"{PREFIX}min_tokens"),
    _input("seed", "Makes sampling repeatable. Default: fresh.", to=f"{PREFIX}seed"),
    _input("random_seed", "The same, in older versions.", to=f"{PREFIX}seed"),
    _input(
        "repetition_penalty", "Divides (or multiplies) the logits of tokens seen.", to=f"{PREFIX}repetition_penalty"
    ),
    _input("presence_penalty", "Subtracted from logits of tokens generated.", to=f"{PREFIX}presence_penalty"),
    _input("frequency_penalty", "Subtracted once per time generated.", to=f"{PREFIX}frequency_penalty"),
    _input("length_penalty", "Any value: it ranks beams, and there is one."),
    _input("stop_words", "Strings that end the text; they are cut from it. Empty ones count as not sent."),
    _input("bad_words", "Words of one token that are never chosen. Empty ones count as not sent."),
    _input("embedding_bias_words", "Words whose tokens get a bias."),
    _input("embedding_bias_weights", "One for each of these words, added to its tokens' logits."),
    _input("end_id", "The id that ends the text; -1 for none. Default: the tokenizer's."),
    _input("pad_id", "Any value: one text needs no padding."),
    _input(
        "exclude_input_in_output",
        "false puts the prompt before the text. Default true.",
        to=f"{PREFIX}exclude_input_from_output",
    ),
    _input("return_log_probs", "Send output_log_probs and cum_log_probs. Default false."),
    _input("return_perf_metrics", "Send times, cache and acceptance. Default false."),
    _input("return_num_input_tokens", "Send num_input_tokens. Default false."),
    _input("return_num_output_tokens", "Send num_output_tokens. Default false."),
    _input("num_draft_tokens", "Most draft tokens a step; 0 drafts nothing. Default: the engine's."),
    _input("use_draft_logits", "Only false.", refused="the acceptance rule is the engine's", only_false=True),
    _input("return_context_logits", "Only false.", refused=_NO_LOGITS, only_false=True),
    _input("return_generation_logits", "Only false.", refused=_NO_LOGITS, only_false=True),
    *(_input(name, refused=reason) for reason, names in _REFUSED.items() for name in names),
)
INPUT_BY_NAME = {item.name: item for item in INPUTS}
_OWN_OUTPUTS = {  # computed in `requests`
    "text_output": "The text; in a stream, what this response adds to it.",
    "cum_log_probs": "Sum of the log-probabilities so far, of each sequence.",
    "output_log_probs": "Log-probability of each token of this response, of each sequence; 0 after its end.",
    "sequence_index": "Which sequences this response is of.",
    "batch_index": "0.",
    "num_input_tokens": "Tokens of the prompt.",
    "num_output_tokens": "Tokens of each sequence so far.",
    **dict.fromkeys(("context_logits", "generation_logits"), "Declared, never sent."),
}
# The others are the contract's, one of them under another name.
RENAMED = {name: name for name in _OUTPUTS if name not in _OWN_OUTPUTS}
RENAMED |= {"kv_cache_reused_blocks": "kv_cache_reused_block"}
OUTPUT_DOCS = _OWN_OUTPUTS | {name: OUTPUT_BY_NAME[to].doc for name, to in RENAMED.items()}
# As config.pbtxt declares them, like the inputs.
OUTPUTS = tuple(Tensor(name, _OUTPUTS[name].data_type, _OUTPUTS[name].dims) for name in OUTPUT_DOCS)
ONE_OF = (("min_tokens", "min_length"), ("seed", "random_seed"))
COMPAT_NAMES = {item.to: item.name for item in reversed(INPUTS) if item.to} | {
    "max_draft_len": "num_draft_tokens",
    f"{PREFIX}stop": "stop_words",
}
SAME = {to.removeprefix(PREFIX): name for to, name in COMPAT_NAMES.items()} | COMPAT_NAMES
