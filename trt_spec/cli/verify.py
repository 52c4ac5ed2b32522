"""`trt-spec verify`, mounted by cli.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trt_spec.cli.options import request_options, run_options
from trt_spec.errors import GateFailure, Inconclusive
from trt_spec.report.console import Reporter
from trt_spec.run import Run

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXIT_CODES = {
    "equivalent": 0,
    "different": GateFailure.exit_code,
    "inconclusive": Inconclusive.exit_code,
    "lossy by configuration": GateFailure.exit_code,
}


@click.command()
@click.option("--url", metavar="URL", help="Judge a server, host:port for HTTP; without it the built engine, here.")
@click.option(
    "--reference",
    type=click.Choice(["native", "transformers"]),
    default="native",
    show_default=True,
    help="What scores the served tokens.",
)
@click.option(
    "--cross-check/--no-cross-check",
    "is_cross_checked",
    default=True,
    help="Compare a native reference with transformers on a few outputs first (default: yes).",
)
@click.option("--black-box", is_flag=True, help="Compare speculation on and off by their tokens alone; no reference.")
@click.option("--self-check", is_flag=True, help="Also run every mutant and control on toy engines; a minute or two.")
@click.option("--prompts", "prompts_path", type=FILE, help="One prompt per line.")
@click.option(
    "--budget", type=click.IntRange(1), default=60_000, show_default=True, help="Most tokens served with speculation."
)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Most time for serving and scoring.")
@click.option("--fresh", "is_fresh", is_flag=True, help="Leave evidence of earlier runs aside.")
@click.option("--report", "report_dir", metavar="DIR", type=click.Path(path_type=Path), help="Default: reports/<run>.")
@request_options
@run_options
def verify(
    reporter: Reporter,
    run: Run,
    black_box: bool,
    self_check: bool,
    budget: int,
    minutes: float | None,
    report_dir: Path | None,
    **options: Any,
) -> int:
    """Prove that speculation keeps the distribution.

    Serves prompts, scores every token under the target, and stops when the verdict is certain: equivalent (exit code
    0), different (1), inconclusive within the budget (4), or lossy by configuration (1). equivalence.tau and .alpha say
    what is to be shown. Sampling parameters have the names of the serving contract; temperature is 0.8 unless given.
    Writes certificate.json, junit.xml and index.html, and keeps the evidence for the next run.
    """
    from trt_spec.equivalence import black_box as black_boxes
    from trt_spec.equivalence import certify
    from trt_spec.equivalence import report as reports
    from trt_spec.equivalence.options import REPORTS_DIR, Options
    from trt_spec.report.schema import as_json

    directory = report_dir or REPORTS_DIR / run.config.name
    max_seconds = None if minutes is None else 60 * minutes
    asked = Options(**options, max_tokens=budget, max_seconds=max_seconds, report_dir=directory)
    found = (black_boxes.black_box if black_box else certify.verify)(run, asked, reporter)
    code = EXIT_CODES[found.verdict]
    if self_check:
        checked = certify.self_check(run.config.equivalence.alpha, reporter)
        found = replace(found, self_check=checked)
        code = code or (0 if checked.is_right else GateFailure.exit_code)
    written = reports.write(found, directory)
    reporter.result({**as_json(found), "files": [str(path) for path in written]}, reports.view(found))
    reporter.note(f"wrote {', '.join(str(path) for path in written)}")
    return code
