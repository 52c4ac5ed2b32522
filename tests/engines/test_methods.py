"""Every method from checkpoints to an engine that generates: what is written, and that drafts change no token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests import tiny
from tests.engines.runs import tiny_run
from tests.runtime.head_cases import IDS, deepseek_target, mimo_target
from trt_spec.config.schema import RunConfig
from trt_spec.engines.builder import build, plan_run
from trt_spec.errors import CheckpointError, ConfigError, PairError
from trt_spec.runtime.loading import load_engine
from trt_spec.runtime.request import Request, SamplingParams

PROMPTS = ((5, 6, 7, 8, 5, 6, 7), tuple(range(40, 70)), (9,))


def run_config(root: Path, method: str, target: Path, draft: Path | None = None, **speculation: Any) -> RunConfig:
    speculation |= {"method": method} | ({} if draft is None else {"checkpoint": str(draft)})
    return RunConfig(
        name=f"tiny-{method}",
        target={"checkpoint": str(target), "dtype": "float32"},
        speculation=speculation,
        build={"max_batch_size": 4, "max_seq_len": 128, "device": "cpu"},
    )


def medusa_pickle(root: Path) -> RunConfig:
    """As Medusa's trainer leaves it: one .pt and no config.json."""
    (root / "draft").mkdir()
    torch.save(tiny.random_tensors(tiny.medusa_shapes(), 0, torch.float16), root / "draft" / "medusa_lm_head.pt")
    target = tiny.llama_checkpoint(root / "target")
    return run_config(root, "medusa", target, root / "draft", max_draft_len=3)


def medusa(root: Path) -> RunConfig:
    draft = tiny.save_draft(root / "draft", tiny.medusa_shapes(num_blocks=2), medusa_num_heads=5)
    return run_config(root, "medusa", tiny.llama_checkpoint(root / "target"), draft, max_draft_len=2)


def eagle(root: Path) -> RunConfig:
    draft = tiny.save_draft(root / "draft", tiny.eagle_shapes())
    return run_config(root, "eagle", tiny.llama_checkpoint(root / "target"), draft)


def eagle3(root: Path, method: str = "eagle3") -> RunConfig:
    draft = tiny.save_draft(root / "draft", tiny.eagle3_shapes(), tensors=tiny.vocabulary_maps(), **IDS)
    return run_config(root, method, tiny.llama_checkpoint(root / "target"), draft)


def eagle_is_eagle3(root: Path) -> RunConfig:
    return eagle3(root, "eagle")


def mtp_mimo(root: Path) -> RunConfig:
    return run_config(root, "mtp", mimo_target(root / "target"), max_draft_len=2)


def mtp_deepseek(root: Path) -> RunConfig:
    deepseek_target(root / "target", copies="absent", vocab_size=320)
    tiny.byte_level_tokenizer(root / "target")
    return run_config(root, "mtp", root / "target", max_draft_len=2)


def mtp_two_layers(root: Path) -> RunConfig:
    return run_config(root, "mtp", mimo_target(root / "target", num_layers=2), max_draft_len=2)


def medusa_tree(root: Path) -> RunConfig:
    draft = tiny.save_draft(root / "draft", tiny.medusa_shapes())
    tree = {"choices": [[0], [1], [0, 0], [0, 1], [0, 0, 0]]}
    return run_config(root, "medusa", tiny.llama_checkpoint(root / "target"), draft, tree=tree)


METHODS = [
    medusa_pickle,
    medusa,
    medusa_tree,
    eagle,
    eagle3,
    eagle_is_eagle3,
    mtp_mimo,
    mtp_two_layers,
    mtp_deepseek,
]


