"""A stand-in for Triton's TensorRT-LLM backend: the tensors of its model `tensorrt_llm`, and a made-up model.

The next token is a function of the last two, as in the other stand-in; with the parameter `drift` above 0 every so many
tokens another one, which makes a draft model of it. It verifies draft_input_ids as the backend does: the longest prefix
that is its own, and one token more. It checks what a real engine would trip over, and logs what it was asked.
"""

from __future__ import annotations

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

END_ID_LEFT_OUT = os.environ.get("ENGINE_STAND_IN_OMITS_END") == "1"
# What the backend reads without a default; see tests/data/inflight_batcher_required.json.
REQUIRED = ("gpt_model_type", "tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")


def next_token(previous: int, last: int) -> int:
    return 3 + (31 * previous + 17 * last + 5) % 198


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.name, self.parameters = args["model_name"], config["parameters"]
        missing = [name for name in REQUIRED if "string_value" not in self.parameters.get(name, {})]
        assert not missing, f"Cannot find parameters: {missing}"  # the model does not load then
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.drift = int(self.parameters.get("drift", {"string_value": "0"})["string_value"])
        self.names = {item["name"] for item in config["input"]}
        self.log = os.environ.get("ENGINE_STAND_IN_LOG")

    def execute(self, requests: list) -> list | None:
        responses = [self._answers(request) for request in requests]
        if not self.is_decoupled:
            return [parts[-1] for parts in responses]
        for request, parts in zip(requests, responses, strict=True):
            sender = request.get_response_sender()
            for part in parts:
                sender.send(part)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def _answers(self, request) -> list:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        try:
            return self._checked_answers(given)
        except Exception as error:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(f"engine: {type(error).__name__}: {error}"))]

    def _checked_answers(self, given: dict) -> list:
        assert given["input_ids"].dtype == np.int32
        assert given["input_ids"].shape == (1, int(given["input_lengths"].flat[0]))
        for name in ("stop_words_list", "bad_words_list"):
            assert given[name].shape[:2] == (1, 2)
        assert given["embedding_bias"].shape[0] == 1
        assert given["embedding_bias"].size == 0 or given["embedding_bias"].max() < 1e6, "a bias beyond reason"
        self._write(given)
        prompt = given["input_ids"][0].tolist()
        tokens = self._generate(given, prompt)
        is_streaming = "streaming" in given and bool(given["streaming"].any())
        parts = [[token] for token in tokens] if is_streaming else [tokens]
        return [self._response(given, part) for part in parts]

    def _generate(self, given: dict, prompt: list) -> list:
        drafted = given["draft_input_ids"][0].tolist() if "draft_input_ids" in given else []
        end, tokens = int(given["end_id"].flat[0]), []
        least = int(given.get("min_tokens", given.get("min_length", np.array([0]))).flat[0])
        for position in range(int(given["request_output_len"].flat[0])):
            previous, last = [0, *prompt, *tokens][-2:]
            token = next_token(previous, last)
            if self.drift and (len(prompt) + position) % self.drift == 0:
                token = 3 + (token + 1) % 198
            if token == end and position < least:
                token += 1
            tokens.append(token)
            if token == end:
                return tokens[:-1] if END_ID_LEFT_OUT else tokens
            if drafted and (position >= len(drafted) or token != drafted[position]):
                break  # its own token, after the accepted ones
        return tokens

    def _response(self, given: dict, tokens: list) -> object:
        outputs = [
            pb_utils.Tensor("output_ids", np.array([[tokens]], np.int32)),
            pb_utils.Tensor("sequence_length", np.array([[len(tokens)]], np.int32)),
        ]
        if given.get("return_log_probs", np.array([False])).any():
            outputs.append(pb_utils.Tensor("cum_log_probs", np.array([[-1.5]], np.float32)))
        return pb_utils.InferenceResponse(outputs)

    def _write(self, given: dict) -> None:
        if self.log:
            with open(self.log, "a", encoding="utf-8") as file:
                values = {name: array.ravel().tolist() for name, array in given.items() if array.size < 100}
                file.write(json.dumps({"model": self.name, **values}) + "\n")
