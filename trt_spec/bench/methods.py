"""Ways to draft for one target beside each other and beside plain decoding: one request at a time, by turns.

Every way is an engine of its own; plain decoding is the first of them with speculation off. Greedy, and the end of text
stops a reply: what a model writes after its end is easier to draft. Times and tokens per step are those of `Totals`.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter
from rich.console import RenderableType
from rich.text import Text

from trt_spec import provenance
from trt_spec.atomic import write_text
from trt_spec.bench.demo import build_engine
from trt_spec.bench.kinds import Result, check_drafts, distinct, span, spread
from trt_spec.clients import prompts as workloads
from trt_spec.clients.client import Params
from trt_spec.clients.engine import SteppedClient
from trt_spec.clients.prompts import Prompt
from trt_spec.clients.rounds import Advance, results, turns
from trt_spec.clients.trace import Totals, Trace
from trt_spec.engines.manifest import digest_files
from trt_spec.engines.torch.self_check import explain_divergence
from trt_spec.equivalence import certify as certification
from trt_spec.equivalence import report as certificate
from trt_spec.equivalence.certificate import Judged
from trt_spec.equivalence.options import REPORTS_DIR, Options
from trt_spec.errors import GateFailure
from trt_spec.report.console import Reporter
from trt_spec.report.tables import cells, table, titled
from trt_spec.run import Run, load_engine, runs_beside
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.request import SamplingParams

WORKLOADS = ("chat", "code_editing")
NUM_PROMPTS = 6  # of each workload, its first ones
NUM_TOKENS = 48
NUM_ROUNDS = 3
PLAIN = "plain"
TAU = 0.05
_MAX_TOKENS = 60_000  # as `trt-spec verify` has it


@dataclass(frozen=True)
class Figures:
    """One arm on one workload: medians over rounds.

    Attributes:
        tokens_per_step: of a decoding step, drafted or not.
        speedup: tokens per second over those of plain decoding in the same round, and its range.
    """

    tokens_per_s: float
    ttft_ms: float
    tpot_ms: float | None
    tokens_per_step: float
    speedup: float
    lowest: float
    highest: float


_FORMATS = {"tokens_per_step": ".2f", "tpot_ms": ".1f", "speedup": ".2f"}


@dataclass(frozen=True)
class Greedy:
    """Outputs that are those of plain decoding, part from it at a tie within the dtype's rounding, or differ."""

    equal: int = 0
    tie: int = 0
    different: int = 0


@dataclass(frozen=True)
class Certificate:
    """The gist of a certificate; `num_tokens` were looked at."""

    verdict: str
    reason: str
    num_tokens: int
    tau: float
    alpha: float


@dataclass(frozen=True)
class Method:
    """A run: what was measured (`draft`: SHA-256 by file of the checkpoint), and what became of its outputs."""

    method: str
    speculation: Mapping[str, Any]
    draft: Mapping[str, str]
    greedy: Greedy
    certificate: Certificate | None = None

    @property
    def is_right(self) -> bool:
        """Whether no output differs, and a verdict, where there is one, is that both are equivalent."""
        return not self.greedy.different and (self.certificate is None or self.certificate.verdict == "equivalent")


@dataclass(frozen=True)
class Machine:
    """Where it was measured."""

    processor: str
    num_cores: int
    torch: str | None


