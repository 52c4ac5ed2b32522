"""`trt-spec verify`: which server, which reference, which prompts; and evidence that outlives a run.

The check itself is in `trt_spec.equivalence`; the pages are in `trt_spec.report`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trt_spec import provenance
from trt_spec.cli_options import Run, load_engine
from trt_spec.config import capabilities
from trt_spec.errors import CheckpointError, RequestError, UsageError
from trt_spec.report.console import Reporter
from trt_spec.triton import codec, wire
from trt_spec.triton.contract import INPUT_BY_NAME, NUMPY_TYPES

if TYPE_CHECKING:
    from trt_spec.equivalence.harness import Harness, Prompt, Settings
    from trt_spec.equivalence.scoring import Scorer, Vocabulary
    from trt_spec.runtime.models import Model
    from trt_spec.runtime.request import Request, SamplingParams

REPORTS_DIR = Path("reports")
DEFAULTS: dict[str, Any] = {"temperature": 0.8, "max_tokens": 128}
_CONCURRENCY = 8
_NOISE_PROMPTS, _NOISE_TOKENS = 6, 24  # outputs on which the noise of the arithmetic is measured
MESSAGES = (
    "Explain in a few sentences why the sky is blue.",
    "Write the beginning of a short story about a lighthouse keeper.",
    "List five things to pack for a walk in the rain, one per line.",
    "Repeat this sentence word for word: The laboratory on the second floor is open from nine until six.",
    "Translate into French: The train leaves at seven from platform two.",
    "Write a Python function that returns the largest of three numbers.",
    "Repeat this Python code exactly:\n\ndef total(items):\n    return sum(item.price for item in items)",
    "What is the difference between a lake and a pond?",
    "Give me a recipe for pancakes with exact quantities.",
    "Summarise the plot of a fairy tale that everybody knows.",
    "Count from one to twenty in words, separated by commas.",
    "Write a polite e-mail that moves a meeting from Monday to Wednesday.",
)


@dataclass(frozen=True)
class Options:
    """What the command line asked for beside the run.

    Attributes:
        url: a server to judge; None judges the built engine in this process.
        reference: native or transformers.
        prompts_path: a file with one prompt per line; None takes `MESSAGES`.
        max_tokens: budget in speculative tokens. max_seconds: in seconds.
        is_fresh: leave earlier evidence aside.
        parameters: sampling parameters of the contract that were given.
    """

    url: str | None
    reference: str
    prompts_path: Path | None
    max_tokens: int
    max_seconds: float | None
    is_fresh: bool
    report_dir: Path
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """What is judged, and with what."""

    serve: Callable[[Sequence[Request]], Sequence[Any]]
    model: Model
    draft_model: Model | None
    vocabulary: Vocabulary
    tokenizer: Any
    target_dir: Path
    batch_size: int


def verify(run: Run, options: Options, reporter: Reporter) -> dict[str, Any]:
    """Runs the check and returns the certificate; keeps the evidence for the next run.

    Raises:
        CheckpointError: no engine is built, or no target to score with is here.
        RequestError: parameters that cannot be sampled with.
        MachineError: no server at the url.
    """
    params = sampling_params(options.parameters)
    rule = run.config.speculation.acceptance
    facts = capabilities.ACCEPTANCE[rule]
    base = {"run": run.config.name, "words": run.words, "acceptance": rule, "server": options.url or "in process"}
    base["provenance"] = provenance.collect(run.config)
    if run.config.speculation.method != "none" and not facts.is_lossless:
        reason = f"acceptance {rule} changes the distribution by design, so there is nothing to certify"
        return {**base, "verdict": "lossy by configuration", "reason": reason}
    from trt_spec.equivalence.harness import Harness

    subject = _served(run, options, reporter) if options.url else _in_process(run, reporter)
    prompts = _prompts(subject.tokenizer, options.prompts_path)
    scorer = _scorer(run, options, subject)
    settings, noise = _settings(run, options, subject, prompts, params)
    draft_scorer = _native(subject.draft_model, "draft model") if subject.draft_model is not None else None
    harness = Harness(settings, prompts, subject.serve, scorer, subject.vocabulary, draft_scorer)
    store = _Store(options.report_dir, _key(run, settings, harness))
    if not options.is_fresh:
        store.load(harness, reporter)
    with reporter.progress(f"verifying {run.config.name}") as advance:
        finding = harness.run(advance) if facts.serves_sampling else harness.run_greedy(advance)
    store.save(harness)
    found = {**base, **harness.as_dict(finding), "noise": noise, "assumptions": _assumptions(run, options)}
    _name_tokens(found, subject.tokenizer)
    return found


def sampling_params(parameters: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters from the contract's names, with this command's defaults.

    Raises:
        RequestError: unknown, out of bounds, or not for sampling.
    """
    values = wire.request_values([0], {**DEFAULTS, **parameters})
    arrays = {name: np.array(items, NUMPY_TYPES[INPUT_BY_NAME[name].data_type]) for name, items in values.items()}
    params = replace(codec.decode_request(arrays, {}).params, seed=None)
    if params.temperature == 0:
        raise RequestError(
            "there is no law to verify at temperature 0",
            where="temperature",
            expected="a temperature above 0; greedy outputs are judged in every run",
        )
    if params.stop:
        raise RequestError("stop strings do not go with verification", where="stop", remedy="leave them out")
    return params


