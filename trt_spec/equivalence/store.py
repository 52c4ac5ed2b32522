"""Evidence of earlier runs of the same thing, one file per key."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from trt_spec import provenance
from trt_spec.atomic import write_text
from trt_spec.equivalence.harness import Harness
from trt_spec.equivalence.settings import Settings
from trt_spec.errors import UsageError
from trt_spec.report.console import Reporter
from trt_spec.run import Run

SAVE_INTERVAL_S = 30.0
_ROOMS = ("checkpoints", "clients", "equivalence", "runtime")  # the code that serves in process, and that judges


def key_of(run: Run, settings: Settings, harness: Harness, server: str) -> str:
    """What evidence must agree on to be added up: config, engine, code, sampling, bounds, reference, bets, server.

    Args:
        server: see `Subject.identity`; what one server did says nothing about another.
    """
    evidence = harness.arms["speculation"].evidence
    what = {
        "config": provenance.config_digest(run.config),
        "engine": _engine_digest(run),
        "code": [provenance.source_digest(_ROOMS), provenance.versions()],
        "server": server,
        "params": {key: str(value) for key, value in vars(settings.params).items()},
        "bounds": [settings.tau, settings.tolerance],
        "roles": list(evidence.parts),
        "bets": [*evidence.alternatives, *evidence.orderings],
        "reference": harness.scorer.name,
        "prompts": [prompt.input_ids for prompt in harness.prompts],
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def _engine_digest(run: Run) -> str | None:
    manifest = run.engine_dir / "manifest.json"
    return json.loads(manifest.read_text(encoding="utf-8")).get("digest") if manifest.is_file() else None


@dataclass
class Store:
    """Evidence of earlier runs of the same thing, one file per key."""

    directory: Path
    key: str
    _saved_at: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> Path:
        return self.directory / f"evidence-{self.key}.json"

    def load(self, harness: Harness, reporter: Reporter) -> None:
        """Goes on from what is kept, where there is something.

        Raises:
            UsageError: the file is not what `save` writes.
        """
        if not self.path.is_file():
            return
        try:
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            for name, arm in harness.arms.items():
                arm.restore(saved["arms"][name])
            harness.next_seed = max(harness.next_seed, saved["next_seed"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                "the evidence of earlier runs cannot be read",
                where=str(self.path),
                got=f"{type(error).__name__}: {error}",
                expected="a file that this version of trt-spec verify wrote",
                remedy="delete it, or leave it aside with --fresh",
            ) from error
        total = harness.arms["speculation"].num_earlier_tokens
        reporter.note(f"going on from {total:,} tokens of earlier runs ({self.path}); --fresh leaves them aside")

    def save_if_due(self, harness: Harness) -> None:
        """Saves what a long run has got, now and then, so that little is lost where it is ended."""
        if time.monotonic() - self._saved_at >= SAVE_INTERVAL_S:
            self.save(harness)

    def save(self, harness: Harness) -> None:
        saved = {
            "next_seed": harness.next_seed,
            "arms": {name: arm.kept() for name, arm in harness.arms.items()},
        }
        write_text(self.path, json.dumps(saved))
        self._saved_at = time.monotonic()
