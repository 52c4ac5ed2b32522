"""Machines and operators at their worst: processes that die, signals under load, ports and disks that are taken.

No client waits for ever, none gets half an answer as a whole one, and what is started next works.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.triton import abuse
from tests.triton.conftest import LONG
from tests.triton.test_server import Traces, make_server
from tests.waiting import WAIT_S, until
from trt_spec.clients.triton import TritonClient
from trt_spec.errors import MachineError, OverloadedError, TrtSpecError
from trt_spec.triton.server import processes
from trt_spec.triton.server.installation import free_ports

CLI = Path(sys.executable).parent / "trt-spec"


class Served:
    """`trt-spec serve` as a user runs it: a process of its own, in a project directory."""

    def __init__(self, project: Path, built, *, openai_port: int | None = None) -> None:
        self.ports = free_ports(3)
        values = built.config.model_dump(mode="json", exclude_none=True)
        values["serve"] |= dict(zip(("http_port", "grpc_port", "metrics_port"), self.ports, strict=True))
        (project / "run.yaml").write_text(json.dumps(values))
        for name, path in (("engines", built.engine_dir), ("triton_repo", built.repository)):
            (project / name).mkdir(exist_ok=True)
            if not (project / name / built.config.name).exists():
                (project / name / built.config.name).symlink_to(path)
        self.openai_port = openai_port
        front = ["--openai-port", str(openai_port)] if openai_port else []
        self.process = subprocess.Popen(
            [CLI, "serve", "run.yaml", "--json", *front],
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=(project / "stderr").open("w"),
            text=True,
        )
        self.said = (project / "stderr").read_text
        line = self.process.stdout.readline()
        assert line, self.said()
        text = line
        while True:  # the JSON object may take several lines
            try:
                self.result = json.loads(text)
                break
            except ValueError:
                text += self.process.stdout.readline()
        # Longer than any test waits: who is told nothing must not pass for one who is told of an error.
        self.client = TritonClient(self.result["http_url"], self.result["grpc_url"], timeout_s=2 * WAIT_S)

    def end(self, number: signal.Signals | None = None, within_s: float = WAIT_S) -> int:
        """The exit code, after a signal where one is given."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(within_s)


@pytest.fixture
def serve(tmp_path, built, installation):
    """Starts `trt-spec serve`; ends what is left of it."""
    started = []

    def start(**options) -> Served:
        started.append(Served(tmp_path, built, **options))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


def in_flight(client, number=5):
    """Long requests, one in each way, once they run; what becomes of them is read from the futures."""
    pool = ThreadPoolExecutor(number)
    return [pool.submit(way, client, f"p{index}", **LONG) for index, way in enumerate(abuse.WAYS.values())]


# --- a process that dies ---


@pytest.mark.server
@pytest.mark.parametrize("model", ["tensorrt_llm", pytest.param("tensorrt_llm_unary", marks=pytest.mark.soak)])
def test_a_model_process_killed_in_mid_request_leaves_nobody_waiting(serve, model):
    served = serve(openai_port=free_ports(1)[0])
    traces = Traces()
    traces.note(served.result["pid"])
    answers = in_flight(served.client)
    by_front = ThreadPoolExecutor(1).submit(abuse.ask_front, served.openai_port, "by the front", **LONG)
    until(lambda: abuse.running(served.result["metrics_url"]) == len(answers) + 1)
    [stub] = [stub for stub in traces.stubs if stub.model == model]
    os.kill(stub.pid, signal.SIGKILL)
    for answer in answers:
        with pytest.raises(MachineError):
            answer.result(WAIT_S)
    with pytest.raises((AssertionError, OSError)):  # an event with an error, or the connection's end; no whole answer
        by_front.result(WAIT_S)
    assert served.end() == MachineError.exit_code
    assert f"the Python process of model {model} died" in served.said() or "the Triton server ended" in served.said()
    traces.assert_gone()


@pytest.mark.server
@pytest.mark.soak
def test_after_a_model_process_died_the_next_server_is_right(serve, client):
    expected = client.generate("usual", max_tokens=10, ignore_eos=True).token_ids
    served = serve()
    os.kill(processes.stubs_of(served.result["pid"])[0].pid, signal.SIGKILL)
    assert served.end() == MachineError.exit_code
    again = serve()
    assert again.client.generate("usual", max_tokens=10, ignore_eos=True).token_ids == expected
    assert again.end(signal.SIGTERM) == 0


# --- SIGTERM under load ---


