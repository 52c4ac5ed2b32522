"""Raw records, one per request, in nanoseconds: everything that the gate says is derived from them. Kept as JSONL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trt_spec.clients.trace import Trace
from trt_spec.errors import UsageError

Arm = Literal["plain", "speculation"]
ARMS: tuple[Arm, Arm] = ("plain", "speculation")
WARM_UP = -1
FORMAT = "trt-spec gate records 2"
FORMAT_1 = "trt-spec gate records 1"  # place, times and counters in one object, without the answer


@dataclass(frozen=True)
class Placed:
    """One answer, with its place in the run.

    Attributes:
        load: the arrival process by name, such as "concurrency 4".
        block: number of the block within its load, in the order of time.
        pair: of neighbouring blocks, one of each arm; `WARM_UP` for those that are not counted.
    """

    trace: Trace
    load: str = ""
    arm: Arm = "plain"
    block: int = 0
    pair: int = WARM_UP

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), separators=(",", ":"))


def dump(header: Mapping[str, Any], records: Sequence[Placed]) -> str:
    """A header line with what the run was, then one line per request."""
    first = json.dumps({"format": FORMAT, **header}, ensure_ascii=False)
    return "\n".join([first, *(record.as_json() for record in records)]) + "\n"


def load(path: Path) -> tuple[dict[str, Any], list[Placed]]:
    """Header and records of a file that `dump` wrote, of this format or the first one.

    Raises:
        UsageError: it is no such file, or a line is damaged; names the line.
    """
    number = 1
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        header = json.loads(lines[0]) if lines else {}
        found = header.pop("format", None) if isinstance(header, dict) else None
        if found not in (FORMAT, FORMAT_1):
            raise ValueError(f"no line with format {FORMAT!r}")
        records: list[Placed] = []
        while number < len(lines):
            number += 1
            values = json.loads(lines[number - 1])
            if not isinstance(values, dict):
                raise ValueError("no JSON object")
            records.append(_placed(values if found == FORMAT else _of_format_1(values)))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            "these are no records of the latency gate",
            where=f"{path}:{number}",
            got=str(error),
            remedy="give the records.jsonl that trt-spec gate wrote",
        ) from None
    return header, records


def _placed(values: Mapping[str, Any]) -> Placed:
    trace = Trace.from_dict(values["trace"])
    record = Placed(**{**values, "trace": trace})
    numbers = (trace.num_output_tokens, trace.due_ns, trace.sent_ns, record.block, record.pair, *trace.chunk_ns)
    if not trace.chunk_ns or record.arm not in ARMS or not all(type(number) is int for number in numbers):
        raise ValueError("times or the arm are missing")
    return record


def _of_format_1(values: dict[str, Any]) -> Mapping[str, Any]:
    """As a line of this format has it."""
    place = {name: values.pop(name) for name in ("load", "arm", "block", "pair") if name in values}
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")
    drafts = {name: values.pop(name, None) for name in names}
    is_told = drafts["num_draft_tokens"] is not None and drafts["num_accepted_tokens"] is not None
    return {**place, "trace": {**values, "drafts": drafts if is_told else None}}
