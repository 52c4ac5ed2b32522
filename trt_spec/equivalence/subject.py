"""What is judged: the built engine in this process, or a server; and the models to judge it with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import urlopen

from trt_spec.equivalence.options import Options
from trt_spec.errors import CheckpointError
from trt_spec.report.console import Reporter
from trt_spec.run import Run, load_engine

if TYPE_CHECKING:
    import torch

    from trt_spec.clients.triton import TritonClient
    from trt_spec.equivalence.reference.scoring import Vocabulary
    from trt_spec.runtime.models import Model
    from trt_spec.runtime.request import Request

CONCURRENCY = 8
_CONFIGURATION_TIMEOUT_S = 10


@dataclass(frozen=True)
class Subject:
    """What is judged, and with what.

    Attributes:
        model: the target in the native runtime; None where transformers scores and the family may be any.
        identity: whose evidence this is: this process, or a url with a digest of the model's configuration there,
            which has the digest of its engine.
    """

    serve: Callable[[Sequence[Request]], Sequence[Any]]
    model: Model | None
    draft_model: Model | None
    vocabulary: Vocabulary
    tokenizer: Any
    target_dir: Path
    batch_size: int
    dtype: torch.dtype
    device: torch.device
    identity: str = "in process"


def in_process(run: Run, reporter: Reporter) -> Subject:
    engine = load_engine(run, reporter)
    from trt_spec.equivalence.reference.scoring import Vocabulary

    vocabulary = Vocabulary(engine.num_valid_tokens, engine.eos_token_ids)
    draft = getattr(engine.drafter, "model", None) if run.config.speculation.method == "draft_model" else None
    target_dir, batch_size = run.engine_dir / "target", engine.limits.max_batch_size
    model = engine.target
    return Subject(
        engine.generate,
        model,
        draft,
        vocabulary,
        engine.tokenizer,
        target_dir,
        batch_size,
        model.dtype,
        model.device,
    )


def served(run: Run, options: Options, reporter: Reporter) -> Subject:
    """A Triton server under test; the target to score with is the built engine's, else the checkpoint itself."""
    from trt_spec.checkpoints.tokenizer import Tokenizer
    from trt_spec.clients.triton import TritonClient
    from trt_spec.equivalence.reference.scoring import Vocabulary
    from trt_spec.runtime.loading import TORCH_DTYPES, pick_device
    from trt_spec.runtime.models import load_model

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
    model = draft = None
    with reporter.progress(f"loading {target_dir}"):
        if options.reference == "native":
            model = load_model(target_dir, dtype, device, config.build.max_seq_len)
        if (
            model is not None
            and config.speculation.method == "draft_model"
            and (run.engine_dir / "draft" / "config.json").is_file()
        ):
            draft = load_model(run.engine_dir / "draft", dtype, device, config.build.max_seq_len)
    tokenizer = Tokenizer.load(target_dir)
    num_valid = tokenizer.vocab_size if model is None else min(tokenizer.vocab_size, model.vocab_size)
    vocabulary = Vocabulary(num_valid, tuple(sorted(tokenizer.eos_token_ids)))
    client = TritonClient(options.url, model_name=config.serve.model_name)
    serve = asker(client, lambda request: list(request.input_ids))
    identity = f"{client.http_url} {_configuration_digest(client)}"
    return Subject(serve, model, draft, vocabulary, tokenizer, target_dir, CONCURRENCY, dtype, device, identity)


def _configuration_digest(client: TritonClient) -> str | None:
    """Of what the server says about its model; None where it says nothing."""
    url = f"http://{client.http_url}/v2/models/{quote(client.model_name)}/config"
    try:
        with urlopen(url, timeout=_CONFIGURATION_TIMEOUT_S) as response:
            found = json.loads(response.read())
    except (OSError, ValueError):
        return None
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def asker(client: TritonClient, prompt_of: Callable[[Request], Any]) -> Callable[[Sequence[Request]], list[Any]]:
    """Sends requests to a server, a few at a time."""

    def one(request: Request) -> Any:
        params = {name: value for name, value in vars(request.params).items() if name != "stop"}
        params = {name: value for name, value in params.items() if value not in (None, (), {})}
        if request.max_draft_len is not None:
            params["max_draft_len"] = request.max_draft_len
        return client.generate(
            prompt_of(request), request_id=request.request_id, speculation=request.speculation, **params
        )

    def serve(requests: Sequence[Request]) -> list[Any]:
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            return list(pool.map(one, requests))

    return serve
