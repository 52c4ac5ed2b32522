"""`trt-spec bench`, mounted by cli.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trt_spec.cli.options import acceptance_option, beside_option, output_options, run_options
from trt_spec.errors import GateFailure, UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import Run

KINDS = ("floor", "peers", "drafting", "methods", "sweep", "serving")
FILE = click.Path(dir_okay=False, path_type=Path)
_KIND_OF_OPTION = {  # each is for one kind only, and refused with the others
    "prompt": "peers",
    "acceptance": "drafting",
    "beside": "methods",
    "certify": "methods",
    "save": "methods",
    "vllm_python": "sweep",
    "plot": "sweep",
}


@click.command()
@click.option("--what", type=click.Choice(KINDS), default="floor", show_default=True)
@click.option("--prompt", metavar="TEXT", help="For peers: the user's message (default: a text to copy).")
@acceptance_option("For drafting: what the system costs with drafts that are so good.")
@beside_option
@click.option("--certify", is_flag=True, help="For methods: verify each at equivalence.tau 0.05; minutes.")
@click.option("--save", metavar="FILE", type=FILE, help="For methods: the result as JSON, for a table of the docs.")
@click.option(
    "--vllm-python", metavar="PATH", help="For sweep: the Python of an environment with vLLM, as one more peer."
)
@click.option("--plot", metavar="FILE", type=FILE, help="For sweep: speed-up by concurrency, SVG.")
@output_options
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
    for name, kind in _KIND_OF_OPTION.items():
        if options[name] not in (None, False, ()) and what != kind:
            raise UsageError(f"--{name.replace('_', '-')} is for --what {kind}")
    from trt_spec.bench import runs as benchmarks
    from trt_spec.cli import views

    if what == "methods":
        return _methods(run, options, reporter)
    if what == "serving":
        from trt_spec.bench import serving_runs as serving_benchmark
        from trt_spec.bench import serving_tables

        result = serving_benchmark.serving(run, reporter)
        reporter.result(result, serving_tables.serving(result))
    elif what == "peers":
        result = benchmarks.peers(run, options["prompt"], reporter)
        reporter.result(result, views.peers(result))
    elif what == "sweep":
        result = benchmarks.sweep(run, options["vllm_python"], options["plot"], reporter)
        reporter.result(result, views.sweep(result))
    elif what == "drafting":
        result = benchmarks.drafting(run, reporter, options["acceptance"])
        reporter.result(result, views.drafting(result))
    else:
        result = benchmarks.floor(run, reporter)
        reporter.result(result, views.floor(result))
    return 0


def _methods(run: Run, options: dict[str, Any], reporter: Reporter) -> int:
    from trt_spec.bench import method_runs as method_benchmark
    from trt_spec.bench import method_tables
    from trt_spec.run import runs_beside

    runs = runs_beside(run, options["beside"])
    result = method_benchmark.methods(runs, reporter, has_certificates=options["certify"])
    if options["save"] is not None:
        method_benchmark.save(result, options["save"])
        reporter.note(f"wrote {options['save']}")
    reporter.result(result, method_tables.methods(result))
    return 0 if result["is_right"] else GateFailure.exit_code
