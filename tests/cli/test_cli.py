"""Every command from outside: results, exit codes, and one clear message for what goes wrong."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file, save_file

from tests import tiny
from tests.bench.keys import paths, under
from tests.engines.runs import tiny_run, write_run
from trt_spec.cli.app import cli, main
from trt_spec.config import loader
from trt_spec.triton.server import installation
from trt_spec.triton.server.installation import free_ports


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(capsys):
    """Runs a command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        return (caught.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def ngram(project):
    """A config file of a tiny run with n-gram drafts; its engine is not built."""
    return write_run(project, tiny_run(project))


def json_of(outcome):
    code, out, _ = outcome
    assert code == 0, outcome
    return json.loads(out)


# --- what works ----------------------------------------------------------------------------------------------------


def test_help_lists_every_command_and_the_exit_codes(call):
    code, out, _ = call("--help")
    assert code == 0
    for name in cli.commands:
        assert f"\n  {name} " in out
    assert "130 interrupted" in " ".join(out.split())


def test_without_arguments_it_shows_the_help_and_is_a_usage_error(call):
    code, out, err = call()
    assert code == 2
    assert "Commands:" in out + err


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_takes_the_common_options(call, name):
    code, out, _ = call(name, "--help")
    assert code == 0
    for option in ("--json", "--verbose", "--quiet"):
        assert option in out


def test_doctor_says_what_works(call):
    report = json_of(call("doctor", "--json"))
    abilities = {ability["name"]: ability["is_possible"] for ability in report["abilities"]}
    assert abilities["build for torch"] is True
    assert report["versions"]["torch"]
    assert abilities["build for tensorrt"] is False
    offers = {(offer["method"], offer["build_target"]): offer for offer in report["tensorrt_llm"]["offers"]}
    assert not offers["medusa", "llmapi"]["is_supported"]
    assert "tensorrt" in offers["medusa", "llmapi"]["remedy"]
    assert offers["medusa", "tensorrt"]["acceptance"] == ["greedy"]


def test_schema_is_json_with_and_without_the_flag(call):
    schema = json_of(call("schema"))
    assert schema == json_of(call("schema", "--json"))
    assert schema["properties"]["speculation"]


def test_plan_writes_nothing(call, project, ngram):
    before = sorted(project.rglob("*"))
    planned = json_of(call("plan", ngram, "--json"))
    assert {file["path"] for file in planned["files"]} >= {"target/model.safetensors", "manifest.json"}
    assert planned["commands"] == [f"trt-spec {name} {ngram}" for name in ("build", "emit", "serve")]
    assert sorted(project.rglob("*")) == before


def test_plan_of_a_checkpoint_that_is_not_there_says_what_it_assumes(call, project):
    code, out, err = call("plan", "--model", "nowhere", "--method", "ngram")
    assert code == 0
    assert "checkpoints/nowhere is not there yet" in err
    assert "target/model.safetensors" in out


def test_from_config_to_text(call, project, ngram):
    built = json_of(call("build", ngram, "--json"))
    assert built["engine_dir"] == "engines/tiny-ngram"
    assert not built["is_reused"]
    code, out, _ = call("build", ngram)
    assert code == 0
    assert "nothing to do" in out
    emitted = json_of(call("emit", ngram, "--json"))
    assert "tensorrt_llm/config.pbtxt" in emitted["files"]
    answer = json_of(call("generate", ngram, "--prompt", "the cat the cat the cat", "--max-tokens", 64, "--json"))
    plain = json_of(
        call("generate", ngram, "--prompt", "the cat the cat the cat", "--max-tokens", 64, "--no-speculation", "--json")
    )
    assert answer["output_ids"] == plain["output_ids"]
    assert len(answer["output_ids"]) == answer["num_output_tokens"] <= 64
    assert answer["num_drafts"] > 0
    assert plain["num_drafts"] == 0
    code, out, err = call("generate", ngram, "--prompt", "the cat the cat the cat", "--max-tokens", 64)
    assert code == 0
    assert out == answer["text_output"] + "\n"
    assert "mean acceptance length" in err


GENERATE_KEYS = {
    "text_output",
    "output_ids",
    "num_input_tokens",
    "num_output_tokens",
    "finish_reason",
    "stop_reason",
    "num_drafts",
    "total_draft_tokens",
    "total_accepted_draft_tokens",
    "accepted_per_position",
    "acceptance_rate",
    "mean_acceptance_length",
    "arrival_time_ns",
    "first_scheduled_time_ns",
    "first_token_time_ns",
    "last_token_time_ns",
}


def test_generate_honours_the_parameters_of_the_contract(call, ngram):
    call("build", ngram)
    base = ("generate", ngram, "--input-ids", "5,6 7", "--json")
    answer = json_of(call(*base, "--max_tokens", 4, "--ignore-eos", "--logprobs"))
    assert set(answer) >= GENERATE_KEYS
    assert answer["num_input_tokens"] == 3
    assert answer["finish_reason"] == "length"
    assert len(answer["logprobs"]) == 4
    sampled = [json_of(call(*base, "--temperature", 1, "--seed", seed, "--max-tokens", 6)) for seed in (1, 1, 2)]
    assert sampled[0]["output_ids"] == sampled[1]["output_ids"] != sampled[2]["output_ids"]
    stopped = json_of(call(*base, "--stop-token-ids", answer["output_ids"][1], "--max-tokens", 4))
    assert stopped["output_ids"] == answer["output_ids"][:2]
    assert "num_drafts" not in json_of(call(*base, "--no-return-perf-metrics"))


def test_chat_wraps_the_prompt_in_the_template(call, ngram):
    call("build", ngram)
    bare = json_of(call("generate", ngram, "--prompt", "cat", "--max-tokens", 1, "--json"))
    chat = json_of(call("generate", ngram, "--prompt", "cat", "--chat", "--max-tokens", 1, "--json"))
    assert chat["num_input_tokens"] > bare["num_input_tokens"]


def test_inspect_tells_role_method_and_fit(call, project):
    tiny_run(project, "draft_model")
    found = json_of(call("inspect", "draft", "--target", "target", "--json"))
    assert (found["role"], found["method"], found["fits_target"], found["problems"]) == (
        "draft",
        "draft_model",
        True,
        [],
    )
    assert json_of(call("inspect", "target", "--json"))["fits_target"] is None
    (project / "checkpoints").mkdir(exist_ok=True)
    for name in ("draft", "target"):  # names are looked up as everywhere else
        (project / name).rename(project / "checkpoints" / f"my-{name}")
    assert json_of(call("inspect", "my-draft", "--target", "my-target", "--json"))["fits_target"] is True


def test_bench_measures_floor_and_peers(call, ngram):
    long = ("--set", "build.max_seq_len=200")
    call("build", ngram, *long)
    floor = json_of(call("bench", ngram, *long, "--json"))
    assert paths(floor) == under(
        "",
        "floor_ms stock_floor_ms plain_step_ms plain_over_floor plain_over_stock_floor verify8_over_one host_share "
        "context_len num_rounds num_threads dtype",
    )
    peers = json_of(call("bench", ngram, *long, "--what", "peers", "--prompt", "the cat", "--json"))
    assert len(peers["arms"]) == 4
    figures = under("arms.*", "tokens_per_s lowest highest num_equal_tokens")
    assert paths(peers, {"arms": 1}) == figures | {"num_input_tokens", "num_tokens", "num_rounds", "dtype"}
    for what in ("floor", "peers"):
        extra = ("--prompt", "the cat") if what == "peers" else ()
        code, out, _ = call("bench", ngram, *long, "--what", what, *extra)
        assert code == 0
        assert "tokens/s" in out
    refused(call("bench", ngram, *long, "--prompt", "x"), 2, "--prompt")
    refused(call("bench", ngram, *long, "--what", "peers", "--prompt", "x" * 180), 2, "too little room")


def test_flags_stand_for_a_config(call, project):
    tiny_run(project, "draft_model")
    flags = ("--model", "target", "--method", "draft-model", "--draft", "draft", "--set", "build.max_seq_len=64")
    planned = json_of(call("plan", *flags, "--json"))
    assert planned["run"] == "target-draft_model"
    assert planned["commands"][0] == "trt-spec build " + " ".join(flags)


def test_another_model_of_the_same_name_is_not_taken_for_the_one_in_configs(call, project):
    tiny.llama_checkpoint(project / "elsewhere" / "smollm2-135m")
    planned = json_of(call("plan", "--model", "elsewhere/smollm2-135m", "--method", "ngram", "--json"))
    assert planned["files"][0]["source"].startswith("elsewhere/smollm2-135m/")
    planned = json_of(call("plan", "--model", "smollm2-135m", "--method", "ngram", "--json"))
    assert planned["files"][0]["source"].startswith("checkpoints/smollm2-135m/")


# --- what goes wrong -----------------------------------------------------------------------------------------------


def refused(outcome, code, *says):
    """One message on stderr with every part of `says`; nothing on stdout."""
    assert outcome[0] == code, outcome
    assert outcome[1] == ""
    assert [line.startswith("error:") for line in outcome[2].splitlines()].count(True) == 1
    for part in says:
        assert part in outcome[2]


def test_a_wrong_config_key_names_line_and_neighbour(call, project, ngram):
    ngram.write_text(ngram.read_text().replace("max_batch_size", "max_batchsize"))
    line = 1 + ngram.read_text().splitlines().index("  max_batchsize: 4")
    refused(call("build", ngram), 2, "max_batchsize", f"{ngram.name}:{line}", "max_batch_size")
    assert not (project / "engines").exists()


def test_a_wrong_override_names_itself(call, ngram):
    refused(call("build", ngram, "--set", "build.max_batchsize=3"), 2, "--set build.max_batchsize=3", "max_batch_size")


@pytest.mark.parametrize("kind", ["missing", "extra"])
def test_a_missing_or_extra_tensor_is_named(call, project, ngram, kind):
    path = project / "target" / "model.safetensors"
    tensors = load_file(path)
    norm = tensors.pop("model.norm.weight") if kind == "missing" else tensors["model.norm.weight"].clone()
    name = "model.norm.weight" if kind == "missing" else "model.layers.0.strange.weight"
    save_file({**tensors, **({} if kind == "missing" else {name: norm})}, path)
    refused(call("build", ngram), 2, name, kind if kind == "missing" else "unexpected")
    assert not (project / "engines" / "tiny-ngram").exists()
    code, out, _ = call("inspect", "target", "--json")
    assert code == 2
    assert name in json.loads(out)["problems"][0]["message"]


def test_a_tokenizer_that_differs_at_one_id_names_it(call, project):
    path = write_run(project, tiny_run(project, "draft_model"))
    tiny.swap_ids(project / "draft", 300, 301)
    refused(call("build", path), 2, "300", "301")
    assert not (project / "engines" / "tiny-draft_model").exists()


def test_a_prompt_longer_than_the_context_names_both_lengths(call, ngram):
    call("build", ngram)
    refused(call("generate", ngram, "--input-ids", " ".join(["5"] * 128)), 2, "input_ids", "128 tokens", "127")


def test_a_parameter_that_is_not_offered_is_refused_by_name(call, ngram):
    call("build", ngram)
    refused(call("generate", ngram, "--prompt", "x", "--beam-width", 2), 2, "beam_width")
    refused(call("generate", ngram, "--prompt", "x", "--top-p", 0), 2, "top_p")
    refused(call("generate", ngram, "--prompt", "x", "--max-draft-len", 99), 2, "max_draft_len")
    refused(call("generate", ngram, "--prompt", "x", "--top-q", 1), 2, "--top-q", "--top-p")


def test_generate_needs_exactly_one_prompt(call, ngram):
    refused(call("generate", ngram), 2, "--prompt or --input-ids")
    refused(call("generate", ngram, "--prompt", "x", "--input-ids", "1"), 2, "--prompt or --input-ids")
    refused(call("generate", ngram, "--input-ids", "one"), 2, "token ids")


@pytest.mark.parametrize("command", ["emit", "generate"])
def test_without_an_engine_the_message_says_to_build_one(call, ngram, command):
    extra = ("--prompt", "x") if command == "generate" else ()
    refused(call(command, ngram, *extra), 2, "engines/tiny-ngram", "build")


@pytest.mark.parametrize("command", ["emit", "generate"])
def test_an_engine_of_another_config_is_not_used(call, ngram, command):
    call("build", ngram)
    extra = ("--prompt", "x") if command == "generate" else ()
    refused(call(command, ngram, "--set", "speculation.max_draft_len=3", *extra), 2, "another config", "trt-spec build")


def test_what_a_target_does_not_have_is_refused_by_name(call, project):
    for command in ("plan", "build"):
        refused(call(command, "--model", "m", "--method", "ngram", "--build-target", "tensorrt"), 2, "llmapi", "torch")
        flags = ("--model", "m", "--method", "medusa", "--draft", "d", "--build-target", "llmapi")
        refused(call(command, *flags), 2, "llmapi", "tensorrt_llm_version 0.19.0 to 1.3.0rc20")
        late = ("--set", "build.tensorrt_llm_version=1.3.0rc21")
        refused(call(command, "--model", "m", "--method", "none", "--build-target", "tensorrt", *late), 2, "1.3.0rc20")


def test_a_plan_for_tensorrt_shows_what_happens_in_the_container(call, project):
    code, out, err = call("plan", "--model", "vicuna", "--method", "lookahead", "--build-target", "tensorrt")
    assert code == 0
    assert "trtllm-build \\\n" in out
    assert "--speculative_decoding_mode lookahead_decoding" in out
    assert "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3" in out
    last = out.rstrip().splitlines()[-1]
    assert last.endswith('&& trt-spec build --model vicuna --method lookahead --build-target tensorrt"'), "not cut off"
    assert "they were not run here" in err
    assert list(project.glob("engines*")) == []


def test_a_build_for_tensorrt_without_its_tools_is_code_3_with_the_container(call, project, ngram):
    flags = ("--model", str(project / "target"), "--method", "none", "--build-target", "tensorrt")
    refused(call("build", *flags), 3, "trtllm-build is not on PATH", "docker run", "26.07-trtllm-python-py3")


def test_a_run_has_to_be_named_once(call, ngram):
    refused(call("plan"), 2, "no run was named", "smollm2-135m-ngram")
    refused(call("plan", ngram, "--model", "x"), 2, "--model")
    refused(call("plan", "smollm2-135m-ngrm"), 2, "smollm2-135m-ngram")


def test_usage_errors_are_ours_and_json_where_asked_for(call):
    refused(call("bild"), 2, "bild", "build")
    code, out, _ = call("build", "--modle", "x", "--json")
    assert code == 2
    assert json.loads(out)["exit_code"] == 2


def test_errors_are_one_json_object_too(call, ngram):
    code, out, err = call("generate", ngram, "--prompt", "x", "--json")
    assert code == 2
    assert json.loads(out)["error"] == "CheckpointError"
    assert "error:" in err


def test_an_unexpected_error_is_one_line_and_code_70(call, ngram, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr(loader, "load", broken)
    code, _, err = call("plan", ngram)
    assert code == 70
    assert err.splitlines() == [
        "error: unexpected ZeroDivisionError: by accident (run again with -v for the traceback)"
    ]
    code, _, err = call("plan", ngram, "-v")
    assert "Traceback" in err


def test_a_directory_that_cannot_be_written_is_the_machines_fault(call, project, ngram):
    (project / "engines").write_text("in the way")
    code, _, err = call("build", ngram)
    assert code == 3
    assert "engines" in err


def test_a_prompt_from_stdin(call, ngram, monkeypatch):
    call("build", ngram)
    for data in (b"5 6 7", b"\xff"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        result = call("generate", ngram, "--prompt", "-", "--max-tokens", 2)
        if data == b"\xff":
            refused(result, 2, "stdin is not UTF-8")
        else:
            assert result[0] == 0


@pytest.mark.parametrize("url", ["host:port", "127.0.0.1:99999", "grpc://127.0.0.1:0", "https://127.0.0.1:8000", "x"])
def test_what_is_no_address_of_a_server_is_refused(call, ngram, url):
    refused(call("generate", ngram, "--prompt", "hi", "--url", url), 2, "no server's address", url)


def test_a_copy_that_fails_names_both_files(call, ngram, monkeypatch):
    """The disk that is full is that of the second one."""

    def full(source, destination, **options):
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(destination))

    monkeypatch.setattr(shutil, "copyfile", full)
    code, _, err = call("build", ngram)
    assert code == 3
    assert re.search(r"No space left on device\n  where: \S+ -> \S+/engines/", err), err


def test_a_missing_tritonserver_is_code_3_and_says_how_to_get_it(call, project, ngram, monkeypatch):
    call("build", ngram)
    call("emit", ngram)
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: None)
    refused(call("serve", ngram), 3, "no tritonserver here", "nvidia-pytriton")


def test_a_port_in_use_is_code_3_and_names_the_key(call, project, ngram):
    call("build", ngram)
    call("emit", ngram)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(
            call("serve", ngram, "--set", f"serve.http_port={port}"), 3, f"port {port} is in use", "serve.http_port"
        )


def test_serve_without_a_repository_says_to_emit_one(call, ngram):
    refused(call("serve", ngram), 3, "no model repository here", "trt-spec emit")


def test_an_openai_port_in_use_is_code_3_and_names_the_option(call, ngram):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused(call("serve", ngram, "--openai-port", port), 3, f"port {port} is in use", "--openai-port")


def test_an_openai_address_without_its_port_is_code_2(call, ngram):
    refused(call("serve", ngram, "--openai-host", "0.0.0.0"), 2, "--openai-host needs --openai-port")


def test_an_openai_address_that_is_not_this_machines_is_code_3(call, ngram):
    port = str(free_ports(1)[0])
    refused(call("serve", ngram, "--openai-port", port, "--openai-host", "192.0.2.1"), 3, "cannot be used", "192.0.2.1")


def test_a_server_that_is_not_there_is_code_3(call, ngram):
    for url in ("127.0.0.1:9", "grpc://127.0.0.1:9"):
        refused(call("generate", ngram, "--prompt", "x", "--url", url), 3, "cannot be reached")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_says_so_and_leaves_nothing(project, ngram, how):
    # The target is a pipe that nobody writes to: the build waits there for as long as it takes.
    config = project / "target" / "config.json"
    config.unlink()
    os.mkfifo(config)
    command = [sys.executable, "-m", "trt_spec", "build", str(ngram)]
    builder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert builder.stderr.readline().startswith("building engines/tiny-ngram")
    time.sleep(1.0)  # from the announcement into the build
    builder.send_signal(how)
    out, err = builder.communicate(timeout=30)
    assert builder.returncode == 130
    assert out == ""
    assert f"error: build of tiny-ngram interrupted ({how.name}); nothing is left behind" in err
    assert not (project / "engines").exists()


def test_a_closed_pipe_is_no_error(project, ngram):
    run = subprocess.run(
        f"{sys.executable} -m trt_spec schema | head -n 1", shell=True, capture_output=True, text=True, check=False
    )
    assert run.stdout == "{\n"
    assert run.stderr == ""
