"""`trt-spec bench --what methods`: the runs of one target beside plain decoding, timed, and on wish certified."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_spec import provenance
from trt_spec.atomic import write_text
from trt_spec.bench.demo import build_engine
from trt_spec.clients import prompts as workload
from trt_spec.clients.prompts import encoder
from trt_spec.engines import manifest as manifests
from trt_spec.engines.torch.self_check import explain_divergence
from trt_spec.equivalence import certify
from trt_spec.equivalence import report as certificate
from trt_spec.equivalence.certificate import Judged
from trt_spec.equivalence.options import REPORTS_DIR, Options
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import Run, load_engine

if TYPE_CHECKING:
    from trt_spec.runtime.engine import Engine

WORKLOADS = ("chat", "code_editing")
NUM_PROMPTS = 6  # of each workload, its first ones
TAU = 0.05
_MAX_TOKENS = 60_000  # as `trt-spec verify` has it

Outputs = Mapping[str, Mapping[str, Sequence[Sequence[int]]]]  # by workload, by arm


def methods(
    runs: Sequence[Run], reporter: Reporter, *, has_certificates: bool, num_prompts: int | None = None, **settings: int
) -> dict[str, Any]:
    """Times every run beside plain decoding, see `latency.methods`; engines are built where they are not there.

    Args:
        runs: of one target, each with a drafter.
        has_certificates: verify each run at a tolerance of `TAU`, as `trt-spec verify` does.
        num_prompts: prompts of each workload; None for `NUM_PROMPTS`.
        settings: num_tokens and num_rounds of `measure_methods`.

    Returns:
        `workloads`: by workload, by arm, what `measure_methods` returns but for the outputs; `runs`: by name, what was
            measured (method, speculation, SHA-256 of the draft's files) and found: `greedy` counts outputs that are
            equal to plain decoding's, part at a tie, or differ; `certificate`; `is_right`: no output differs and no
            verdict is other than equivalent.

    Raises:
        UsageError: there is no run.
    """
    from trt_spec.bench.methods import DEFAULT_NUM_ROUNDS, DEFAULT_NUM_TOKENS, measure_methods

    if not runs:
        raise UsageError("no run drafts anything", where="speculation.method", remedy="name a run with a drafter")
    num_prompts = num_prompts or NUM_PROMPTS
    settings = {"num_tokens": DEFAULT_NUM_TOKENS, "num_rounds": DEFAULT_NUM_ROUNDS, **settings}
    for run in runs:
        build_engine(run, reporter)
    engines = {run.config.name: load_engine(run, reporter) for run in runs}
    first = next(iter(engines.values()))
    encode = encoder(first.tokenizer)
    prompts = {name: [encode(prompt) for prompt in workload.load(name)[:num_prompts]] for name in WORKLOADS}
    with reporter.progress("timing plain decoding and every run in turns") as advance:
        measured = measure_methods(engines, prompts, **settings, advance=lambda part: advance(part, None))
    outputs = {name: {arm: figures.pop("outputs") for arm, figures in arms.items()} for name, arms in measured.items()}
    with reporter.progress("looking into where greedy outputs part"):
        greedy = {name: _greedy(first, name, prompts, outputs) for name in engines}
    del engines, first
    found = {run.config.name: {**_what(run), "greedy": greedy[run.config.name]} for run in runs}
    for run in runs if has_certificates else ():
        found[run.config.name]["certificate"] = _certify(run, reporter)
    verdicts = [one["certificate"]["verdict"] for one in found.values() if "certificate" in one]
    return {
        "command": f"trt-spec bench {runs[0].words} --what methods" + (" --certify" if has_certificates else ""),
        "target": Path(runs[0].config.target.checkpoint).name,
        "dtype": runs[0].config.target.dtype,
        **settings,
        "num_prompts": num_prompts,
        "machine": _machine(),
        "workloads": measured,
        "runs": found,
        "is_right": all(not one["greedy"]["different"] for one in found.values())
        and all(verdict == "equivalent" for verdict in verdicts),
    }


def save(result: Mapping[str, Any], path: Path) -> None:
    """The result as a file that `make docs` reads; numbers to four digits behind the point."""

    def rounded(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: rounded(item) for key, item in value.items()}
        return round(value, 4) if isinstance(value, float) else value

    write_text(path, json.dumps(rounded(result), indent=1, ensure_ascii=False) + "\n")


def draft_digests(directory: Path) -> dict[str, str]:
    """SHA-256 of the weights and the config of a draft checkpoint, by file name."""
    files = sorted(path.name for path in directory.iterdir() if path.name == "config.json" or _has_weights(path))
    return {name: record.sha256 for name, record in manifests.digest_files(directory, files).items()}


def _has_weights(path: Path) -> bool:
    return path.suffix in (".safetensors", ".bin", ".pt")


def _what(run: Run) -> dict[str, Any]:
    speculation = run.config.speculation
    return {
        "method": speculation.method,
        "speculation": speculation.model_dump(mode="json", exclude_none=True),
        "draft": draft_digests(Path(speculation.checkpoint)) if speculation.checkpoint else {},
    }


def _greedy(engine: Engine, name: str, prompts: Mapping[str, Sequence[Any]], outputs: Outputs) -> dict[str, int]:
    """How many outputs are those of plain decoding, part from it at a tie within the dtype's rounding, or differ."""
    counts = {"equal": 0, "tie": 0, "different": 0}
    for kind, arms in outputs.items():
        for ids, plain, speculative in zip(prompts[kind], arms["plain"], arms[name], strict=True):
            divergence = explain_divergence(engine, ids, plain, speculative)
            counts["equal" if divergence is None else "tie" if divergence.is_tie else "different"] += 1
    return counts


def _certify(run: Run, reporter: Reporter) -> dict[str, Any]:
    """Verifies a run as `trt-spec verify` with equivalence.tau at `TAU` does, writes its report, returns the gist."""
    equivalence = run.config.equivalence.model_copy(update={"tau": TAU})
    strict = replace(run, config=run.config.model_copy(update={"equivalence": equivalence}))
    directory = REPORTS_DIR / run.config.name
    options = Options(None, "native", None, _MAX_TOKENS, None, False, True, directory, {})
    found = certify.verify(strict, options, reporter)
    certificate.write(found, directory)
    num_tokens = found.arms["speculation"].num_tokens if isinstance(found, Judged) else 0
    gist = {"verdict": found.verdict, "reason": found.reason, "num_tokens": num_tokens}
    return {**gist, "tau": TAU, "alpha": equivalence.alpha}


def _machine() -> dict[str, Any]:
    hardware = provenance.hardware()
    return {
        "processor": hardware["processor"],
        "num_cores": hardware["num_cores"],
        "torch": provenance.versions().get("torch"),
    }