def _in_process(run: Run, reporter: Reporter) -> Subject:
    engine = load_engine(run, reporter)
    from trt_spec.equivalence.scoring import Vocabulary

    vocabulary = Vocabulary(engine.num_valid_tokens, engine.eos_token_ids)
    draft = getattr(engine.drafter, "model", None) if run.config.speculation.method == "draft_model" else None
    target_dir, batch_size = run.engine_dir / "target", engine.limits.max_batch_size
    return Subject(engine.generate, engine.target, draft, vocabulary, engine.tokenizer, target_dir, batch_size)


def _served(run: Run, options: Options, reporter: Reporter) -> Subject:
    """A Triton server under test; the target to score with is the built engine's, else the checkpoint itself."""
    from trt_spec.checkpoints.tokenizer import Tokenizer
    from trt_spec.equivalence.scoring import Vocabulary
    from trt_spec.runtime.loading import TORCH_DTYPES, pick_device
    from trt_spec.runtime.models import load_model
    from trt_spec.triton.client import TritonClient

    config = run.config
    places = (run.engine_dir / "target", Path(config.target.checkpoint))
    target_dir = next((place for place in places if (place / "config.json").is_file()), None)
    if target_dir is None:
        raise CheckpointError(
            "no target to score served tokens with",
            where=", ".join(map(str, places)),
            remedy="build the engine here too",
        )
    dtype, device = TORCH_DTYPES[config.target.dtype], pick_device(config.build.device)
    with reporter.progress(f"loading {target_dir}"):
        model = load_model(target_dir, dtype, device, config.build.max_seq_len)
        draft = None
        if config.speculation.method == "draft_model" and (run.engine_dir / "draft" / "config.json").is_file():
            draft = load_model(run.engine_dir / "draft", dtype, device, config.build.max_seq_len)
    tokenizer = Tokenizer.load(target_dir)
    num_valid = min(tokenizer.vocab_size, model.vocab_size)
    vocabulary = Vocabulary(num_valid, tuple(sorted(tokenizer.eos_token_ids)))
    client = TritonClient(options.url, model_name=config.serve.model_name)

    def one(request: Request) -> Any:
        params = {name: value for name, value in vars(request.params).items() if name not in ("stop", "logprobs")}
        params = {name: value for name, value in params.items() if value not in (None, (), {})}
        return client.generate(
            list(request.input_ids), request_id=request.request_id, speculation=request.speculation, **params
        )

    def serve(requests: Sequence[Request]) -> list[Any]:
        with ThreadPoolExecutor(_CONCURRENCY) as pool:
            return list(pool.map(one, requests))

    return Subject(serve, model, draft, vocabulary, tokenizer, target_dir, _CONCURRENCY)


def _native(model: Model, name: str) -> Scorer:
    from trt_spec.equivalence.scoring import NativeScorer

    return NativeScorer(model, name)


def _scorer(run: Run, options: Options, subject: Subject) -> Scorer:
    if options.reference == "native":
        return _native(subject.model, "native runtime, one packed forward")
    from trt_spec.equivalence.scoring import TransformersScorer

    return TransformersScorer(subject.target_dir, subject.model.dtype, subject.model.device)


def _prompts(tokenizer: Any, path: Path | None) -> list[Prompt]:
    from trt_spec.equivalence.harness import Prompt

    if path is None:
        texts = list(MESSAGES)
    else:
        texts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not texts:
            raise UsageError("no prompts", where=str(path), expected="one prompt per line")
    prompts = []
    for text in texts:
        try:
            chat = tokenizer.apply_chat_template([{"role": "user", "content": text}])
            ids = tokenizer.encode(chat, add_special_tokens=False)
        except CheckpointError:  # a base model: no chat template
            ids = tokenizer.encode(text)
        prompts.append(Prompt(text.splitlines()[0], tuple(ids)))
    return prompts


