"""`trt-spec tune`, mounted by cli.py."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from trt_spec.cli.options import acceptance_option, run_options
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import Run

COUNT = click.IntRange(min=1)
ABOVE_ZERO = click.FloatRange(min=0, min_open=True)
_ONLY_MEASURED = ("prompts_path", "num_prompts", "num_tokens", "temperature")
_ONLY_WITH_GPU = ("num_gpus", "params", "draft_params", "weights", "context", "plain_tokens_per_s", "max_batch")


@click.command()
@acceptance_option("In place of what the engine's drafts give.")
@click.option(
    "--prompts",
    "prompts_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="One message per line (default: the prompts of latency.workload).",
)
@click.option("--num-prompts", type=COUNT, help="Most prompts to run (default: 12).")
@click.option("--tokens", "num_tokens", type=click.IntRange(8), help="Output tokens of each (default: 48).")
@click.option("--temperature", type=click.FloatRange(0, 100), help="Acceptance is measured at it (default: 0).")
@click.option("--rate", "requests_per_s", type=ABOVE_ZERO, help="Requests per second: also say where that settles.")
@click.option("--output-tokens", type=COUNT, help="With --rate: of each request (default: 256).")
@click.option("--gpu", metavar="NAME", help="Plan for a GPU that is not here, from numbers: H100, H200, A100, L4, ...")
@click.option("--num-gpus", type=COUNT, help="With --gpu (default: build.tensor_parallel_size).")
@click.option("--params", type=ABOVE_ZERO, help="With --gpu: parameters of the target, such as 70e9.")
@click.option("--draft-params", type=ABOVE_ZERO, help="With --gpu: parameters of the draft model.")
@click.option("--weights", type=click.Choice(["bf16", "fp8", "int8", "int4"]), help="With --gpu: how they are stored.")
@click.option("--context", type=COUNT, help="With --gpu: cached tokens of a sequence (default: 1024).")
@click.option("--plain-tokens-per-s", type=ABOVE_ZERO, help="With --gpu: speed at batch 1 to set the roofline to.")
@click.option("--max-batch", type=click.IntRange(1, 4096), help="With --gpu (default: build.max_batch_size).")
@click.option("--write/--no-write", "is_writing", default=True, help="Put the schedule into CONFIG (default: yes).")
@click.option("--report", "report_dir", metavar="DIR", type=click.Path(path_type=Path), help="Default: reports/<run>.")
@run_options
def tune(
    reporter: Reporter,
    run: Run,
    acceptance: tuple[float, ...] | None,
    gpu: str | None,
    is_writing: bool,
    report_dir: Path | None,
    **options: Any,
) -> None:
    """Find how long drafts should be at each concurrency.

    Measures what drafts of the built engine give and what its steps cost, plans the draft length for each number of
    running requests, and checks the plan at concurrencies that were not measured. With --gpu it plans for a machine
    that is not here, from given numbers. Writes speculation.draft_len_schedule into CONFIG, shows it in the form of
    each engine, and keeps tuning.json and a page with a plot.
    """
    options = {name: value for name, value in options.items() if value is not None}
    machine = {name: options.pop(name) for name in _ONLY_WITH_GPU if name in options}
    _refuse(gpu, machine, options)
    from trt_spec.tuning import offline, report, session
    from trt_spec.tuning.proposal import conclude
    from trt_spec.tuning.result import Machine, Options

    asked = Options(acceptance=acceptance, **options)
    if gpu is None:
        found = session.measured(run, asked, reporter)
    else:
        found = offline.planned(run, asked, Machine(gpu, **machine))
    proposal = conclude(run, found, is_writing=is_writing)
    files = report.write(found, proposal, report_dir or Path("reports") / run.config.name)
    data = report.as_json(found, proposal) | {"files": [str(path) for path in files]}
    reporter.result(data, report.view(found, proposal))
    for note in proposal.notes:
        reporter.note(note)
    reporter.note(f"wrote {', '.join(map(str, files))}")


def _refuse(gpu: str | None, machine: dict[str, Any], options: dict[str, Any]) -> None:
    """Options that would be ignored."""
    if machine and gpu is None:
        raise UsageError("numbers of a machine, but no machine", got=_flags(machine), remedy="give --gpu NAME too")
    idle = [name for name in _ONLY_MEASURED if name in options]
    if idle and gpu is not None:
        raise UsageError("with --gpu nothing is run", got=_flags(idle), remedy="leave it out, or leave --gpu out")
    if "output_tokens" in options and "requests_per_s" not in options:
        raise UsageError("--output-tokens is for --rate", remedy="give both or neither")


def _flags(names: Iterable[str]) -> str:
    spelled = {"prompts_path": "--prompts", "num_tokens": "--tokens"}
    return ", ".join(spelled.get(name, "--" + name.replace("_", "-")) for name in names)