@pytest.mark.parametrize("make", METHODS, ids=lambda make: make.__name__)
def test_an_engine_of_every_method_drafts_and_changes_nothing(tmp_path, make):
    config = make(tmp_path)
    planned = plan_run(config, engines_dir=str(tmp_path / "engines"))
    result = build(config, engines_dir=tmp_path / "engines", run=config.name)
    written = {str(path.relative_to(result.engine_dir)) for path in result.engine_dir.rglob("*") if path.is_file()}
    assert written == {file.path for file in planned.files}
    for role in ("target", "draft"):
        shutil.rmtree(tmp_path / role, ignore_errors=True)  # the engine is self-contained
    engine = load_engine(result.engine_dir)
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    answers = {
        speculation: engine.generate(
            [Request(f"{speculation}{index}", ids, params, speculation) for index, ids in enumerate(PROMPTS)]
        )
        for speculation in (True, False)
    }
    assert [answer.token_ids for answer in answers[True]] == [answer.token_ids for answer in answers[False]]
    assert all(answer.completion.total_draft_tokens > 0 for answer in answers[True])
    assert all(answer.completion.total_draft_tokens == 0 for answer in answers[False])


def test_a_pickle_of_medusa_heads_becomes_safetensors(tmp_path):
    result = build(medusa_pickle(tmp_path), engines_dir=tmp_path / "engines")
    engine_dir = result.engine_dir
    assert not any("tokenizers" in check.result for check in result.manifest.verified)  # heads have none to compare
    assert sorted(path.name for path in (engine_dir / "draft").iterdir()) == [
        "config.json",
        "medusa_lm_head.safetensors",
    ]
    source = torch.load(tmp_path / "draft" / "medusa_lm_head.pt", weights_only=True)
    written = load_file(engine_dir / "draft" / "medusa_lm_head.safetensors")
    assert written.keys() == source.keys()
    assert all(torch.equal(written[name], tensor.float()) for name, tensor in source.items())


@pytest.mark.parametrize("make", [mtp_mimo, mtp_deepseek], ids=lambda make: make.__name__)
def test_the_targets_mtp_layers_are_kept(tmp_path, make):
    source = load_file(make(tmp_path).target.checkpoint + "/model.safetensors")
    result = build(make(tmp_path), engines_dir=tmp_path / "engines")
    engine_dir = result.engine_dir
    assert "the target's MTP layers" in [check.check for check in result.manifest.verified]
    written = load_file(engine_dir / "target" / "model.safetensors")
    assert written.keys() == source.keys()
    assert any("mtp_layers" in name or "eh_proj" in name for name in written)
    assert json.loads((engine_dir / "target" / "config.json").read_text())["num_nextn_predict_layers"] == 1


def refuse(config: RunConfig, root: Path, kind: type[Exception], *words: str) -> None:
    with pytest.raises(kind) as caught:
        build(config, engines_dir=root / "engines")
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not list((root / "engines").glob("*"))


def test_eagle3_insists_on_its_generation(tmp_path):
    draft = tiny.save_draft(tmp_path / "draft", tiny.eagle_shapes())
    config = run_config(tmp_path, "eagle3", tiny.llama_checkpoint(tmp_path / "target"), draft)
    refuse(config, tmp_path, PairError, "fc is 2H wide", "use method eagle,")


def test_mtp_needs_layers_in_the_target(tmp_path):
    config = tiny_run(tmp_path, "mtp")
    refuse(config, tmp_path, CheckpointError, "this target has none", "ngram")
    tiny.edit_json(tmp_path / "target" / "config.json", num_nextn_predict_layers=1)
    refuse(config, tmp_path, CheckpointError, "config.json promises 1 prediction layers, the files hold 0")


def test_drafts_longer_than_there_are_heads_or_layers(tmp_path):
    config = medusa(tmp_path)
    deep = config.model_copy(update={"speculation": config.speculation.model_copy(update={"max_draft_len": 4})})
    refuse(deep, tmp_path, ConfigError, "speculation.max_draft_len", "at most 3")
    target = mimo_target(tmp_path / "mimo", num_layers=2)
    refuse(run_config(tmp_path, "mtp", target, max_draft_len=3), tmp_path, ConfigError, "at most 2")
    tree = {"choices": [[0], [1], [0, 0]]}
    refuse(run_config(tmp_path, "mtp", target, tree=tree), tmp_path, ConfigError, "chains only", "2 MTP layers")


def test_the_method_is_checked_against_the_tensors_first(tmp_path):
    tiny.save_draft(tmp_path / "draft", tiny.medusa_shapes())
    config = run_config(tmp_path, "eagle", tiny.llama_checkpoint(tmp_path / "target"), tmp_path / "draft")
    refuse(config, tmp_path, PairError, "Medusa heads", "use method medusa")
