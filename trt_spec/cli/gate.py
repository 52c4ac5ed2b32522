"""`trt-spec gate`: the speed-up of speculation against floors."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trt_spec.cli.options import run_options
from trt_spec.config.places import config_dirs
from trt_spec.errors import GateFailure, Inconclusive
from trt_spec.report.console import Reporter
from trt_spec.run import Run

FLOORS_DIR = "gates"  # below configs/
EXIT_CODES = {"pass": 0, "fail": GateFailure.exit_code, "inconclusive": Inconclusive.exit_code}
_EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--url", metavar="URL", help="Measure a Triton server, host:port or grpc://host:port; default: here.")
@click.option("--openai-url", metavar="URL", help="Measure an OpenAI-compatible server, http://host:port/v1.")
@click.option("--plain-url", metavar="URL", help="The plain arm's server, where one server cannot switch drafts off.")
@click.option("--floors", type=_EXISTING, help="A latency section over the run's own (default: configs/gates/<run>).")
@click.option(
    "--blocks", "num_pairs", default=20, show_default=True, type=click.IntRange(20), help="Blocks of each arm; even."
)
@click.option(
    "--rate", "rate_per_s", type=click.FloatRange(min=0, min_open=True), help="Poisson arrivals, this many a second."
)
@click.option("--prompts", "prompts_path", type=_EXISTING, help="One message per line, instead of latency.workload.")
@click.option(
    "--records", "records_path", type=_EXISTING, help="Judge the records of an earlier run again; measures nothing."
)
@click.option(
    "--report", "report_dir", metavar="DIR", type=click.Path(path_type=Path), help="Default: reports/<run>/gate."
)
@run_options
def gate(reporter: Reporter, run: Run, floors: Path | None, report_dir: Path | None, **options: Any) -> int:
    """Gate the speed-up and TTFT of speculation.

    Sends the same prompts with speculation off and on, in ABBA blocks, and judges ratios by a paired bootstrap against
    latency.min_speedup and latency.max_ttft_p99_ratio: pass (exit code 0), fail (1), or inconclusive (4) where A/A
    spreads wider than the effect. Writes gate.json, records.jsonl, junit.xml and index.html to reports/<run>/gate. For
    a server that wants a key, OPENAI_API_KEY is sent.
    """
    from trt_spec.config import loader
    from trt_spec.gate import report
    from trt_spec.gate import run as gating
    from trt_spec.gate.options import REPORTS_DIR, Options, check
    from trt_spec.report.schema import as_json

    asked = Options(**options, api_key=os.environ.get("OPENAI_API_KEY") if options["openai_url"] else None)
    path = floors or _committed_floors(run.config.name)
    if path is not None:
        reporter.note(f"floors from {path}")
        run = replace(run, config=loader.with_latency(run.config, path, run.overrides))
    check(run, asked)
    floors_from = str(path) if path else "the run config"
    if asked.records_path is not None:
        found, raw = gating.judge_again(run, asked, floors_from)
    else:
        found, raw = gating.run_gate(run, asked, floors_from, reporter)
    directory = report_dir or REPORTS_DIR / run.config.name / "gate"
    written = report.write(found, raw, directory)
    reporter.result({**as_json(found), "files": [str(path) for path in written]}, report.view(found))
    for note in found.notes:
        reporter.warn(note)
    reporter.note(f"wrote {', '.join(str(path) for path in written)}")
    return EXIT_CODES[found.verdict]


def _committed_floors(name: str) -> Path | None:
    places = [directory / FLOORS_DIR / f"{name}.yaml" for directory in config_dirs()]
    return next((path for path in places if path.is_file()), None)