@pytest.mark.server
@pytest.mark.parametrize("number", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_sigterm_under_load_finishes_what_was_accepted(serve, number):
    for _ in range(number):
        served = serve(openai_port=free_ports(1)[0])
        expected = abuse.alone(served.client)
        texts = {prompt: served.client.generate(prompt, **abuse.PLAIN).text for prompt in abuse.PROMPTS}
        results, is_over = [], threading.Event()

        def keep_asking(index, served=served, expected=expected, results=results, is_over=is_over):
            way, prompt = list(abuse.WAYS)[index % len(abuse.WAYS)], abuse.PROMPTS[index % len(abuse.PROMPTS)]
            while not is_over.is_set():
                try:
                    got = abuse.WAYS[way](served.client, prompt, **abuse.PLAIN)
                    results.append("right" if got.token_ids == expected[prompt] else f"wrong: {got.token_ids}")
                except OverloadedError:
                    results.append("overloaded")
                except MachineError as error:
                    results.append("refused" if NOT_TAKEN.search(str(error)) else f"lost: {way}: {error}")
                    return
                except TrtSpecError as error:
                    results.append(f"wrong: {way}: {type(error).__name__}: {error}")

        def keep_asking_the_front(index, port=served.openai_port, texts=texts, results=results, is_over=is_over):
            prompt = abuse.PROMPTS[index % len(abuse.PROMPTS)]
            while not is_over.is_set():
                try:
                    results.append("right" if abuse.ask_front(port, prompt) == texts[prompt] else "wrong: the front")
                except OverloadedError:
                    results.append("overloaded")
                except abuse.NotTaken:
                    results.append("refused")
                    return
                except AssertionError as error:
                    results.append(f"lost: the front: {error}")
                    return

        with ThreadPoolExecutor(20) as pool:
            clients = [pool.submit(keep_asking, index) for index in range(16)]
            clients += [pool.submit(keep_asking_the_front, index) for index in range(4)]
            until(lambda results=results: results.count("right") > 30)
            code = served.end(signal.SIGTERM)
            is_over.set()
            for one in clients:
                one.result(WAIT_S)
        assert code == 0, served.said()
        assert {result for result in results if result not in ("right", "overloaded", "refused")} == set()
        assert results.count("right") > 30


# What a request is told that came too late: it was not taken, or the connection was closed before it was.
NOT_TAKEN = re.compile(
    r"cannot be reached|[Ss]erver is stopping|stopped accepting|draining|not ready|no available versions"
)


# --- ports ---


@pytest.mark.server
def test_a_second_server_on_the_same_port_is_refused_and_the_first_answers(built, server, client, installation):
    expected = client.generate("usual", max_tokens=5, ignore_eos=True).token_ids
    for key in ("http_port", "grpc_port", "metrics_port"):
        second = make_server(built.repository, installation=installation, **{key: getattr(server, key)})
        with pytest.raises(MachineError, match="is in use") as caught:
            second.start()
        assert caught.value.where == f"serve.{key}"
    assert client.generate("usual", max_tokens=5, ignore_eos=True).token_ids == expected
    server.check()


@pytest.mark.server
def test_of_two_servers_that_start_at_once_on_one_port_one_serves(built, installation, tmp_path):
    """Both find the ports free; whoever comes second has to notice that it is not its own server that answers."""
    ports = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
    servers = [
        make_server(built.repository, installation=installation, log_path=tmp_path / f"{number}.log", **ports)
        for number in range(2)
    ]

    def start(one):
        try:
            one.start()
        except MachineError as error:
            return error
        return one

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(start, servers))
    try:
        winners = [one for one in found if not isinstance(one, MachineError)]
        assert len(winners) == 1, [str(one) for one in found]
        [winner] = winners
        winner.check()
        with TritonClient(winner.http_url, winner.grpc_url, timeout_s=WAIT_S) as other:
            assert other.generate("usual", max_tokens=5, ignore_eos=True).completion.num_output_tokens == 5
            assert other.infer("usual", max_tokens=5, ignore_eos=True).completion.num_output_tokens == 5
    finally:
        for one in servers:
            one.stop()


def test_an_openai_port_in_use_is_refused_before_anything_starts(tmp_path, built):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (tmp_path / "run.yaml").write_text(json.dumps(built.config.model_dump(mode="json", exclude_none=True)))
        command = [CLI, "serve", "run.yaml", "--openai-port", str(port)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == MachineError.exit_code
    assert f"port {port} is in use" in done.stderr
    assert "--openai-port" in done.stderr


# --- disks ---


def emit(project: Path, **limits) -> subprocess.CompletedProcess:
    """`trt-spec emit` in a process whose files may only become so large."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["largest_file"],) * 2)

    preexec = limit if limits else None
    command = [CLI, "emit", "run.yaml", "--set", "serve.model_name=other"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, preexec_fn=preexec)


@pytest.fixture
def project(tmp_path, built):
    """A project directory with the tiny engine and its repository, copied."""
    (tmp_path / "run.yaml").write_text(json.dumps(built.config.model_dump(mode="json", exclude_none=True)))
    shutil.copytree(built.engine_dir, tmp_path / "engines" / built.config.name)
    shutil.copytree(built.repository, tmp_path / "triton_repo" / built.config.name)
    return tmp_path


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_disk_that_cannot_take_the_repository_leaves_the_old_one(project):
    before = contents(project / "triton_repo")
    done = emit(project, largest_file=1000)
    assert done.returncode == MachineError.exit_code
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(project / "triton_repo") == before
    assert emit(project).returncode == 0
    assert contents(project / "triton_repo") != before


def test_a_file_in_the_way_of_the_repositories_is_one_clear_error(project):
    shutil.rmtree(project / "triton_repo")
    (project / "triton_repo").write_text("in the way")
    done = emit(project)
    assert done.returncode == MachineError.exit_code
    assert "triton_repo" in done.stderr
    assert "Traceback" not in done.stderr
    assert (project / "triton_repo").read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_one_clear_error(project):
    before = contents(project / "triton_repo")
    (project / "triton_repo").chmod(0o555)
    prefix = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    try:
        command = [*prefix, CLI, "emit", "run.yaml", "--set", "serve.model_name=other"]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    finally:
        (project / "triton_repo").chmod(0o755)
    assert done.returncode == MachineError.exit_code, done.stderr
    assert "Permission denied" in done.stderr
    assert contents(project / "triton_repo") == before
