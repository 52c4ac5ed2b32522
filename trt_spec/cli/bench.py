"""`trt-spec bench`, mounted by cli.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trt_spec.bench.kinds import KINDS, measure
from trt_spec.cli.options import acceptance_option, beside_option, run_options
from trt_spec.report.console import Reporter
from trt_spec.run import Run

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--what", type=click.Choice(tuple(KINDS)), default="floor", show_default=True)
@click.option("--prompt", metavar="TEXT", help="For peers: the user's message (default: a text to copy).")
@acceptance_option("For drafting: what the system costs with drafts that are so good.")
@beside_option
@click.option("--certify", is_flag=True, help="For methods: verify each at equivalence.tau 0.05; minutes.")
@click.option("--save", metavar="FILE", type=FILE, help="For methods: the result as JSON, for a table of the docs.")
@click.option(
    "--vllm-python", metavar="PATH", help="For sweep: the Python of an environment with vLLM, as one more peer."
)
@click.option("--plot", metavar="FILE", type=FILE, help="For sweep: speed-up by concurrency, SVG.")
@run_options
def bench(reporter: Reporter, run: Run, what: str, **options: Any) -> int:
    """Time the built engine.

    floor: a plain decode step against its linear layers alone, which bound it from below; what verifying 8 rows
    costs; and the host's share of a step. peers: transformers' generate, and its prompt lookup for a run with n-gram
    drafts, on the same prompt. drafting: plain decoding, drafts as configured, with an adaptive draft length, and, for
    a neural drafter, with n-gram drafts first. methods: this run and the others of its target beside plain decoding,
    at batch 1; builds what is not built, and exits with 1 where greedy outputs differ or a verdict is not equivalent.
    sweep: throughput at concurrency 1 to 16 of plain decoding, fixed and adaptive drafts, transformers, and vLLM where
    it is given. serving: what one stream through Triton and through the OpenAI front costs over calling the engine,
    and a load of 1 to 16 clients. Everything that is compared takes turns in one run.
    """
    result = measure(what, run, reporter, options)
    reporter.result(result.as_dict(), result.view())
    return result.exit_code
