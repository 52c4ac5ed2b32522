"""Raw records, one per request, in nanoseconds: everything that the gate says is derived from them. Kept as JSONL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trt_spec.errors import UsageError

Arm = Literal["plain", "speculation"]
ARMS: tuple[Arm, Arm] = ("plain", "speculation")
WARM_UP = -1
FORMAT = "trt-spec gate records 1"


@dataclass(frozen=True)
class Answer:
    """What a client saw of one answer. Times by the client's monotonic clock; only chunks that hold tokens.

    Attributes:
        chunk_ns: when each chunk was there.
        chunk_tokens: tokens of each, counted from ids; None where the server only tells their sum.
        num_output_tokens: counted from token ids, by us or by the server.
        num_drafts, num_draft_tokens, num_accepted_tokens, num_accepted_tokens_per_pos: None where not told.
    """

    chunk_ns: tuple[int, ...]
    chunk_tokens: tuple[int, ...] | None
    num_output_tokens: int
    num_input_tokens: int
    num_drafts: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    num_accepted_tokens_per_pos: tuple[int, ...] | None = None


@dataclass(frozen=True)
class RequestRecord(Answer):
    """One request, with its place in the run.

    Attributes:
        load: the arrival process by name, such as "concurrency 4".
        block: number of the block within its load, in the order of time.
        pair: of neighbouring blocks, one of each arm; `WARM_UP` for those that are not counted.
        prompt: its name.
        due_ns: when it should be sent; latency counts from here.
        sent_ns: when it was sent.
    """

    load: str = ""
    arm: Arm = "plain"
    block: int = 0
    pair: int = WARM_UP
    prompt: str = ""
    due_ns: int = 0
    sent_ns: int = 0

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), separators=(",", ":"))


def dump(header: Mapping[str, Any], records: Sequence[RequestRecord]) -> str:
    """A header line with what the run was, then one line per request."""
    first = json.dumps({"format": FORMAT, **header}, ensure_ascii=False)
    return "\n".join([first, *(record.as_json() for record in records)]) + "\n"


def load(path: Path) -> tuple[dict[str, Any], list[RequestRecord]]:
    """Header and records of a file that `dump` wrote.

    Raises:
        UsageError: it is no such file, or a line is damaged; names the line.
    """
    number = 1
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        header = json.loads(lines[0]) if lines else {}
        if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
            raise ValueError(f"no line with format {FORMAT!r}")
        records: list[RequestRecord] = []
        while number < len(lines):
            number += 1
            records.append(_record(json.loads(lines[number - 1])))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            "these are no records of the latency gate",
            where=f"{path}:{number}",
            got=str(error),
            remedy="give the records.jsonl that trt-spec gate wrote",
        ) from None
    return header, records


def _record(values: Any) -> RequestRecord:
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    lists = ("chunk_ns", "chunk_tokens", "num_accepted_tokens_per_pos")
    record = RequestRecord(**{key: tuple(value) if key in lists and value else value for key, value in values.items()})
    numbers = (record.num_output_tokens, record.due_ns, record.sent_ns, record.block, record.pair, *record.chunk_ns)
    if not record.chunk_ns or record.arm not in ARMS or not all(type(number) is int for number in numbers):
        raise ValueError("times or the arm are missing")
    return record