@dataclass(frozen=True)
class MethodsResult(Result):
    """`workloads`: workload to arm, the first of which is "plain", to figures. `is_right`: every run is."""

    command: str
    target: str
    dtype: str
    num_tokens: int
    num_rounds: int
    num_prompts: int
    machine: Machine
    workloads: Mapping[str, Mapping[str, Figures]]
    runs: Mapping[str, Method]
    is_right: bool
    optional: ClassVar[tuple[str, ...]] = ("certificate",)

    @classmethod
    def from_json(cls, text: str) -> MethodsResult:
        """What `--save` wrote."""
        return TypeAdapter(cls).validate_json(text)

    @property
    def exit_code(self) -> int:
        return 0 if self.is_right else GateFailure.exit_code

    def view(self) -> RenderableType:
        header = ["drafts"]
        for kind in self.workloads:
            header += [f"{kind.replace('_', ' ')}:\ntokens/step", "TPOT\nms", "speed-up", "range"]
        rows = [
            [name, *(cell for one in found for cell in (*cells(one, **_FORMATS), span(one, ".2f")))]
            for name, _, found in self._arms()
        ]
        notes = [
            f"{name}: {_greedy_words(run)}" + (f"; {_certificate_words(run)}" if run.certificate else "")
            for name, run, _ in self._arms()
            if run is not None
        ]
        notes.append("speed-up: output tokens per second of latency over plain decoding in the same round, medians.")
        if not any(run.certificate for run in self.runs.values()):
            notes.append("Nothing was verified; --certify does it.")
        title = f"{self.target}, {self.dtype}, batch 1, greedy: {self._settings()}"
        shown = table(header, rows, numeric=tuple(range(1, len(header))))
        return titled(title, shown, Text("\n".join(notes), style="dim"))

    def markdown(self) -> str:
        """The same for the README."""
        header = ["drafts"]
        for kind in self.workloads:
            header += [f"{kind.replace('_', ' ')}: tokens per step", "TPOT, ms", "speed-up"]
        rows = [[*header, "greedy outputs", "certificate"], ["---"] * (len(header) + 2)]
        for name, run, found in self._arms():
            row = [f"`{name}`"]
            for one in found:
                *others, speedup = cells(one, **_FORMATS)
                row += [*others, f"**{speedup}**" if run else speedup]
            rows.append([*row, *([_greedy_words(run), _certificate_words(run)] if run else ["", ""])])
        told = (
            f"`{self.command}`: {self.target} in {self.dtype}, batch 1, greedy, {self._settings()}. "
            f"{self.machine.num_cores} cores of {self.machine.processor}, torch {self.machine.torch}."
        )
        return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", told]) + "\n"

    def _arms(self) -> Iterator[tuple[str, Method | None, list[Figures]]]:
        """What an arm is called, its run (None for plain decoding), and its figures by workload."""
        names = distinct({name: run.method for name, run in self.runs.items()})
        for arm in (PLAIN, *self.runs):
            yield names.get(arm, arm), self.runs.get(arm), [arms[arm] for arms in self.workloads.values()]

    def _settings(self) -> str:
        return (
            f"{self.num_prompts} prompts of each kind, replies of at most {self.num_tokens} tokens, "
            f"medians of {self.num_rounds} rounds in turns"
        )


def _greedy_words(run: Method) -> str:
    counts = run.greedy
    words = ((counts.equal, "equal"), (counts.tie, "tie" if counts.tie == 1 else "ties"), (counts.different, "differ"))
    return ", ".join(f"{count} {word}" for count, word in words if count)


def _certificate_words(run: Method) -> str:
    """Such as "equivalent, τ = 0.05, α = 0.0001, 11,073 tokens"."""
    found = run.certificate
    if found is None:
        return "none"
    return f"{found.verdict}, τ = {found.tau:g}, α = {found.alpha:g}, {found.num_tokens:,} tokens"


def run(
    run: Run, reporter: Reporter, *, beside: tuple[str, ...] = (), certify: bool = False, save: Path | None = None
) -> MethodsResult:
    """Times the run and others of its target beside plain decoding; engines are built where they are not there.

    Args:
        beside: see `runs_beside`.
        certify: verify each run at a tolerance of `TAU`, as `trt-spec verify` does.
        save: where the result goes, for `make docs`; numbers to four digits behind the point.

    Raises:
        UsageError: there is no run.
    """
    runs = runs_beside(run, beside)
    check_drafts(runs)
    for one in runs:
        build_engine(one, reporter)
    engines = {one.config.name: load_engine(one, reporter) for one in runs}
    prompts = {name: workloads.load(name)[:NUM_PROMPTS] for name in WORKLOADS}
    with reporter.progress("timing plain decoding and every run in turns") as advance:
        traces = measure_methods(engines, prompts, num_tokens=NUM_TOKENS, num_rounds=NUM_ROUNDS, advance=advance)
    with reporter.progress("looking into where greedy outputs part"):
        greedy = {name: _greedy(engine, name, prompts, traces) for name, engine in engines.items()}
    engines.clear()
    found = {
        name: _method(one, greedy[name], _certify(one, reporter) if certify else None)
        for name, one in zip(greedy, runs, strict=True)
    }
    hardware = provenance.hardware()
    result = MethodsResult(
        command=f"trt-spec bench {runs[0].words} --what methods" + (" --certify" if certify else ""),
        target=Path(runs[0].config.target.checkpoint).name,
        dtype=runs[0].config.target.dtype,
        num_tokens=NUM_TOKENS,
        num_rounds=NUM_ROUNDS,
        num_prompts=NUM_PROMPTS,
        machine=Machine(hardware.processor, hardware.num_cores, provenance.versions().get("torch")),
        workloads={name: figures(arms) for name, arms in traces.items()},
        runs=found,
        is_right=all(one.is_right for one in found.values()),
    )
    if save is not None:
        rounded = json.loads(json.dumps(result.as_dict()), parse_float=lambda text: round(float(text), 4))
        write_text(save, json.dumps(rounded, indent=1, ensure_ascii=False) + "\n")
        reporter.note(f"wrote {save}")
    return result


