"""Ways to draft for one target beside each other and beside plain decoding: one request at a time, by turns.

Every way is an engine of its own; plain decoding is the first of them with speculation off. Greedy, and the end of text
stops a reply: what a model writes after its end is easier to draft. Times and tokens per step are those of `Totals`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import RenderableType
from rich.text import Text

from trt_spec import provenance
from trt_spec.atomic import write_text
from trt_spec.bench.demo import build_engine
from trt_spec.bench.kinds import Result, check_drafts, distinct, span
from trt_spec.clients import prompts as workloads
from trt_spec.clients.client import Params
from trt_spec.clients.engine import SteppedClient
from trt_spec.clients.prompts import Prompt
from trt_spec.clients.rounds import Advance, by_arm, by_round, turns
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


@dataclass(frozen=True)
class Machine:
    """Where it was measured."""

    processor: str
    num_cores: int
    torch: str | None


@dataclass(frozen=True)
class MethodsResult(Result):
    """`workloads`: workload to arm, the first of which is "plain", to figures. `runs`: name to run.

    `is_right`: no output differs and no verdict is other than equivalent.
    """

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

    @classmethod
    def from_json(cls, text: str) -> MethodsResult:
        """What `--save` wrote."""
        return TypeAdapter(cls).validate_json(text)

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        for run in found["runs"].values():
            if run["certificate"] is None:
                del run["certificate"]
        return found

    @property
    def exit_code(self) -> int:
        return 0 if self.is_right else GateFailure.exit_code

    def view(self) -> RenderableType:
        header, rows = ["drafts"], [[self._name(arm)] for arm in (PLAIN, *self.runs)]
        for kind, arms in self.workloads.items():
            header += [f"{kind.replace('_', ' ')}:\ntokens/step", "TPOT\nms", "speed-up", "range"]
            for row, arm in zip(rows, (PLAIN, *self.runs), strict=True):
                row += [*cells(arms[arm], **_FORMATS), span(arms[arm], ".2f")]
        notes = []
        for name, run in self.runs.items():
            verdict = f"; {_certificate_words(run)}" if run.certificate else ""
            notes.append(f"{self._name(name)}: {_greedy_words(run)}{verdict}")
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
        for arm in (PLAIN, *self.runs):
            row, run = [f"`{self._name(arm)}`"], self.runs.get(arm)
            for arms in self.workloads.values():
                *others, speedup = cells(arms[arm], **_FORMATS)
                row += [*others, f"**{speedup}**" if run else speedup]
            rows.append([*row, *([_greedy_words(run), _certificate_words(run)] if run else ["", ""])])
        told = (
            f"`{self.command}`: {self.target} in {self.dtype}, batch 1, greedy, {self._settings()}. "
            f"{self.machine.num_cores} cores of {self.machine.processor}, torch {self.machine.torch}."
        )
        return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", told]) + "\n"

    def _name(self, arm: str) -> str:
        return distinct({name: run.method for name, run in self.runs.items()}).get(arm, arm)

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
        traces = measure_methods(engines, prompts, advance=advance)
    with reporter.progress("looking into where greedy outputs part"):
        greedy = {name: _greedy(engines[name], name, prompts, traces) for name in engines}
    engines.clear()
    found = {one.config.name: _method(one, greedy[one.config.name]) for one in runs}
    for one in runs if certify else ():
        found[one.config.name] = replace(found[one.config.name], certificate=_certify(one, reporter))
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
        is_right=all(
            not one.greedy.different and (one.certificate is None or one.certificate.verdict == "equivalent")
            for one in found.values()
        ),
    )
    if save is not None:
        write_text(save, json.dumps(_rounded(result.as_dict()), indent=1, ensure_ascii=False) + "\n")
        reporter.note(f"wrote {save}")
    return result


Rounds = list[list[Trace]]  # of one arm, by round: a reply to every prompt


def measure_methods(
    engines: Mapping[str, Engine],
    prompts: Mapping[str, Sequence[Prompt]],
    *,
    num_tokens: int | None = None,
    num_rounds: int | None = None,
    advance: Advance = lambda part: None,
) -> dict[str, dict[str, Rounds]]:
    """Asks every arm for a reply to every prompt: by workload, by arm, of which the first is "plain".

    Args:
        engines: idle, of one target, each with a drafter; their names are those of the arms.
        prompts: by workload.
        num_tokens: most output tokens of a reply; None for `NUM_TOKENS`.
        num_rounds: rounds that count; None for `NUM_ROUNDS`.
        advance: called with the part done, 0 to 1.

    Raises:
        TrtSpecError: a prompt does not fit an engine, or fails.
    """
    params = Params(SamplingParams(max_tokens=num_tokens or NUM_TOKENS))
    clients = {PLAIN: SteppedClient(next(iter(engines.values())), speculation=False)}
    clients |= {name: SteppedClient(engine) for name, engine in engines.items()}
    arms = {name: lambda prompt, client=client: client.ask(prompt, params) for name, client in clients.items()}
    traces = {}
    for place, (workload, items) in enumerate(prompts.items()):
        part = lambda done, place=place: advance((place + done) / len(prompts))  # noqa: E731
        found = by_arm(turns(arms, items, num_rounds=num_rounds or NUM_ROUNDS, advance=part))
        traces[workload] = {name: by_round(found[name]) for name in arms}
    return traces


def figures(arms: Mapping[str, Rounds]) -> dict[str, Figures]:
    """Figures by arm."""
    totals = {name: [Totals.of(traces) for traces in rounds] for name, rounds in arms.items()}
    return {name: _figures(rounds, totals[PLAIN]) for name, rounds in totals.items()}


def _figures(rounds: Sequence[Totals], plain: Sequence[Totals]) -> Figures:
    speedups = [one.tokens_per_s / other.tokens_per_s for one, other in zip(rounds, plain, strict=True)]
    tpots = [one.tpot_ms for one in rounds if one.tpot_ms is not None]
    return Figures(
        statistics.median(one.tokens_per_s for one in rounds),
        statistics.median(one.mean_ttft_ms for one in rounds),
        statistics.median(tpots) if tpots else None,
        rounds[0].tokens_per_step,
        statistics.median(speedups),
        min(speedups),
        max(speedups),
    )


def _greedy(
    engine: Engine, name: str, prompts: Mapping[str, Sequence[Prompt]], traces: Mapping[str, Mapping[str, Rounds]]
) -> Greedy:
    counts = {"equal": 0, "tie": 0, "different": 0}
    encode = workloads.encoder(engine.tokenizer)
    for kind, arms in traces.items():
        for prompt, plain, own in zip(prompts[kind], arms[PLAIN][0], arms[name][0], strict=True):
            divergence = explain_divergence(engine, encode(prompt), plain.token_ids, own.token_ids)
            counts["equal" if divergence is None else "tie" if divergence.is_tie else "different"] += 1
    return Greedy(**counts)


def _method(run: Run, greedy: Greedy) -> Method:
    speculation = run.config.speculation
    draft = draft_digests(Path(speculation.checkpoint)) if speculation.checkpoint else {}
    return Method(speculation.method, speculation.model_dump(mode="json", exclude_none=True), draft, greedy)


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


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return round(value, 4) if isinstance(value, float) else value
