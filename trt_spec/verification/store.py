"""Evidence of earlier runs of the same thing, one file per key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trt_spec import provenance
from trt_spec.cli_options import Run
from trt_spec.report.console import Reporter

if TYPE_CHECKING:
    from trt_spec.equivalence.harness import Harness, Settings


def key_of(run: Run, settings: Settings, harness: Harness) -> str:
    """What evidence must agree on to be added up: config, engine, code, sampling, bounds, reference, bets."""
    evidence = harness.arms["speculation"].ledger.evidence
    what = {
        "config": provenance.config_digest(run.config),
        "engine": _engine_digest(run),
        "code": [provenance.git_commit(), provenance.versions()],
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


@dataclass(frozen=True)
class Store:
    """Evidence of earlier runs of the same thing, one file per key."""

    directory: Path
    key: str

    @property
    def path(self) -> Path:
        return self.directory / f"evidence-{self.key}.json"

    def load(self, harness: Harness, reporter: Reporter) -> None:
        from trt_spec.equivalence.evidence import Evidence

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