def _settings(
    run: Run, options: Options, subject: Subject, prompts: Sequence[Prompt], params: SamplingParams
) -> tuple[Settings, dict[str, float]]:
    """Settings, with tolerances measured by the native runtime on a few plain outputs."""
    from trt_spec.equivalence import noise
    from trt_spec.equivalence.harness import Settings
    from trt_spec.equivalence.scoring import Served
    from trt_spec.runtime.request import Request

    longest = run.config.build.max_seq_len - max(len(prompt.input_ids) for prompt in prompts)
    params = replace(params, max_tokens=min(params.max_tokens, longest))
    sampled = replace(params, max_tokens=min(_NOISE_TOKENS, params.max_tokens), seed=0)
    requests = [
        Request(f"verify-noise-{i}", p.input_ids, sampled, False) for i, p in enumerate(prompts[:_NOISE_PROMPTS])
    ]
    answers = zip(requests, subject.serve(requests), strict=True)
    texts = [Served(request.input_ids, tuple(answer.token_ids), sampled) for request, answer in answers]
    measured = noise.measure(subject.model, texts, subject.vocabulary)
    tolerance = measured.tolerance
    equivalence = run.config.equivalence
    if tolerance >= equivalence.tau:
        raise UsageError(
            "the dtype's systematic rounding alone is larger than tau",
            where="equivalence.tau",
            got=equivalence.tau,
            expected=f"more than the measured {tolerance:g}",
            remedy="raise equivalence.tau, or build with --set target.dtype=float32",
        )
    made = Settings(
        params,
        equivalence.tau,
        equivalence.alpha,
        tolerance,
        options.max_tokens,
        options.max_seconds,
        batch_size=max(subject.batch_size, 8),
        greedy_tolerance=measured.greedy_tolerance,
    )
    return made, vars(measured)


def _assumptions(run: Run, options: Options) -> list[str]:
    """What a certificate of this run takes for granted."""
    found = [
        "the checkpoint that is scored is the one that is served",
        "beyond the tolerance, rounding is as likely to favour a token as not",
    ]
    if options.reference == "native":
        found.append("the runtime's forward is the target's, as its parity tests with transformers say")
    if run.config.build.target != "torch":
        found.append(f"the {run.config.build.target} engine computes in the dtype of the run config")
    if options.url:
        found.append("the server honours seed, speculation and the sampling parameters of each request")
    return found


def _name_tokens(found: dict[str, Any], tokenizer: Any) -> None:
    """Adds the text of tokens and prompts to counter-examples."""
    example = found.get("counter_example")
    for row in (*example["frequencies"], *example["tokens"]) if example else ():
        row["text"] = tokenizer.decode([row["token"]])
        row["prompt_text"] = found["prompts"][row["prompt"]]["label"]


# ---- evidence that outlives a run ----


def _key(run: Run, settings: Settings, harness: Harness) -> str:
    """What evidence must agree on to be added up: config, sampling, bounds, reference and the bank of bets."""
    evidence = harness.arms["speculation"].ledger.evidence
    what = {
        "config": provenance.config_digest(run.config),
        "engine": _engine_digest(run),
        "params": {key: str(value) for key, value in vars(settings.params).items()},
        "bounds": [settings.tau, settings.tolerance],
        "bets": [*evidence.alternatives, *evidence.orderings],
        "reference": harness.scorer.name,
        "prompts": [prompt.input_ids for prompt in harness.prompts],
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def _engine_digest(run: Run) -> str | None:
    manifest = run.engine_dir / "manifest.json"
    return json.loads(manifest.read_text(encoding="utf-8")).get("digest") if manifest.is_file() else None


@dataclass(frozen=True)
class _Store:
    """Evidence of earlier runs of the same thing, one file per key."""

    directory: Path
    key: str

    @property
    def path(self) -> Path:
        return self.directory / f"evidence-{self.key}.json"

    def load(self, harness: Harness, reporter: Reporter) -> None:
        from trt_spec.equivalence.sequential import Evidence

        if not self.path.is_file():
            return
        saved = json.loads(self.path.read_text(encoding="utf-8"))
        for name, arm in harness.arms.items():
            arm.ledger.evidence = Evidence.from_dict(saved["arms"][name])
            arm.num_earlier_tokens = arm.ledger.evidence.num_tokens
        harness.skip_seeds(saved["next_seed"])
        total = harness.arms["speculation"].num_earlier_tokens
        reporter.note(f"going on from {total:,} tokens of earlier runs ({self.path}); --fresh leaves them aside")

    def save(self, harness: Harness) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        saved = {
            "next_seed": harness.next_seed,
            "arms": {name: arm.ledger.evidence.as_dict() for name, arm in harness.arms.items()},
        }
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(saved), encoding="utf-8")
        temporary.replace(self.path)


def self_check(alpha: float, reporter: Reporter) -> dict[str, Any]:
    """Every mutant and control on toy engines, with the verdict on the harness itself."""
    from trt_spec.equivalence import self_check as checks

    with reporter.progress("self-check") as advance:
        outcomes = checks.run(alpha, advance=advance)
    summary = checks.summary(outcomes)
    is_right = not summary["survivors"] and not summary["flagged"]
    return {"is_right": is_right, **summary, "rows": [outcome.as_dict() for outcome in outcomes]}
