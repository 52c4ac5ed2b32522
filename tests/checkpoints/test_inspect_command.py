"""`trt-spec inspect` on every layout of the fixtures: as JSON and as a table, with the exit code for scripts."""

from __future__ import annotations

import json

import pytest

from tests import tiny
from tests.runtime.head_cases import (
    EAGLE,
    EAGLE3,
    IDS,
    deepseek_target,
    draft,
    eagle3_case,
    eagle_case,
    load,
    mimo_target,
)
from trt_spec.cli.app import main


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A target with a draft of every kind beside it."""
    root = tmp_path_factory.mktemp("layouts")
    target_dir = tiny.llama_checkpoint(root / "target")
    target = load(target_dir)
    for name in EAGLE:
        eagle_case(root / f"eagle {name}", target, target_dir, name)
    for name in EAGLE3:
        eagle3_case(root / f"eagle3 {name}", target, target_dir, name)
    tiny.save_draft(root / "medusa", tiny.medusa_shapes())
    tiny.llama_checkpoint(root / "draft_model", num_hidden_layers=1)
    mimo_target(root / "mtp mimo", 2)
    deepseek_target(root / "mtp deepseek")
    draft(root / "no head", tiny.eagle3_shapes(), drop=["lm_head.weight"], tensors=tiny.vocabulary_maps(), **IDS)
    return root


@pytest.fixture
def call(root, capsys):
    def call(*args) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["inspect", *map(str, args)])
        return ended.value.code, capsys.readouterr().out

    return call


DRAFTS = [*(f"eagle {name}" for name in EAGLE), *(f"eagle3 {name}" for name in EAGLE3), "medusa", "draft_model"]


@pytest.mark.parametrize("name", DRAFTS)
def test_drafts(root, call, name):
    method = name.split()[0]
    code, out = call(root / name, "--target", root / "target", "--json")
    found = json.loads(out)
    assert (code, found["role"], found["method"], found["fits_target"]) == (0, "draft", method, True)
    assert found["problems"] == []
    code, out = call(root / name, "--target", root / "target")
    assert code == 0
    assert method in out


@pytest.mark.parametrize(
    ("name", "method", "family"),
    [("target", "none", "llama"), ("mtp mimo", "mtp", "mimo"), ("mtp deepseek", "mtp", "deepseek_v3")],
)
def test_targets(root, call, name, method, family):
    code, out = call(root / name, "--json")
    found = json.loads(out)
    assert (code, found["role"], found["method"], found["family"]) == (0, "target", method, family)
    assert found["fits_target"] is None
    assert family in call(root / name)[1]


def test_a_problem_is_shown_with_its_remedy_and_ends_with_exit_code_2(root, call):
    code, out = call(root / "no head", "--target", root / "target", "--json")
    found = json.loads(out)
    [problem] = found["problems"]
    assert (code, found["fits_target"], problem["code"]) == (2, False, "E-HEAD")
    assert set(problem) == {"code", "message", "remedy"}
    assert problem["remedy"]
    code, out = call(root / "no head", "--target", root / "target")
    assert code == 2
    assert "E-HEAD" in out
    assert "export the draft with its head" in " ".join(out.split())