Rounds = list[list[Trace]]  # of one arm, by round: a reply to every prompt


def measure_methods(
    engines: Mapping[str, Engine],
    prompts: Mapping[str, Sequence[Prompt]],
    *,
    num_tokens: int,
    num_rounds: int,
    advance: Advance = lambda part: None,
) -> dict[str, dict[str, Rounds]]:
    """Asks every arm for a reply to every prompt: by workload, by arm, of which the first is "plain".

    Args:
        engines: idle, of one target, each with a drafter; their names are those of the arms.
        prompts: by workload.
        num_tokens: most output tokens of a reply.

    Raises:
        TrtSpecError: a prompt does not fit an engine, or fails.
    """
    params = Params(SamplingParams(max_tokens=num_tokens))
    clients = {PLAIN: SteppedClient(next(iter(engines.values())), speculation=False)}
    clients |= {name: SteppedClient(engine) for name, engine in engines.items()}
    arms = {name: lambda prompt, client=client: client.ask(prompt, params) for name, client in clients.items()}
    traces = {}
    for place, (workload, items) in enumerate(prompts.items()):
        part = lambda done, place=place: advance((place + done) / len(prompts))  # noqa: E731
        found = results(turns(arms, items, num_rounds=num_rounds, advance=part))
        starts = range(0, num_rounds * len(items), len(items))
        traces[workload] = {name: [of_arm[at : at + len(items)] for at in starts] for name, of_arm in found.items()}
    return traces


def figures(arms: Mapping[str, Rounds]) -> dict[str, Figures]:
    """Figures by arm."""
    totals = {name: [Totals.of(traces) for traces in rounds] for name, rounds in arms.items()}
    return {name: _figures(rounds, totals[PLAIN]) for name, rounds in totals.items()}


def _figures(rounds: Sequence[Totals], plain: Sequence[Totals]) -> Figures:
    tpots = [one.tpot_ms for one in rounds if one.tpot_ms is not None]
    return Figures(
        statistics.median(one.tokens_per_s for one in rounds),
        statistics.median(one.mean_ttft_ms for one in rounds),
        statistics.median(tpots) if tpots else None,
        rounds[0].tokens_per_step,
        *spread(one.tokens_per_s / other.tokens_per_s for one, other in zip(rounds, plain, strict=True)),
    )


def _greedy(
    engine: Engine, name: str, prompts: Mapping[str, Sequence[Prompt]], traces: Mapping[str, Mapping[str, Rounds]]
) -> Greedy:
    counts: Counter[str] = Counter()
    encode = workloads.encoder(engine.tokenizer)
    for kind, arms in traces.items():
        for prompt, plain, own in zip(prompts[kind], arms[PLAIN][0], arms[name][0], strict=True):
            divergence = explain_divergence(engine, encode(prompt), plain.token_ids, own.token_ids)
            counts["equal" if divergence is None else "tie" if divergence.is_tie else "different"] += 1
    return Greedy(**counts)


def _method(run: Run, greedy: Greedy, certificate: Certificate | None) -> Method:
    speculation = run.config.speculation
    draft = draft_digests(Path(speculation.checkpoint)) if speculation.checkpoint else {}
    settings = speculation.model_dump(mode="json", exclude_none=True)
    return Method(speculation.method, settings, draft, greedy, certificate)


def draft_digests(directory: Path) -> dict[str, str]:
    """SHA-256 of the weights and the config of a draft checkpoint, by file name."""
    kept = (".safetensors", ".bin", ".pt")
    files = sorted(path.name for path in directory.iterdir() if path.name == "config.json" or path.suffix in kept)
    return {name: record.sha256 for name, record in digest_files(directory, files).items()}


def _certify(run: Run, reporter: Reporter) -> Certificate:
    """Verifies a run as `trt-spec verify` with equivalence.tau at `TAU` does, writes its report, returns the gist."""
    equivalence = run.config.equivalence.model_copy(update={"tau": TAU})
    strict = replace(run, config=run.config.model_copy(update={"equivalence": equivalence}))
    directory = REPORTS_DIR / run.config.name
    options = Options(None, "native", None, _MAX_TOKENS, None, False, True, directory, {})
    found = certification.verify(strict, options, reporter)
    certificate.write(found, directory)
    num_tokens = found.arms["speculation"].num_tokens if isinstance(found, Judged) else 0
    return Certificate(found.verdict, found.reason, num_tokens, TAU, equivalence.alpha)
