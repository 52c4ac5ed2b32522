"""The tokenizer of a checkpoint: text to ids, ids to bytes, messages to a prompt.

Decoding is defined on bytes: the bytes of the ids in a row, special tokens left out, read as UTF-8 with U+FFFD for what
is not. That is what `tokenizers` computes for byte-level vocabularies; for byte-fallback ones it agrees wherever the
bytes are valid UTF-8 (there, `tokenizers` throws a whole run of bytes away for one bad byte). On bytes, a stream can be
cut anywhere and still add up to the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

from trt_spec.checkpoints.hf_config import read_json
from trt_spec.errors import CheckpointError, RequestError

_SPACE_MARK = "\u2581"  # SentencePiece's visible space
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_KEEPING_PRE_TOKENIZERS = ("ByteLevel", "Metaspace", "Split", "Digits", "Punctuation")  # unless told to remove
_OWN_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's one visible character per byte: printable Latin-1 stands for itself, the rest for U+0100 upwards."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF_CHAR = _byte_level_alphabet()


class Tokenizer:
    """A tokenizer directory read with `tokenizers`. Use `load`.

    Attributes:
        path: The directory.
        vocab_size: Highest id + 1. The model may have more rows (padding); that number is in the tensors.
        bos_token_id: Beginning of sequence, where there is one.
        eos_token_ids: Every id that ends a sequence: from generation_config.json (else config.json) and the tokenizer.
        special_ids: Ids that decode to nothing.
    """

    def __init__(self, path: Path, rust: RustTokenizer, files: Mapping[str, dict[str, Any]]) -> None:
        self.path = path
        self._rust = rust
        self._settings = files["tokenizer_config.json"]
        added = rust.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.vocab_size = max(rust.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._decoding = _Decoding.of(json.loads(rust.to_str()).get("decoder"), str(path))
        self._bytes: dict[int, bytes] = {}
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_ids = self._eos_ids(files)

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Reads tokenizer.json and the ids and settings beside it.

        Raises:
            CheckpointError: No tokenizer.json, a damaged one, or a kind of vocabulary that has no bytes.
        """
        directory = Path(directory)
        path = directory / "tokenizer.json"
        if not path.is_file():
            has_sentencepiece = (directory / "tokenizer.model").is_file()
            raise CheckpointError(
                "no tokenizer.json here",
                where=str(directory),
                remedy="convert tokenizer.model: load it with transformers' AutoTokenizer and save_pretrained"
                if has_sentencepiece
                else "copy the tokenizer files (tokenizer.json, tokenizer_config.json) next to the tensors",
            )
        try:
            rust = RustTokenizer.from_file(str(path))
        except Exception as error:  # all that `tokenizers` raises is the bare class
            raise CheckpointError("tokenizer.json cannot be read", where=str(path), got=str(error)) from None
        rust.no_truncation()  # some exports leave a limit of their training behind
        rust.no_padding()
        files = {name: read_json(directory / name) if (directory / name).is_file() else {} for name in _OWN_FILES[1:]}
        return cls(directory, rust, files)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text.

        Args:
            text: Any Unicode text.
            add_special_tokens: Add what the post-processor of tokenizer.json puts around a text, such as BOS (as
                transformers 5 does, whatever add_bos_token says); not for what `apply_chat_template` gave.

        Raises:
            RequestError: The text has lone surrogates, which no UTF-8 can carry.
        """
        try:
            return self._rust.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError):
            raise RequestError("the text is not valid Unicode", where="text_input", got=ascii(text[:80])) from None

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that `encode` cannot go below, found without encoding: the size over the longest token's.

        Encoding megabytes takes seconds; this tells at once that a text is beyond any context. 0 for tokenizers that
        may leave parts of a text out.
        """
        size = len(text.encode(errors="replace")) if self._decoding.kind == "byte_level" else len(text)
        return size // self._longest if self._longest else 0

    @cached_property
    def _longest(self) -> int:
        """Bytes (byte level) or characters (byte fallback) that one token covers at most; 0 where there is no bound."""
        whole = json.loads(self._rust.to_str())
        swallows = any(token["lstrip"] or token["rstrip"] for token in whole.get("added_tokens", ()))
        # Whatever is not in the vocabulary is one unknown token, however long, unless bytes stand for it.
        has_bytes = self._decoding.kind == "byte_level" or bool(whole["model"].get("byte_fallback"))
        if swallows or not has_bytes or whole["model"]["type"] != "BPE" or not _keeps_text(whole):
            return 0
        pieces = [self._rust.id_to_token(token_id) or "" for token_id in range(self.vocab_size)]
        added = (len(content.encode()) for content in self._added.values())
        return max(*map(len, pieces), *added, 1)  # one visible character per byte, or the characters themselves

    def decode(self, ids: Iterable[int]) -> str:
        """Text of a row of ids, without special tokens. Ids that mean nothing (padding rows) give nothing."""
        pieces = [piece for token_id in ids if (piece := self.id_to_bytes(token_id))]
        return self._decoding.strip_start(pieces).decode("utf-8", errors="replace")

    def id_to_bytes(self, token_id: int) -> bytes:
        """Bytes that an id adds to the text: empty for special tokens and for ids that mean nothing."""
        return b"" if token_id in self.special_ids else self.raw_bytes(token_id)

    def raw_bytes(self, token_id: int) -> bytes:
        """Bytes of an id, special or not; empty for an id that means nothing."""
        if token_id not in self._bytes:
            if not 0 <= token_id < self.vocab_size:
                return b""
            if token_id in self._added:
                self._bytes[token_id] = self._added[token_id].encode()
            else:
                token = self._rust.id_to_token(token_id)
                self._bytes[token_id] = b"" if token is None else self._decoding.token_bytes(token)
        return self._bytes[token_id]

    def has_id(self, token_id: int) -> bool:
        """Whether an id means anything (ids may have holes)."""
        return 0 <= token_id < self.vocab_size and self._rust.id_to_token(token_id) is not None

    def is_added(self, token_id: int) -> bool:
        """Whether an id was added to the vocabulary by hand (special tokens and the like)."""
        return token_id in self._added

    def strip_start(self, piece: bytes) -> bytes:
        """What the first piece that adds text becomes at the start of a text (SentencePiece drops its first space)."""
        return self._decoding.strip_start([piece])

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja chat template, where there is one."""
        return read_chat_template(self.path)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """Messages as the prompt that the model was tuned on; encode it with add_special_tokens=False.

        Raises:
            CheckpointError: There is no template.
            RequestError: The template refuses the messages.
        """
        from trt_spec.checkpoints.chat_template import render

        if self.chat_template is None:
            raise CheckpointError(
                "this tokenizer has no chat template", where=str(self.path), remedy="send a plain prompt instead"
            )
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        tokens = {name: content for name in names if (content := self._token_content(name)) is not None}
        return render(self.chat_template, messages, add_generation_prompt, tokens)

    def _token_content(self, name: str) -> str | None:
        value = self._settings.get(name)
        return value.get("content") if isinstance(value, dict) else value

    def _named_id(self, name: str) -> int | None:
        content = self._token_content(name)
        return None if content is None else self._rust.token_to_id(content)

    def _eos_ids(self, files: Mapping[str, dict[str, Any]]) -> frozenset[int]:
        named = files["generation_config.json"].get("eos_token_id")
        if named is None:
            named = files["config.json"].get("eos_token_id")
        ids = [*(named if isinstance(named, list) else [named]), self._named_id("eos_token")]
        return frozenset(token_id for token_id in ids if isinstance(token_id, int))


def _keeps_text(whole: Mapping[str, Any]) -> bool:
    """Whether normalizer and pre-tokenizer of a tokenizer.json leave a text at least as long as it is."""

    def lengthens(step: Mapping[str, Any]) -> bool:
        pattern = step.get("pattern", {}).get("String")
        is_replacing = step["type"] == "Replace" and pattern is not None and len(step["content"]) >= len(pattern)
        return is_replacing or step["type"] == "Prepend"

    def splits(step: Mapping[str, Any]) -> bool:
        return step["type"] in _KEEPING_PRE_TOKENIZERS and step.get("behavior") != "Removed"

    return all(map(lengthens, _steps(whole.get("normalizer"), "normalizers"))) and all(
        map(splits, _steps(whole.get("pre_tokenizer"), "pretokenizers"))
    )


def _steps(stage: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """The steps of a stage of tokenizer.json, which is none, one, or a sequence."""
    return [] if stage is None else stage.get(name, [stage])


class _Decoding:
    """How a token of tokenizer.json becomes bytes: "byte_level" (GPT-2) or "byte_fallback" (SentencePiece)."""

    def __init__(self, kind: str, start: str) -> None:
        self.kind = kind
        self.start = start  # what happens at the start of a text: "keep", "one_space" or "first_token"

    @classmethod
    def of(cls, decoder: Mapping[str, Any] | None, where: str) -> _Decoding:
        """From the decoder in tokenizer.json; refuses those that are not defined on bytes, such as WordPiece."""
        steps = (decoder or {}).get("decoders", [decoder]) if decoder else []
        kinds = {step["type"]: step for step in steps}
        if "ByteLevel" in kinds and kinds.keys() <= {"ByteLevel", "Fuse", "ByteFallback"}:
            return cls("byte_level", "keep")
        if kinds and kinds.keys() <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
            metaspace = kinds.get("Metaspace")
            if metaspace is not None:
                return cls("byte_fallback", "keep" if metaspace.get("prepend_scheme") == "never" else "first_token")
            replaces_mark = kinds.get("Replace", {}).get("pattern", {}).get("String") == _SPACE_MARK
            strip = kinds.get("Strip")
            if replaces_mark and (strip is None or (strip["content"], strip["start"], strip["stop"]) == (" ", 1, 0)):
                return cls("byte_fallback", "one_space" if strip else "keep")
        raise CheckpointError(
            "this tokenizer's decoder is not defined on bytes",
            where=f"{where}/tokenizer.json",
            got=", ".join(kinds) or "none",
            expected="ByteLevel, or SentencePiece with byte fallback",
            remedy="the torch target needs one of those; text of others cannot be streamed exactly",
        )

    def token_bytes(self, token: str) -> bytes:
        if self.kind == "byte_level":
            try:
                return bytes(_BYTE_OF_CHAR[char] for char in token)
            except KeyError:
                return token.encode()
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match.group(1), 16)])
        return token.replace(_SPACE_MARK, " ").encode()

    def strip_start(self, pieces: Sequence[bytes]) -> bytes:
        if pieces and self.start == "first_token":
            return b"".join([pieces[0].replace(b" ", b""), *pieces[1:]])
        joined = b"".join(pieces)
        return joined.removeprefix(b" ") if self.start == "one_space" else joined


def read_chat_template(directory: Path) -> str | None:
    """The chat template of a tokenizer directory, from any of the places that exports put it."""
    if (path := directory / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.json"):
        if (path := directory / name).is_file():
            template = read_json(path).get("chat_template")
            if isinstance(template, list):  # several by name
                template = {entry["name"]: entry["template"] for entry in template}.get("default")
            if template:
                return template
    return None
