"""`trt-spec bench`: the built engine measured, each kind in its own module of `latency`."""

from __future__ import annotations

from typing import Any

from trt_spec.cli_options import Run, load_engine
from trt_spec.demo import PROMPTS
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter


def floor(run: Run, reporter: Reporter) -> dict[str, Any]:
    """A plain decode step against its floor, see `latency.floor`; the run's engine is built."""
    from trt_spec.latency.floor import measure_floor

    engine = load_engine(run, reporter)
    with reporter.progress("timing steps and linear layers in turns") as advance:
        return measure_floor(engine, advance=lambda part: advance(part, None))


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
    text = engine.tokenizer.apply_chat_template([{"role": "user", "content": message}])
    input_ids = engine.tokenizer.encode(text, add_special_tokens=False)
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
