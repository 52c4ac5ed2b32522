"""One plan in each engine's form, and in the run's own file."""

from __future__ import annotations

import pytest

from trt_spec.config import loader
from trt_spec.config.drafting import CostsConfig
from trt_spec.errors import CapabilityError, ConfigError
from trt_spec.tuning import engine_schedules, proposal
from trt_spec.tuning.engine_schedules import EngineSchedule

RUN = """\
# A comment that stays.
name: some-run
target: {checkpoint: checkpoints/llama-3.1-8b, dtype: bfloat16}
speculation:
  method: METHOD  # and this one
  checkpoint: checkpoints/draft
  max_draft_len: 7
build: {target: llmapi, tensorrt_llm_version: VERSION, max_batch_size: 64}
"""
SCHEDULE = {1: 5, 8: 3, 32: 0}
PLANS = {"schedule": SCHEDULE, "one length, and off": {1: 4, 20: 0}, "one length": {1: 3}}


def run(method="eagle3", version="1.4.0rc4"):
    text = RUN.replace("METHOD", method).replace("VERSION", version)
    return text.replace("  checkpoint: checkpoints/draft\n", "") if method in ("ngram", "mtp") else text


def shown(config, plans=PLANS, max_batch=64):
    return {form.engine: form for form in engine_schedules.engine_schedules(config, plans, max_batch)}


def test_every_version_gets_what_it_can_have():
    """Lower bounds in 1.2, upper bounds from 1.3.0rc21 on, one switch in 1.1, and one length in 1.0."""
    found = shown(loader.loads(run("draft_model", "1.2.1")))
    assert found["TensorRT-LLM 1.2.1"].form == {"max_draft_len": 5, "draft_len_schedule": SCHEDULE}
    assert found["TensorRT-LLM 1.4.0rc4"].form == {"max_draft_len": 5, "draft_len_schedule": {7: 5, 31: 3}}
    off = found["TensorRT-LLM 1.1.0"]
    assert (off.plan, off.form) == ("one length, and off", {"max_draft_len": 4, "max_concurrency": 19})
    assert (found["TensorRT-LLM 1.0.0"].plan, found["TensorRT-LLM 1.0.0"].form) == (
        "one length",
        {"max_draft_len": 3},
    )


def test_vllm_has_closed_ranges():
    ranges = [[1, 7, 5], [8, 31, 3], [32, 64, 0]]
    expected = {"num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": ranges}
    assert engine_schedules.vllm(SCHEDULE, 64) == expected
    assert engine_schedules.vllm(SCHEDULE, 16)["num_speculative_tokens_per_batch_size"] == [[1, 7, 5], [8, 16, 3]]


def test_what_a_version_does_not_have_says_why():
    found = shown(loader.loads(run("ngram", "1.2.1").replace("llmapi, tensorrt_llm_version: 1.2.1", "torch")))
    assert found["TensorRT-LLM 1.2.0"].plan == "one length, and off"
    medusa = run("medusa").replace("llmapi, tensorrt_llm_version: 1.4.0rc4", "torch")
    assert "Medusa" in shown(loader.loads(medusa))["TensorRT-LLM 1.4.0rc4"].refused


def test_an_empty_plan_drafts_nothing():
    found = shown(loader.loads(run("eagle3", "1.2.1")), PLANS | {"one length, and off": {}, "one length": {}})
    assert found["TensorRT-LLM 1.2.1"] == EngineSchedule("TensorRT-LLM 1.2.1", plan="one length, and off", form={})


# ---- the run's own file ----


def test_only_the_schedule_changes_in_the_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(run())
    config = proposal.write(path, SCHEDULE)
    assert loader.load(path) == config
    assert (config.speculation.draft_len_schedule, config.speculation.max_draft_len) == (SCHEDULE, 5)
    before, after = run().splitlines(), path.read_text().splitlines()
    changed = [line for line in after if line not in before]
    assert changed == ["  max_draft_len: 5", "  draft_len_schedule: {1: 5, 8: 3, 32: 0}"]
    assert [line for line in before if line not in after] == ["  max_draft_len: 7"]


def test_one_length_needs_no_schedule_and_takes_an_old_one_away(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(run())
    proposal.write(path, SCHEDULE)
    proposal.write(path, {1: 2})
    assert "draft_len_schedule" not in path.read_text()
    assert loader.load(path).speculation.max_draft_len == 2
    assert proposal.rewritten("", {1: 2}) == "speculation:\n  max_draft_len: 2\n"


def test_a_section_on_one_line_stays_on_one_line():
    text = "name: a\ntarget: {checkpoint: x}\nspeculation: {method: ngram}\n"
    found = proposal.rewritten(text, {1: 4, 8: 0}, CostsConfig(step={1: 1.0, 8: 1.3}))
    assert found.splitlines()[2] == (
        "speculation: {method: ngram, max_draft_len: 4, draft_len_schedule: {1: 4, 8: 0}, "
        "costs: {step: {1: 1.0, 8: 1.3}, draft_level: 0.0}}"
    )


def test_the_snippet_is_what_is_written():
    text = "name: a\ntarget: {checkpoint: x}\nspeculation: {method: ngram}\nbuild: {target: torch}\n"
    by_hand = loader.loads(
        text.replace("speculation: {method: ngram}\n", proposal.rewritten("", SCHEDULE) + "  method: ngram\n")
    )
    assert by_hand == loader.loads(proposal.rewritten(text, SCHEDULE))


def test_a_file_that_cannot_have_it_is_left_alone(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(run("ngram", "1.2.1"))
    with pytest.raises(CapabilityError, match="draft_len_schedule"):
        proposal.write(path, SCHEDULE)
    tree = run().replace("  max_draft_len: 7", "  tree: {top_k: 2, max_total_draft_tokens: 14}\n  max_draft_len: 7")
    path.write_text(tree)
    with pytest.raises((CapabilityError, ConfigError)):
        proposal.write(path, SCHEDULE)
    assert path.read_text() == tree
    engine = run("draft_model", "1.2.1").replace("target: llmapi", "target: tensorrt")
    path.write_text(engine)
    with pytest.raises(CapabilityError, match="draft_len_schedule"):
        proposal.write(path, SCHEDULE)
    assert path.read_text() == engine
    assert proposal.write(path, {1: 3}).speculation.max_draft_len == 3  # one length is no schedule
