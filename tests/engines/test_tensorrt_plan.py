"""Plans for `tensorrt`: golden for every method and version, and each flag held against the facts of the version.

The facts are in tests/data/trtllm_flags.json and written down here again; they do not come from the code's tables. To
accept a change of the golden files: UPDATE_GOLDEN=1 pytest tests/build/test_tensorrt_plan.py
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from tests.engines.trtllm_runs import trtllm_run
from tests.engines.trtllm_stand_ins import StandIns
from trt_spec.config import capabilities, versions
from trt_spec.config.schema import RunConfig
from trt_spec.engines import container
from trt_spec.engines.builder import build, plan_run
from trt_spec.engines.plan import Listing
from trt_spec.engines.sources import Source
from trt_spec.engines.tensorrt import engine_config, flags
from trt_spec.engines.tensorrt.builder import TensorRTBuilder
from trt_spec.errors import CapabilityError
from trt_spec.methods import METHODS

GOLDEN = Path(__file__).parent.parent / "golden" / "trtllm"
FACTS = json.loads((Path(__file__).parent.parent / "data" / "trtllm_flags.json").read_text(encoding="utf-8"))
ENGINE_METHODS = ("none", "draft_model", "medusa", "eagle", "lookahead", "redrafter")
ENGINE_VERSIONS = ("0.19.0", "0.21.0", "1.0.0", "1.1.0", "1.2.0", "1.3.0rc20")
LATE_VERSIONS = ("1.3.0rc29", "1.4.0rc4")
SPECULATION = {
    "draft_model": {"max_draft_len": 6},
    "medusa": {"tree": {"choices": [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]}},
    "eagle": {"tree": {"choices": [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0]]}},
    "lookahead": {"lookahead": {"window_size": 7, "ngram_size": 7, "verification_set_size": 7}},
    "redrafter": {"redrafter": {"num_beams": 4, "draft_len_per_beam": 5}},
}


def config(method: str, version: str = "1.2.1", *, speculation=None, dtype="float16", **build) -> RunConfig:
    section = {"method": method, **(SPECULATION.get(method, {}) if speculation is None else speculation)}
    if METHODS[method].needs_checkpoint:
        section["checkpoint"] = "checkpoints/draft"
    return RunConfig.model_validate(
        {
            "name": f"{method}-{version}",
            "target": {"checkpoint": "checkpoints/target", "dtype": dtype},
            "speculation": section,
            "build": {"target": "tensorrt", "tensorrt_llm_version": version, "max_batch_size": 8, **build},
        }
    )


def plan(made: RunConfig, model_type: str = "llama", **options):
    capabilities.check(made)  # as every command does first
    sources = {"target": Source("target", Listing("checkpoints/target", model_type=model_type))}
    if METHODS[made.speculation.method].needs_checkpoint:
        draft = Listing("checkpoints/draft", model_type="llama", num_heads=5, num_blocks=1)
        sources["draft"] = Source("draft", draft)
    return TensorRTBuilder(made, **options).plan_of(sources)


def tools(planned) -> list[list[str]]:
    return [list(step.command) for step in planned.steps if step.command]


def values(command: list[str]) -> dict[str, str | None]:
    """Flag to value; None for a switch."""
    found: dict[str, str | None] = {}
    for position, word in enumerate(command):
        if word.startswith("--"):
            follows = command[position + 1 : position + 2]
            found[word] = follows[0] if follows and not follows[0].startswith("--") else None
    return found


CASES = [(method, version) for method in ENGINE_METHODS for version in ENGINE_VERSIONS]


@pytest.mark.parametrize(("method", "version"), CASES)
def test_golden(method, version):
    path = GOLDEN / f"plan-tensorrt-{method}-{version}.json"
    text = json.dumps(plan(config(method, version)).as_dict(), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_there_is_a_golden_plan_for_every_combination_that_is_possible_and_no_other():
    found = {path.name for path in GOLDEN.glob("plan-tensorrt-*.json")}
    assert found == {f"plan-tensorrt-{method}-{version}.json" for method, version in CASES}
    assert {*ENGINE_VERSIONS, *LATE_VERSIONS} == set(versions.GOLDEN_VERSIONS)


@pytest.mark.parametrize("version", versions.GOLDEN_VERSIONS)
@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_possible_has_no_plan(method, version):
    speculation = {} if method not in ENGINE_METHODS else None
    if method in ENGINE_METHODS and version in ENGINE_VERSIONS:
        assert plan(config(method, version)).steps
        return
    with pytest.raises(CapabilityError):
        plan(config(method, version, speculation=speculation))


# --- every flag against the facts ------------------------------------------------------------------------------------


def known_flags(command: list[str], version: str) -> dict[str, list[str] | None]:
    """Flag to its possible values (None: any) of the program that a command runs, from the facts."""
    if command[0] == "trtllm-build":
        return {**dict.fromkeys(FACTS["build"]), **FACTS["build_plugins"]}
    script = command[1]
    kind = next((name for name in ("medusa", "eagle", "redrafter", "quantization") if f"/{name}/" in script), "model")
    if kind == "quantization":
        return dict.fromkeys(FACTS["quantize"])
    if kind == "redrafter":
        names = set(FACTS["convert_redrafter"])
        if not version.startswith("0."):
            names = names - {"--model_dir"} | set(FACTS["convert_redrafter_from_1.0"])
        return dict.fromkeys(names)
    names = [*FACTS["convert_common"], *FACTS["convert_llama" if kind == "model" else f"convert_{kind}"]]
    return dict.fromkeys(names)


VARIANTS = [
    {},
    {"tensor_parallel_size": 4},
    {"quantization": "int8_weight_only"},
    {"quantization": "fp8", "kv_cache_dtype": "fp8", "calibration_dataset": "data/calibration"},
    {"quantization": "fp8_rowwise", "pipeline_parallel_size": 2},
    {"kv_cache_dtype": "int8", "enable_kv_cache_reuse": False},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(("method", "version"), CASES)
def test_every_flag_and_value_exists_in_the_version(method, version, variant):
    made = config(method, version, **variant)
    if capabilities.problems(made):
        with pytest.raises(CapabilityError):
            plan(made)
        return
    for command in tools(plan(made)):
        known = known_flags(command, version)
        for flag, value in values(command).items():
            assert flag in known, command
            assert (value is None) == (flag in FACTS["switches"]), flag
            assert known[flag] is None or value in known[flag], f"{flag} {value}"


@pytest.mark.parametrize(("method", "version"), CASES)
def test_what_has_to_be_explicit_is_explicit(method, version):
    """Defaults that are wrong or that differ between versions: batch 2048 (EAGLE asserts 512), beams, paged context."""
    for command in tools(plan(config(method, version))):
        if command[0] != "trtllm-build":
            continue
        given = values(command)
        assert given["--max_batch_size"] == "8"
        assert given["--max_beam_width"] == "1"
        assert given["--use_paged_context_fmha"] == "enable"
        assert given["--max_seq_len"] == "2048"
        assert {"--max_input_len", "--max_num_tokens", "--kv_cache_type", "--workers"} <= set(given)
        assert not {"--gather_context_logits", "--gather_all_token_logits", "--opt_num_tokens"} & set(given)


@pytest.mark.parametrize("version", ENGINE_VERSIONS)
def test_modes_and_where_the_draft_length_is_said(version):
    modes = {
        "none": (None, None),
        "draft_model": ("draft_tokens_external", "6"),
        "medusa": ("medusa", None),  # the checkpoint says it
        "eagle": ("eagle", None),
        "lookahead": ("lookahead_decoding", "83"),  # (7 - 2) + (7 - 1 + 7) * (7 - 1)
        "redrafter": ("explicit_draft_tokens", None),  # beams * length, by the builder
    }
    for method, (mode, draft_len) in modes.items():
        builds = [values(command) for command in tools(plan(config(method, version))) if command[0] == "trtllm-build"]
        assert builds[0].get("--speculative_decoding_mode") == mode
        assert builds[0].get("--max_draft_len") == draft_len
        if method == "draft_model":
            assert len(builds) == 2
            assert not {"--speculative_decoding_mode", "--max_draft_len"} & set(builds[1])
        else:
            assert len(builds) == 1


@pytest.mark.parametrize(
    ("window", "ngram", "pool", "total"), [(7, 7, 7, 83), (4, 3, 4, 15), (1, 2, 1, 1), (8, 5, 9, 67)]
)
def test_draft_tokens_of_lookahead(window, ngram, pool, total):
    section = {"window_size": window, "ngram_size": ngram, "verification_set_size": pool}
    made = config("lookahead", speculation={"lookahead": section})
    assert values(tools(plan(made))[-1])["--max_draft_len"] == str(total)
    assert made.speculation.max_draft_len == ngram - 1


@pytest.mark.parametrize("version", ENGINE_VERSIONS)
@pytest.mark.parametrize(("model_type", "folder"), [("llama", "llama"), ("mistral", "llama"), ("qwen2", "qwen")])
def test_the_converter_is_where_the_version_has_it(version, model_type, folder):
    script = tools(plan(config("lookahead", version), model_type))[0][1]
    place = FACTS["converter_folders"][folder]["0.19" if version.startswith("0.19") else "later"]
    assert script.endswith(f"/{place}/convert_checkpoint.py")
    assert script.startswith(("/app/examples/", "/app/tensorrt_llm/examples/"))
    assert Path(script).is_absolute()


@pytest.mark.parametrize("version", ENGINE_VERSIONS)
def test_heads_have_one_converter_in_all_versions(version):
    for method in ("medusa", "eagle", "redrafter"):
        converters = [c[1] for c in tools(plan(config(method, version))) if c[0] == "python3"]
        assert converters[-1].endswith(f"/examples/{method}/convert_checkpoint.py")


def test_medusa_passes_what_the_checkpoint_has_and_the_nodes_of_the_tree():
    given = values(tools(plan(config("medusa")))[0])
    assert given["--num_medusa_heads"] == "5"
    assert given["--num_medusa_layers"] == "1"
    assert given["--max_medusa_token_len"] == "7"
    assert given["--model_type"] == "llama"
    assert values(tools(plan(config("medusa"), "qwen2"))[0])["--model_type"] == "qwen2"


@pytest.mark.parametrize(
    ("choices", "non_leaves"),
    [
        ([[0]], 1),
        ([[0], [0, 0], [0, 0, 0]], 1),
        ([[0], [1], [0, 0], [1, 0]], 2),
        ([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0]], 3),
    ],
)
def test_eagle_levels_and_non_leaves(choices, non_leaves):
    given = values(tools(plan(config("eagle", speculation={"tree": {"choices": choices}})))[0])
    assert given["--max_draft_len"] == str(len(choices))
    assert given["--num_eagle_layers"] == str(max(map(len, choices)))
    assert given["--max_non_leaves_per_layer"] == str(non_leaves)


def test_eagle_without_a_tree_is_a_chain():
    given = values(tools(plan(config("eagle", speculation={"max_draft_len": 4})))[0])
    assert (given["--max_draft_len"], given["--num_eagle_layers"]) == ("4", "4")
    assert given["--max_non_leaves_per_layer"] == "1"


def test_redrafter_takes_the_target_converted_from_1_0_on():
    early = tools(plan(config("redrafter", "0.21.0")))
    assert [command[1].rpartition("examples/")[2] for command in early[:-1]] == ["redrafter/convert_checkpoint.py"]
    assert values(early[0])["--model_dir"] == "checkpoints/target"
    late = tools(plan(config("redrafter", "1.0.0")))
    assert values(late[1])["--base_model_checkpoint_dir"] == values(late[0])["--output_dir"]
    assert values(late[0])["--model_dir"] == "checkpoints/target"
    with pytest.raises(CapabilityError, match="does not take this target"):
        plan(config("redrafter", "0.21.0"), "qwen2")
    assert plan(config("redrafter", "1.0.0"), "qwen2").steps


@pytest.mark.parametrize(
    ("method", "model_type"), [("eagle", "qwen2"), ("eagle", "mistral"), ("medusa", "mistral"), ("none", "gemma2")]
)
def test_targets_that_no_converter_takes_are_refused(method, model_type):
    with pytest.raises(CapabilityError) as caught:
        plan(config(method), model_type)
    assert caught.value.got == model_type
    assert caught.value.remedy


def test_qwen3_engines_begin_with_1_0():
    with pytest.raises(CapabilityError) as caught:
        plan(config("lookahead", "0.21.0"), "qwen3")
    assert "1.0.0 or later" in caught.value.remedy
    assert "/models/core/qwen/" in tools(plan(config("lookahead", "1.0.0"), "qwen3"))[0][1]


def test_parallel_sizes_reach_every_step_and_workers_are_one_per_gpu():
    made = config("draft_model", tensor_parallel_size=4, pipeline_parallel_size=2)
    for command in tools(plan(made)):
        given = values(command)
        assert given["--workers"] == "8"
        if command[0] == "python3":
            assert (given["--tp_size"], given["--pp_size"]) == ("4", "2")


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ("none", {}),
        ("int8_weight_only", {"--use_weight_only": None, "--weight_only_precision": "int8"}),
        ("int4_weight_only", {"--use_weight_only": None, "--weight_only_precision": "int4"}),
        ("fp8_rowwise", {"--use_fp8_rowwise": None}),
        ("fp8", {"--qformat": "fp8"}),
    ],
)
def test_quantised_weights(quantization, expected):
    convert = tools(plan(config("none", quantization=quantization)))[0]
    given = values(convert)
    assert expected.items() <= given.items()
    assert ("quantization/quantize.py" in convert[1]) == (quantization == "fp8")
    extra = {"--use_weight_only", "--use_fp8_rowwise", "--qformat", "--use_fp8"} - set(expected)
    assert not extra & set(given)


def test_the_draft_of_a_quantised_target_keeps_its_type_and_the_plan_says_so():
    planned = plan(config("draft_model", quantization="fp8", kv_cache_dtype="fp8", calibration_dataset="data"))
    target, build_target, draft, build_draft = (values(command) for command in tools(planned))
    assert (target["--qformat"], target["--kv_cache_dtype"], target["--calib_dataset"]) == ("fp8", "fp8", "data")
    assert build_target["--use_fp8_context_fmha"] == "enable"
    assert "--qformat" not in draft
    assert build_draft["--use_fp8_context_fmha"] == "disable"
    assert any("draft stays in float16" in note for note in planned.notes)


def test_an_int8_cache_switches_paged_context_off():
    made = config("none", kv_cache_dtype="int8", enable_kv_cache_reuse=False)
    convert, build = (values(command) for command in tools(plan(made)))
    assert "--int8_kv_cache" in convert
    assert build["--use_paged_context_fmha"] == "disable"


def test_fp8_rowwise_of_qwen_is_refused():
    with pytest.raises(CapabilityError, match="fp8_rowwise"):
        plan(config("none", quantization="fp8_rowwise"), "qwen2")


# --- sizes -----------------------------------------------------------------------------------------------------------


def sizes(made: RunConfig) -> dict[str, tuple[int, int]]:
    return {size.name: (size.asked, size.built) for size in engine_config.sizes(made)}


def test_sizes_that_the_builder_makes():
    assert sizes(config("none")) == {}
    assert sizes(config("draft_model")) == {"max_seq_len": (2048, 2054)}
    assert sizes(config("medusa")) == {"max_seq_len": (2048, 2055), "max_draft_len": (3, 7)}
    assert sizes(config("eagle")) == {"max_seq_len": (2048, 2048 + 8 + 3), "max_draft_len": (3, 8)}
    assert sizes(config("lookahead")) == {"max_seq_len": (2048, 2131), "max_draft_len": (6, 83)}
    assert sizes(config("redrafter")) == {"max_seq_len": (2048, 2068), "max_draft_len": (5, 20)}
    small = config("none", max_batch_size=1, max_seq_len=512)
    assert sizes(small) == {"max_num_tokens": (8192, 512)}
    short = config("none", max_num_tokens=1024)
    assert sizes(short) == {"max_input_len": (2047, 1024)}
    assert any("at most 1024 tokens" in note for note in plan(short).notes)


@pytest.mark.parametrize("method", ENGINE_METHODS)
def test_the_sizes_of_the_plan_are_those_that_independent_code_makes_of_its_commands(tmp_path, monkeypatch, method):
    stand_ins = StandIns(tmp_path / "tools")
    monkeypatch.setenv("PATH", f"{stand_ins.bin}:{os.environ['PATH']}")
    made = trtllm_run(tmp_path, method, stand_ins, speculation=SPECULATION.get(method), max_seq_len=512)
    planned = plan_run(made, engines_dir=tmp_path / "engines")
    result = build(made, engines_dir=tmp_path / "engines")
    written = json.loads((result.engine_dir / "engine" / "config.json").read_text(encoding="utf-8"))
    assert planned.sizes or method == "none"
    for size in planned.sizes:
        assert written["build_config"][size.name] == size.built
    ran = [list(check.details["command"]) for check in result.manifest.verified if "command" in check.details]
    assert ran == tools(planned), "what is shown is what is run"


# --- what a user sees ------------------------------------------------------------------------------------------------


def test_the_container_and_its_command_are_there():
    planned = plan(config("medusa"), run="my-run")
    assert planned.container == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    words = shlex.split(planned.container_command)
    assert words[:3] == ["docker", "run", "--rm"]
    assert planned.container in words
    assert words[-2] == "-c"
    assert words[-1].endswith("&& trt-spec build my-run")
    assert "--gpus" in words


def test_another_image_and_examples_are_taken_from_the_config():
    planned = plan(config("medusa", container="registry/image:tag", examples_dir="/opt/examples"))
    assert planned.container == "registry/image:tag"
    assert tools(planned)[0][1] == "/opt/examples/medusa/convert_checkpoint.py"


def test_absolute_checkpoints_are_mounted_and_others_that_lead_out_are_told():
    made = config("none").model_copy(
        update={"target": config("none").target.model_copy(update={"checkpoint": "/data/m"})}
    )
    command = plan(made).container_command
    assert "-v /data/m:/data/m:ro" in command
    made = config("none").model_copy(update={"target": config("none").target.model_copy(update={"checkpoint": "../m"})})
    assert any("../m leads out" in note for note in plan(made).notes)


def test_a_plan_says_that_it_was_not_run():
    assert any("not run here" in note for note in plan(config("none")).notes)


def test_commands_for_a_shell_are_the_commands():
    made = config("none", calibration_dataset="my data", quantization="fp8")
    planned = plan(made)
    shown = [shlex.split(tool["command"].replace("\\\n", "")) for tool in planned.as_dict()["tools"]]
    assert shown == tools(planned)
    assert any("my data" in words for words in shown)


def test_modes_have_the_numbers_of_the_facts():
    assert {name.upper(): number for name, number in engine_config.MODE_NUMBERS.items()} == FACTS["mode_numbers"]
    assert set(flags.MODES.values()) == set(FACTS["modes"])


def test_links_that_the_container_would_not_follow_are_told(tmp_path, monkeypatch):
    project, cache = tmp_path / "project", tmp_path / "cache"
    (project / "checkpoints").mkdir(parents=True)
    cache.mkdir()
    (cache / "model.safetensors").write_text("weights")
    monkeypatch.chdir(project)
    (project / "checkpoints" / "linked").symlink_to(cache)
    assert "is a link to" in container.mount_problem("checkpoints/linked")
    (project / "checkpoints" / "blobs").mkdir()
    (project / "checkpoints" / "blobs" / "model.safetensors").symlink_to(cache / "model.safetensors")
    assert str(cache / "model.safetensors") in container.mount_problem("checkpoints/blobs")
    assert container.mount_problem(str(project / "checkpoints" / "linked")) is None  # docker follows what it mounts
    assert container.mount_problem("checkpoints/absent") is None
    (project / "checkpoints" / "own").mkdir()
    (project / "checkpoints" / "own" / "model.safetensors").write_text("weights")
    assert container.mount_problem("checkpoints/own") is None
