"""`trt-spec verify --url` on a real server: ids in and out over HTTP, speculation by the flag of each request."""

from __future__ import annotations

import json

import pytest

from trt_spec.cli.app import main
from trt_spec.config import loader

pytestmark = pytest.mark.server
SAMPLED = ("--temperature", "0.15", "--max-tokens", "200", "--json")  # cold enough to repeat itself, so that it drafts


def verify(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(["verify", *map(str, arguments), *SAMPLED])
    return caught.value.code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("reference", ["native", "transformers"])
def test_a_served_model_gets_its_certificate(built, server, tmp_path, monkeypatch, capsys, reference):
    monkeypatch.chdir(built.engine_dir.parent.parent)
    path = tmp_path / "tiny.yaml"
    path.write_text(loader.dump(built.config), encoding="utf-8")
    report = ("--report", tmp_path / "report", "--set", "equivalence.tau=0.15", "--set", "equivalence.alpha=0.001")
    code, found = verify(capsys, path, "--url", server.http_url, "--reference", reference, *report)
    assert (code, found["verdict"]) == (0, "equivalent")
    assert found["server"] == server.http_url
    profiles = {name: arm["profile"] for name, arm in found["arms"].items()}
    assert profiles["speculation"]["num_drafts"] > 0
    assert profiles["plain"]["num_drafts"] == 0
    assert found["greedy"]["is_right"]
