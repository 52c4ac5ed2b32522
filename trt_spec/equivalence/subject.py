"""What is judged: the built engine in this process, or a server; and the models to judge it with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import torch

from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.clients.client import Client, Params
from trt_spec.clients.engine import SteppedClient
from trt_spec.clients.prompts import Prompt
from trt_spec.clients.triton import TritonClient
from trt_spec.equivalence.options import Options
from trt_spec.equivalence.reference.scoring import Vocabulary
from trt_spec.errors import CheckpointError
from trt_spec.report.console import Reporter
from trt_spec.run import Run, load_engine
from trt_spec.runtime.loading import TORCH_DTYPES, pick_device
from trt_spec.runtime.models import Model, load_model
from trt_spec.runtime.request import Chunk

_CONFIGURATION_TIMEOUT_S = 10


@dataclass(frozen=True)
class Subject:
    """What is judged, and with what.

    Attributes:
        model: the target in the native runtime; None where transformers scores and the family may be any.
        identity: whose evidence this is: this process, or a url with a digest of the model's configuration there,
            which has the digest of its engine.
    """

    client: Client
    model: Model | None
    draft_model: Model | None
    vocabulary: Vocabulary
    tokenizer: Tokenizer
    target_dir: Path
    batch_size: int
    dtype: torch.dtype
    device: torch.device
    identity: str = "in process"


class WholeAnswers(Client):
    """A served model of ours over HTTP, whose answers come whole. Prompts without ids are sent as text."""

    def __init__(self, url: str, model_name: str) -> None:
        self.triton, self.name = TritonClient(url, model_name=model_name), url

    def stream(self, prompt: Prompt, params: Params, *, request_id: str = "") -> Iterator[Chunk]:
        """See `Client.stream`; one chunk."""
        given = {name: value for name, value in vars(params.sampling).items() if value not in (None, (), {})}
        if params.max_draft_len is not None:
            given["max_draft_len"] = params.max_draft_len
        text_or_ids = prompt.text if prompt.input_ids is None else list(prompt.input_ids)
        yield self.triton.generate(text_or_ids, request_id=request_id, speculation=params.speculation, **given)

    def identity(self) -> str:
        """The server's address, and a digest of what it says about its model; None in its place where it is silent."""
        digest, url = None, f"http://{self.triton.http_url}/v2/models/{quote(self.triton.model_name)}/config"
        try:
            with urlopen(url, timeout=_CONFIGURATION_TIMEOUT_S) as response:
                said = json.dumps(json.loads(response.read()), sort_keys=True)
                digest = hashlib.sha256(said.encode()).hexdigest()
        except (OSError, ValueError):
            pass
        return f"{self.triton.http_url} {digest}"


def in_process(run: Run, reporter: Reporter) -> Subject:
    """The built engine, which is also what scores."""
    engine = load_engine(run, reporter)
    model = engine.target
    return Subject(
        SteppedClient(engine),
        model,
        getattr(engine.drafter, "model", None) if run.config.speculation.method == "draft_model" else None,
        Vocabulary(engine.num_valid_tokens, engine.eos_token_ids),
        engine.tokenizer,
        run.engine_dir / "target",
        engine.limits.max_batch_size,
        model.dtype,
        model.device,
    )


def served(run: Run, options: Options, reporter: Reporter) -> Subject:
    """A Triton server under test; the target to score with is the built engine's, else the checkpoint itself."""
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
    model, draft, draft_dir = None, None, run.engine_dir / "draft"
    if options.reference == "native":
        with reporter.progress(f"loading {target_dir}"):
            model = load_model(target_dir, dtype, device, config.build.max_seq_len)
            if config.speculation.method == "draft_model" and (draft_dir / "config.json").is_file():
                draft = load_model(draft_dir, dtype, device, config.build.max_seq_len)
    tokenizer = Tokenizer.load(target_dir)
    num_valid = tokenizer.vocab_size if model is None else min(tokenizer.vocab_size, model.vocab_size)
    vocabulary = Vocabulary(num_valid, tuple(sorted(tokenizer.eos_token_ids)))
    client = WholeAnswers(options.url, config.serve.model_name)
    size, identity = client.concurrency, client.identity()
    return Subject(client, model, draft, vocabulary, tokenizer, target_dir, size, dtype, device, identity)
