"""Trees, lookup before the drafter and adaptive lengths: what the run config asks for is what the engine does."""

from __future__ import annotations

import pytest

from tests.engines.test_methods import PROMPTS, eagle, eagle3, medusa, mtp_deepseek, mtp_mimo, mtp_two_layers
from trt_spec.config.rules import CrossFieldError
from trt_spec.config.schema import RunConfig
from trt_spec.engines.builder import build
from trt_spec.runtime.drafters.draft_shapes import Chain, DynamicTree, StaticTree
from trt_spec.runtime.drafters.ngram_first import NgramFirstDrafter
from trt_spec.runtime.engine import Engine
from trt_spec.runtime.loading import load_engine
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.runtime.step_costs import read_step_costs


def changed(config: RunConfig, **speculation) -> RunConfig:
    """The config with other keys in its section `speculation`; a tree gives its own depth."""
    section = config.speculation.model_dump(exclude_unset=True) | speculation
    if "choices" in (section.get("tree") or {}):
        section.pop("max_draft_len", None)
    return RunConfig.model_validate(config.model_dump(exclude_unset=True) | {"speculation": section})


def built(config: RunConfig, tmp_path) -> Engine:
    return load_engine(build(config, engines_dir=tmp_path / "engines", run=config.name).engine_dir)


def assert_changes_nothing(engine: Engine) -> list:
    """Greedy answers with and without speculation are equal; returns the ones with it."""
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    on, off = (
        engine.generate([Request(f"{flag}{index}", ids, params, flag) for index, ids in enumerate(PROMPTS)])
        for flag in (True, False)
    )
    assert [answer.token_ids for answer in on] == [answer.token_ids for answer in off]
    return on


def test_an_engine_drafts_chains_of_fixed_length_by_one_drafter_unless_told_otherwise(tmp_path):
    engine = built(eagle(tmp_path), tmp_path)
    assert not isinstance(engine.drafter, NgramFirstDrafter)
    assert isinstance(engine.drafter.draft_shape, Chain)
    assert engine.draft_lengths.costs is None
    assert read_step_costs(tmp_path / "engines" / engine.config.name) is None


def test_given_costs_are_not_timed_again(tmp_path):
    config = changed(medusa(tmp_path), adaptive_draft_len=True, costs={"step": {1: 1.0, 8: 1.2}, "draft_level": 0.0})
    engine = built(config, tmp_path)
    assert engine.draft_lengths.costs.step == {1: 1.0, 8: 1.2}
    assert read_step_costs(tmp_path / "engines" / config.name) is None


@pytest.mark.parametrize("make", [medusa, eagle3, mtp_two_layers])
def test_lookup_first_and_adaptive_lengths(tmp_path, make):
    config = changed(make(tmp_path), ngram_first={"min_ngram": 2, "max_ngram": 5}, adaptive_draft_len=True)
    engine = built(config, tmp_path)
    assert isinstance(engine.drafter, NgramFirstDrafter)
    assert (engine.drafter.ngram.min_ngram, engine.drafter.ngram.max_ngram) == (2, 5)
    assert engine.draft_lengths.costs.step == read_step_costs(tmp_path / "engines" / config.name)
    answers = assert_changes_nothing(engine)
    assert all(answer.completion.total_draft_tokens > 0 for answer in answers)
    # One draft of full length at first, then what is usually accepted: random heads are hardly ever right.
    depth = config.speculation.max_draft_len
    assert sum(a.completion.total_draft_tokens for a in answers) < depth * sum(a.completion.num_drafts for a in answers)


def test_an_empty_section_takes_the_defaults(tmp_path):
    engine = built(changed(eagle(tmp_path), ngram_first={}), tmp_path)
    assert (engine.drafter.ngram.min_ngram, engine.drafter.ngram.max_ngram) == (4, 8)


@pytest.mark.parametrize("make", [medusa, eagle, eagle3, mtp_mimo, mtp_deepseek])
@pytest.mark.parametrize(
    ("tree", "draft_shape"),
    [
        ({"choices": [[0], [1], [0, 0], [0, 1]]}, StaticTree),
        ({"choices": [[0], [1], [0, 0]], "siblings": "without_replacement"}, StaticTree),
        ({"top_k": 3, "max_total_draft_tokens": 5}, DynamicTree),
    ],
    ids=["static", "drawn", "dynamic"],
)
def test_trees(tmp_path, make, tree, draft_shape):
    config = changed(make(tmp_path), tree=tree, max_draft_len=2)
    engine = built(config, tmp_path)
    assert isinstance(engine.drafter.draft_shape, draft_shape)
    assert getattr(engine.drafter.draft_shape, "siblings", "top") == tree.get("siblings", "top")
    num_nodes = tree.get("max_total_draft_tokens") or len(tree["choices"])
    assert engine.drafter.draft_shape.max_nodes == engine.limits.max_total_draft_tokens == num_nodes
    assert engine.limits.max_draft_len == engine.drafter.draft_shape.max_depth == 2
    answers = assert_changes_nothing(engine)
    assert max(a.completion.total_draft_tokens / a.completion.num_drafts for a in answers) > 2, "wider than a chain"


@pytest.mark.parametrize(
    ("speculation", "key"),
    [
        ({"method": "ngram", "ngram_first": {}}, "speculation.ngram_first"),
        ({"method": "none", "ngram_first": {}}, "speculation.ngram_first"),
        ({"method": "mtp", "ngram_first": {"min_ngram": 5, "max_ngram": 4}}, "speculation.ngram_first.min_ngram"),
        ({"method": "none", "adaptive_draft_len": True}, "speculation.adaptive_draft_len"),
        ({"method": "ngram", "tree": {"choices": [[0]]}}, "speculation.tree"),
        ({"method": "mtp", "tree": {"choices": [[0], [1]]}, "acceptance": "block"}, "speculation.acceptance"),
        ({"method": "mtp", "tree": {"choices": [[0]]}, "max_draft_len": 2}, "speculation.max_draft_len"),
        ({"method": "mtp", "tree": {"top_k": 2}}, "speculation.tree"),
        ({"method": "mtp", "tree": {}}, "speculation.tree"),
        ({"method": "mtp", "tree": {"choices": [[0]], "top_k": 2, "max_total_draft_tokens": 4}}, "speculation.tree"),
        (
            {"method": "mtp", "tree": {"top_k": 2, "max_total_draft_tokens": 4, "siblings": "with_replacement"}},
            "speculation.tree.siblings",
        ),
    ],
)
def test_what_cannot_be_combined_is_refused_by_its_key(speculation, key):
    with pytest.raises(CrossFieldError) as refused:
        RunConfig(name="x", target={"checkpoint": "x"}, speculation=speculation)
    assert key in [problem.key for problem in refused.value.problems]
