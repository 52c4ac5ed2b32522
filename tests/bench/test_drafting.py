"""The benchmark of drafting ways counts what it says, and leaves the engine as it was. No times are judged."""

from __future__ import annotations

from types import SimpleNamespace

from tests.runtime.models import prompts, tiny_engine
from trt_spec.bench.drafting import measure_drafting
from trt_spec.clients.prompts import Prompt
from trt_spec.config.speculation import SpeculationConfig
from trt_spec.runtime.drafters.draft_model import DraftModelDrafter


def asked(count):
    return [Prompt(f"p{index}", input_ids=tuple(ids)) for index, ids in enumerate(prompts(count, 32))]


def test_arms_of_a_neural_method():
    engine = tiny_engine("draft_model")
    engine.config = SimpleNamespace(speculation=SpeculationConfig(method="draft_model", checkpoint="x"))
    parts = []
    found = measure_drafting(engine, asked(3), num_tokens=12, num_rounds=1, advance=parts.append)
    assert list(found) == ["plain", "fixed", "adaptive", "ngram_first", "ngram_first, adaptive"]
    assert found["plain"].mean_acceptance_length == found["plain"].speedup == 1
    assert found["adaptive"].draft_tokens_per_draft < found["fixed"].draft_tokens_per_draft <= 4
    assert all(figures.tokens_per_s > 0 for figures in found.values())
    assert isinstance(engine.drafter, DraftModelDrafter)
    assert engine.draft_lengths.costs is None
    assert parts == [0.5, 1]


def test_lookup_has_nothing_to_precede():
    engine = tiny_engine("ngram")
    engine.config = SimpleNamespace(speculation=SpeculationConfig(method="ngram"))
    assert list(measure_drafting(engine, asked(1), num_tokens=4, num_rounds=1)) == ["plain", "fixed", "adaptive"]
