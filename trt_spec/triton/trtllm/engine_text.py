"""Text to the tensors of an engine and back, for the inflight_batcher layout. NumPy only, no Triton.

Arrays have a batch axis first. Names are those of TensorRT-LLM's preprocessing and postprocessing models.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import CapabilityError, RequestError

Arrays = Mapping[str, np.ndarray]
_OTHER_MODELS = "this engine is a decoder that reads text"
REFUSED = ("DECODER_QUERY", "IMAGE_BYTES", "IMAGE_URL", "VIDEO_BYTES")


def preprocess(
    arrays: Arrays, tokenizer: Tokenizer, vocab_size: int, *, add_special_tokens: bool = True
) -> dict[str, np.ndarray]:
    """The outputs of `preprocessing`.

    The end id is the request's, else the tokenizer's; where a text may end in several ways, the other ids become stop
    words, which is all that an engine has for them.

    Args:
        arrays: inputs by name, without those that were not sent.
        tokenizer: the target's.
        vocab_size: of the engine; length of an embedding bias.
        add_special_tokens: as for `Tokenizer.encode`.

    Raises:
        RequestError: not UTF-8, an empty prompt, or biases that do not match their words.
        CapabilityError: an input for another kind of model.
    """
    for name in REFUSED:
        if name in arrays:
            raise CapabilityError(f"input {name} is not supported", where=name, remedy=f"leave it out: {_OTHER_MODELS}")
    queries = arrays["QUERY"].reshape(len(arrays["QUERY"]), -1)[:, 0]
    prompts = [tokenizer.encode(_text(query, "QUERY"), add_special_tokens) for query in queries]
    if not all(prompts):
        raise RequestError("the prompt is empty", where="QUERY", expected="at least one token")
    size, lengths = len(prompts), [len(ids) for ids in prompts]
    ends = sorted(tokenizer.eos_token_ids)
    end_id = arrays["END_ID"] if "END_ID" in arrays else np.full((size, 1), ends[0] if ends else -1)
    pad_id = arrays.get("PAD_ID", np.maximum(end_id, 0))
    other_ends = [] if "END_ID" in arrays else [[token] for token in ends[1:]]
    outputs = {
        "INPUT_ID": np.stack(
            [np.pad(ids, (0, max(lengths) - len(ids)), constant_values=int(pad_id.flat[0])) for ids in prompts]
        ).astype(np.int32),
        "REQUEST_INPUT_LEN": np.array(lengths, np.int32)[:, None],
        "DECODER_INPUT_ID": np.asarray(pad_id, np.int32).reshape(size, 1),
        "REQUEST_DECODER_INPUT_LEN": np.ones((size, 1), np.int32),
        "BAD_WORDS_IDS": word_lists(_words(arrays, "BAD_WORDS_DICT", tokenizer, size)),
        "STOP_WORDS_IDS": word_lists(
            [[*words, *other_ends] for words in _words(arrays, "STOP_WORDS_DICT", tokenizer, size)]
        ),
        "EMBEDDING_BIAS": _bias(arrays, tokenizer, vocab_size, size),
        "REQUEST_OUTPUT_LEN": np.asarray(arrays["REQUEST_OUTPUT_LEN"], np.int32),
        "OUT_END_ID": np.asarray(end_id, np.int32).reshape(size, 1),
        "OUT_PAD_ID": np.asarray(pad_id, np.int32).reshape(size, 1),
    }
    if "PROMPT_TABLE_EXTRA_ID" in arrays:  # only ids past the vocabulary have one, and text has none of those
        outputs["OUT_PROMPT_TABLE_EXTRA_IDS"] = np.zeros(outputs["INPUT_ID"].shape, np.uint64)
    return outputs


def postprocess(tokens: np.ndarray, lengths: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """The texts of `postprocessing`, [batch, beams], as bytes.

    Args:
        tokens: [batch, beams, longest].
        lengths: [batch, beams].
        tokenizer: the target's.
    """
    texts = [
        [tokenizer.decode(row[:length].tolist()).encode() for row, length in zip(beams, sizes, strict=True)]
        for beams, sizes in zip(tokens, lengths, strict=True)
    ]
    return np.array(texts, np.object_)


def word_lists(batch: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """Words as TensorRT-LLM takes them, [batch, 2, longest]: ids in a row, and below them where each word ends.

    Ids are padded with 0 and ends with -1; without any words the last axis is empty.
    """
    longest = max((sum(map(len, words)) for words in batch), default=0)
    result = np.zeros((len(batch), 2, longest), np.int32)
    result[:, 1] = -1
    for row, words in zip(result, batch, strict=True):
        ids = [token for word in words for token in word]
        ends = np.cumsum([len(word) for word in words], dtype=np.int32)
        row[0, : len(ids)] = ids
        row[1, : len(ends)] = ends
    return result


def words_of(lists: np.ndarray) -> list[list[int]]:
    """The words in one row of `word_lists`."""
    ids, ends = lists
    starts = [0, *ends[ends >= 0].tolist()]
    return [ids[start:end].tolist() for start, end in itertools.pairwise(starts)]


def _words(arrays: Arrays, name: str, tokenizer: Tokenizer, size: int) -> list[list[list[int]]]:
    if name not in arrays:
        return [[] for _ in range(size)]
    return [
        [ids for word in row if (ids := tokenizer.encode(_text(word, name), add_special_tokens=False))]
        for row in np.atleast_2d(arrays[name])
    ]


def _bias(arrays: Arrays, tokenizer: Tokenizer, vocab_size: int, size: int) -> np.ndarray:
    words, weights = arrays.get("EMBEDDING_BIAS_WORDS"), arrays.get("EMBEDDING_BIAS_WEIGHTS")
    if words is None and weights is None:
        return np.zeros((size, 0), np.float32)
    if words is None or weights is None or words.shape != weights.shape:
        raise RequestError(
            "embedding bias words and weights do not match",
            where="embedding_bias_words, embedding_bias_weights",
            expected="one weight for each word",
        )
    result = np.zeros((size, vocab_size), np.float32)
    for row, texts, values in zip(result, np.atleast_2d(words), np.atleast_2d(weights), strict=True):
        for text, value in zip(texts, values, strict=True):
            for token in tokenizer.encode(_text(text, "EMBEDDING_BIAS_WORDS"), add_special_tokens=False):
                row[token] += value
    return result


def _text(item: bytes | str, name: str) -> str:
    try:
        return item.decode() if isinstance(item, bytes) else str(item)
    except UnicodeDecodeError:
        raise RequestError("the text is not UTF-8", where=name, got=repr(item[:40])) from None
