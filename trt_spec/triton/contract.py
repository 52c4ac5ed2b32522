"""The serving contract as data: every input and output of the served model, with its data type and its meaning.

A superset of the `llmapi` model of TensorRT-LLM 0.19 to main: every tensor of it is here under the same name and data
type. Inputs that this engine cannot honour are declared all the same, so that they are refused by name and with a
reason instead of as unknown. The emitted config.pbtxt, the model that reads requests, the client and the documentation
all come from these tables.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from trt_spec.runtime.request import SamplingParams
from trt_spec.triton.pbtxt import DataType, Tensor

PREFIX = "sampling_param_"  # of the inputs that are sampling parameters; clients here leave it out


@dataclass(frozen=True)
class Input(Tensor):
    """One input of the served model; every one is optional to the server, the model checks what belongs together.

    Attributes:
        dims: (1,) for one value, (-1,) for a list.
        doc: what it means, with unit and default.
        only: the one value that is honoured, for parameters that exist for compatibility; others are refused.
        refused: why no value at all is honoured; empty where the input is honoured.
    """

    doc: str
    only: int | None = None
    refused: str = ""
    _: KW_ONLY
    optional: bool = True

    @property
    def short_name(self) -> str:
        """The name without the prefix, as the client and the command line spell it."""
        return self.name.removeprefix(PREFIX)

    @property
    def is_list(self) -> bool:
        """Whether it holds any number of values."""
        return self.dims == (-1,)


@dataclass(frozen=True)
class Output(Tensor):
    """One output of the served model.

    Attributes:
        final: only in the last response of a sequence; the others are in every response.
        is_list: any number of values; the others hold exactly one, whatever `dims` says for llmapi's sake.
        per_sequence: one value for each sequence, where one response holds all n of them.
    """

    doc: str
    final: bool = True
    is_list: bool = False
    per_sequence: bool = False


ONE, MANY = (1,), (-1,)
_NO_LORA = "this engine has no LoRA adapters"


def _sampling(name: str, data_type: DataType, dims: tuple[int, ...], doc: str, **others: Any) -> Input:
    return Input(f"{PREFIX}{name}", data_type, dims, doc, **others)


def _delta(name: str, data_type: DataType, doc: str, **others: Any) -> Output:
    """An output of every response, by default with one value for each sequence."""
    return Output(name, data_type, MANY, doc, final=False, **(others or {"per_sequence": True}))


INPUTS: tuple[Input, ...] = (
    Input("text_input", "STRING", MANY, "The prompt, one string. Exactly one of text_input and input_ids."),
    Input("input_ids", "INT32", MANY, "The prompt as token ids of the target's vocabulary."),
    Input("streaming", "BOOL", ONE, "Send deltas as they are generated. Default false: one response at the end."),
    Input("stop", "BOOL", ONE, "Not a prompt: stop the requests in flight that carry this request's id."),
    _sampling("max_tokens", "INT32", ONE, f"Most tokens to generate. Default {SamplingParams().max_tokens}."),
    _sampling("min_tokens", "INT32", ONE, "Tokens before end of text, stop strings and stop ids may end it."),
    _sampling(
        "temperature", "FP32", ONE, "0 takes the most probable token. Default 0, or 1 with top_k, top_p or min_p."
    ),
    _sampling("top_k", "INT32", ONE, "Keep the k most probable tokens; 0 keeps all."),
    _sampling("top_p", "FP32", ONE, "Keep the smallest set of tokens with this much probability."),
    _sampling("min_p", "FP32", ONE, "Keep tokens at least this probable, relative to the most probable one."),
    _sampling("repetition_penalty", "FP32", ONE, "Divides (or multiplies) the logits of tokens seen; 1 is off."),
    _sampling("presence_penalty", "FP32", ONE, "Subtracted from the logits of tokens generated; 0 is off."),
    _sampling("frequency_penalty", "FP32", ONE, "Subtracted once per time a token was generated; 0 is off."),
    _sampling("logit_bias_ids", "INT32", MANY, "Token ids to which logit_bias_values is added."),
    _sampling("logit_bias_values", "FP32", MANY, "One value per id of logit_bias_ids, added to its logit."),
    _sampling("seed", "UINT64", ONE, "Makes sampling repeatable at equal batch composition. Default: fresh."),
    _sampling("stop", "STRING", MANY, "Strings that end the text; they are not part of it."),
    _sampling("stop_token_ids", "INT32", MANY, "Token ids that end the text."),
    _sampling("ignore_eos", "BOOL", ONE, "Go on past the end-of-text token. Default false."),
    _sampling("logprobs", "BOOL", ONE, "Send the target's log-probability of each token. Default false."),
    _sampling("n", "INT32", ONE, "Sequences of this prompt, each with its own random stream. Default 1."),
    _sampling("best_of", "INT32", ONE, "Only the number of sequences: none is generated and left out."),
    _sampling("beam_width", "INT32", ONE, "Only 1: speculation is lossless for sampling, not for beams.", only=1),
    _sampling(
        "exclude_input_from_output",
        "BOOL",
        ONE,
        "false puts the prompt before text_output; output_ids are always the generated ones. Default true.",
    ),
    _sampling("return_perf_metrics", "BOOL", ONE, "false leaves out counts, cache and times. Default true."),
    Input("return_finish_reason", "BOOL", ONE, "false leaves out finish_reason. Default true."),
    Input("return_stop_reason", "BOOL", ONE, "false leaves out stop_reason. Default true."),
    Input(
        "return_cumulative_logprob", "BOOL", ONE, "true sends the sum of the tokens' log-probabilities. Default false."
    ),
    Input("speculation", "BOOL", ONE, "false turns drafting off for this request. Default true."),
    Input("max_draft_len", "INT32", ONE, "Most draft tokens a step, at most the engine's; 0 drafts nothing."),
    Input("image_url", "STRING", MANY, "Refused.", refused="this engine serves text models"),
    Input("lora_id", "UINT64", ONE, "Refused.", refused=_NO_LORA),
    Input("lora_name", "STRING", ONE, "Refused.", refused=_NO_LORA),
    Input("lora_path", "STRING", ONE, "Refused.", refused=_NO_LORA),
    Input("lora_ckpt_source", "STRING", ONE, "Refused.", refused=_NO_LORA),
    _sampling(
        "logits_post_processor_name", "STRING", ONE, "Refused.", refused="this engine has no logits post-processors"
    ),
)

OUTPUTS: tuple[Output, ...] = (
    _delta("text_output", "STRING", "The text; in a stream, what this response adds to it."),
    _delta("output_ids", "INT32", "Token ids of this response.", is_list=True),
    _delta("num_output_tokens", "INT32", "How many output_ids this response holds, of each sequence."),
    _delta("sequence_index", "INT32", "Which sequences this response is of, from 0; in a stream always one."),
    _delta("logprobs", "FP32", "Log-probability of each id, where asked for.", is_list=True),
    _delta(
        "token_origins",
        "INT32",
        "Per id: 0 the target's, nothing drafted (plain, bonus), 1 accepted draft, 2 recovered; llmapi does not tell.",
        is_list=True,
    ),
    Output("finish_reason", "STRING", MANY, "length, stop, eos or cancelled.", per_sequence=True),
    Output(
        "stop_reason",
        "STRING",
        MANY,
        "The stop string or stop id that ended it; empty where none did.",
        per_sequence=True,
    ),
    Output("num_input_tokens", "INT32", ONE, "Tokens of the prompt, once for all sequences."),
    Output(
        "cumulative_logprob", "FP32", MANY, "Sum of the tokens' log-probabilities, where asked for.", per_sequence=True
    ),
    Output(
        "acceptance_rate", "FP32", ONE, "total_accepted_draft_tokens / total_draft_tokens; 0 where none was drafted."
    ),
    Output("total_accepted_draft_tokens", "INT32", ONE, "Draft tokens accepted, without recovered and bonus tokens."),
    Output("total_draft_tokens", "INT32", ONE, "Draft tokens verified."),
    Output("num_drafts", "INT32", ONE, "Steps that verified at least one draft token; llmapi does not tell."),
    Output(
        "accepted_per_position",
        "INT32",
        MANY,
        "How often the draft token at each position was accepted; llmapi does not tell.",
        is_list=True,
    ),
    Output("arrival_time_ns", "INT64", ONE, "When the engine took the request; all times by one clock of the server."),
    Output("first_scheduled_time_ns", "INT64", ONE, "When it got its slot."),
    Output("first_token_time_ns", "INT64", ONE, "When its first token was committed."),
    Output("last_token_time_ns", "INT64", ONE, "When its last token was committed."),
    # The llmapi target reports TensorRT-LLM's paged cache. In the torch target a request takes one preallocated slot,
    # which is the block that is counted.
    Output("kv_cache_reused_block", "INT32", MANY, "Blocks found in the cache; torch: 0, no prefix is reused."),
    Output("kv_cache_missed_block", "INT32", MANY, "Blocks that the request filled itself; torch: 1, its slot."),
    Output("kv_cache_alloc_new_blocks", "INT32", MANY, "Blocks that the request took; torch: 1."),
    Output("kv_cache_alloc_total_blocks", "INT32", MANY, "Blocks that the request held; torch: 1."),
    Output("kv_cache_hit_rate", "FP32", MANY, "reused / (reused + missed); torch: 0."),
)

INPUT_BY_NAME = {tensor.name: tensor for tensor in INPUTS}
OUTPUT_BY_NAME = {tensor.name: tensor for tensor in OUTPUTS}
NUMPY_TYPES: dict[str, type] = {
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "STRING": np.object_,
}
WIRE_TYPES = {name: "BYTES" if name == "STRING" else name for name in NUMPY_TYPES}  # as Triton's protocol spells them

# Client-side names: without the prefix, where that is unambiguous. `stop` stays the list of strings; asking for a
# request to be stopped is a call of its own.
CLIENT_NAMES = {
    tensor.short_name: tensor
    for tensor in INPUTS
    if tensor.name not in ("text_input", "input_ids", "stop", "streaming")
}


def unary_name(model_name: str) -> str:
    """The name of the alias that answers plain, unary inference."""
    return f"{model_name}_unary"
