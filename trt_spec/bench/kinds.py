"""The benchmarks of `trt-spec bench`. A new one is a module beside this one and a line of `KINDS`.

Its module has `run(run, reporter, **options)`, which measures the built engine and returns a `Result`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trt_spec.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trt_spec.report.console import Reporter
    from trt_spec.run import Run

KINDS: dict[str, tuple[str, ...]] = {  # name of the module to the options that only it takes
    "floor": (),
    "peers": ("prompt",),
    "drafting": ("acceptance",),
    "methods": ("beside", "certify", "save"),
    "sweep": ("vllm_python", "plot"),
    "serving": (),
}


@dataclass(frozen=True)
class Result:
    """What a benchmark found: its fields are what `--json` prints, those in `optional` only where they are there."""

    optional: ClassVar[tuple[str, ...]] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        absent = [(name, None) for name in self.optional]
        return asdict(self, dict_factory=lambda pairs: dict(pair for pair in pairs if pair not in absent))

    def view(self) -> RenderableType:
        """For a terminal; its JSON, where a kind of benchmark has no table of its own."""
        from rich.json import JSON

        return JSON.from_data(self.as_dict())

    @property
    def exit_code(self) -> int:
        """0, unless what was found is wrong."""
        return 0


def measure(kind: str, run: Run, reporter: Reporter, options: Mapping[str, Any]) -> Result:
    """Runs a benchmark with those of the options that are its own; UsageError where one of another kind was given."""
    for other, names in KINDS.items():
        for name in names:
            if options[name] not in (None, False, ()) and other != kind:
                raise UsageError(f"--{name.replace('_', '-')} is for --what {other}")
    module = importlib.import_module(f"trt_spec.bench.{kind}")
    return module.run(run, reporter, **{name: options[name] for name in KINDS[kind]})


def check_drafts(runs: Sequence[Run]) -> None:
    """Raises UsageError where there is no run, or one that drafts nothing."""
    if not runs:
        raise UsageError("no run drafts anything", where="speculation.method", remedy="name a run with a drafter")
    if any(run.config.speculation.method == "none" for run in runs):
        raise UsageError("this run drafts nothing", where="speculation.method", remedy="bench a run with a drafter")


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """The median of what varied from round to round, the lowest and the highest."""
    import statistics  # slow to import, and the command line reads this file

    found = sorted(values)
    return statistics.median(found), found[0], found[-1]


def span(figures: Any, spec: str) -> str:
    """The range of what varied from round to round."""
    return f"{figures.lowest:{spec}} to {figures.highest:{spec}}"


def distinct(methods: Mapping[str, str]) -> dict[str, str]:
    """Run to what it is called beside others: its method, or its own name where two have one method."""
    return dict(methods) if len(set(methods.values())) == len(methods) else {run: run for run in methods}
