"""`trt-spec bench`: the built engine measured, each kind in its own module of `latency`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trt_spec.cli_options import Run, load_engine
from trt_spec.demo import PROMPTS
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter

if TYPE_CHECKING:
    from trt_spec.runtime.engine import Engine


def floor(run: Run, reporter: Reporter) -> dict[str, Any]:
    """A plain decode step against its floor, see `latency.floor`; the run's engine is built."""
    from trt_spec.latency.floor import measure_floor

    engine = load_engine(run, reporter)
    with reporter.progress("timing steps and linear layers in turns") as advance:
        return measure_floor(engine, advance=lambda part: advance(part, None))


def drafting(run: Run, reporter: Reporter) -> dict[str, Any]:
    """Ways to draft with one engine on the demo's prompts, chat and copy apart, see `latency.drafting`.

    Raises:
        UsageError: the run drafts nothing.
    """
    from trt_spec.latency.drafting import DEFAULT_NUM_TOKENS, measure_drafting

    if run.config.speculation.method == "none":
        raise UsageError("this run drafts nothing", where="speculation.method", remedy="bench a run with a drafter")
    engine = load_engine(run, reporter)
    result: dict[str, Any] = {"dtype": run.config.target.dtype, "num_tokens": DEFAULT_NUM_TOKENS, "kinds": {}}
    for kind in ("chat", "copy", "edit"):
        prompts = [_chat_ids(engine, prompt.message) for prompt in PROMPTS if prompt.name.startswith(kind)]
        with reporter.progress(f"timing ways to draft on {kind} prompts, in turns") as advance:
            result["kinds"][kind] = measure_drafting(engine, prompts, advance=lambda part: advance(part, None))
    return result


def _chat_ids(engine: Engine, message: str) -> list[int]:
    text = engine.tokenizer.apply_chat_template([{"role": "user", "content": message}])
    return engine.tokenizer.encode(text, add_special_tokens=False)


def peers(run: Run, message: str | None, reporter: Reporter) -> dict[str, Any]:
    """This runtime and transformers' generate on one prompt.

    Args:
        run: its engine is built, and has a chat template.
        message: the user's message; by default the demo's text to copy.

    Raises:
        UsageError: prompt and output do not fit into the engine's context.
    """
    from trt_spec.latency.peers import DEFAULT_NUM_TOKENS, measure_peers

    if message is None:
        [message] = [prompt.message for prompt in PROMPTS if prompt.name == "copy: notice"]
    engine = load_engine(run, reporter)
    input_ids = _chat_ids(engine, message)
    room = run.config.build.max_seq_len - len(input_ids)
    if room < DEFAULT_NUM_TOKENS:
        raise UsageError(
            "the prompt leaves too little room",
            where="--prompt",
            got=f"{len(input_ids)} tokens",
            expected=f"at most {run.config.build.max_seq_len - DEFAULT_NUM_TOKENS}",
        )
    with reporter.progress("timing trt_spec and transformers in turns") as advance:
        return measure_peers(engine, run.engine_dir / "target", input_ids, advance=lambda part: advance(part, None))
