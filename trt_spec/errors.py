"""One exception tree. Every error says what, where, got, expected and what to do, and knows its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class TrtSpecError(Exception):
    """Base of every error that a user can meet.

    Args:
        what: One sentence that says what is wrong.
        where: File, file:line, tensor, key or parameter that it is about.
        got: The offending value; printed with `repr` unless it is a string.
        expected: What would have been accepted.
        remedy: The next thing to do, as an instruction.
        details: Further lines, one finding each, for errors that collect several.
        code: A short stable word for scripts; the class's own code unless given.
    """

    exit_code: ClassVar[int] = 2
    default_code: ClassVar[str] = "error"

    def __init_subclass__(cls, code: str | None = None, exit_code: int | None = None) -> None:
        """A kind of error says its code and exit code where it is defined; without them it has its base's."""
        cls.default_code = code or cls.default_code
        cls.exit_code = exit_code or cls.exit_code

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        got: object = None,
        expected: object = None,
        remedy: str | None = None,
        details: Sequence[str] = (),
        code: str | None = None,
    ) -> None:
        super().__init__(what)  # pickled as (class, what) and the attributes, so subclasses keep this signature
        self.what = what
        self.where = where
        self.got = got
        self.expected = expected
        self.remedy = remedy
        self.details = tuple(details)
        self.code = code or self.default_code

    def _said(self) -> dict[str, str]:
        values = {"where": self.where, "got": self.got, "expected": self.expected, "remedy": self.remedy}
        return {name: _show(value) for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        said = [f"  {_LABELS.get(name, name)}: {value}" for name, value in self._said().items()]
        return "\n".join([self.what, *(f"  - {detail}" for detail in self.details), *said])

    def as_dict(self) -> dict[str, object]:
        """The same as a JSON-ready dictionary; fields that were not given are left out."""
        kind = {"error": type(self).__name__, "code": self.code, "exit_code": self.exit_code, "message": self.what}
        return {**kind, **self._said(), **({"details": list(self.details)} if self.details else {})}


_LABELS = {"remedy": "what to do"}


def _show(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


class UsageError(TrtSpecError, code="usage"):
    """A command line that cannot be carried out as written."""


class ConfigError(TrtSpecError, code="config"):
    """A run config that cannot be read, or that contradicts itself."""


class CheckpointError(TrtSpecError, code="checkpoint"):
    """A checkpoint that is damaged, incomplete, or not what it was said to be."""


class PairError(CheckpointError, code="pair"):
    """A target and a draft that do not fit together."""


class RequestError(TrtSpecError, code="request"):
    """A request with a parameter that cannot be honoured; `where` names the parameter."""


class CapabilityError(TrtSpecError, code="capability"):
    """A combination of method, build target, version and sampling that is not offered."""


class BuildError(TrtSpecError, code="build"):
    """A build that could not finish; the engine that was there before is untouched."""


class BuildInterruptedError(BuildError, code="build-interrupted", exit_code=130):  # as a shell reports Ctrl-C
    """A build stopped from outside; the engine that was there before is untouched."""


class MachineError(TrtSpecError, code="machine", exit_code=3):
    """This machine lacks something: a tool, a library, a device, a free port, memory, disk."""


class OverloadedError(TrtSpecError, code="overloaded", exit_code=3):
    """The engine's queue is full; nothing is wrong with the request."""


class GateFailure(TrtSpecError, code="gate", exit_code=1):
    """A latency gate or an equivalence check that ran and said no."""


class Inconclusive(TrtSpecError, code="inconclusive", exit_code=4):
    """A check that ran and could not decide."""
