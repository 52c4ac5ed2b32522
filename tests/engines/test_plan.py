"""Plans are pure, and as written in tests/golden. To accept a change there: UPDATE_GOLDEN=1 pytest tests/build."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trt_spec.config.schema import BuildConfig, RunConfig
from trt_spec.engines.builder import plan_run
from trt_spec.engines.plan import Listing, commands
from trt_spec.engines.sources import Source
from trt_spec.engines.torch.builder import TorchBuilder
from trt_spec.errors import CapabilityError

GOLDEN = Path(__file__).parent.parent / "golden"


def config(method="ngram", **speculation):
    return RunConfig(
        name=f"a-run-{method}",
        target={"checkpoint": "checkpoints/target"},
        speculation={"method": method, **speculation},
    )


def plan(config, target, draft=None, **options):
    sources = {"target": Source("target", target), **({"draft": Source("draft", draft)} if draft else {})}
    return TorchBuilder(config, **options).plan_of(sources)


TARGET = Listing("checkpoints/target", ("model.safetensors",), ("tokenizer.json", "chat_template.jinja"))
CASES = {
    "none": plan(config("none"), TARGET),
    "ngram": plan(config(), TARGET, run="--model target --method ngram"),
    "draft_model": plan(
        config("draft_model", checkpoint="checkpoints/draft"),
        Listing(
            "checkpoints/target",
            ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
            ("tokenizer.json",),
        ),
        Listing("checkpoints/draft", ("pytorch_model.bin",), ("tokenizer.json", "LICENSE")),
        engines_dir="elsewhere",
    ),
    "assumed": plan(config(), Listing("checkpoints/target", is_assumed=True)),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    path = GOLDEN / f"plan-{name}.json"
    text = json.dumps(CASES[name].as_dict(), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_commands_are_quoted_for_a_shell():
    assert commands("--model 'my model' --method ngram")[0] == "trt-spec build --model 'my model' --method ngram"


def test_what_tensorrt_llm_serves_is_deployed():
    assert [line.split()[1] for line in commands("a-run")] == ["build", "emit", "serve"]
    assert [line.split()[1] for line in commands("a-run", "llmapi")] == ["build", "emit", "deploy"]


def test_what_is_not_offered_has_no_plan():
    with pytest.raises(CapabilityError):
        plan_run(config("medusa", checkpoint="nowhere").model_copy(update={"build": BuildConfig(target="llmapi")}))
