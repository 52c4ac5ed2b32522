"""Where a result came from."""

from __future__ import annotations

import json
import subprocess

import pytest

from trt_spec import provenance
from trt_spec.config import loader


def test_what_is_collected_is_json():
    config = loader.compose("m", "ngram")
    collected = json.loads(json.dumps(provenance.collect(config).as_dict()))
    assert collected["versions"]["torch"].startswith("2.")
    assert collected["hardware"]["num_cores"] >= 1
    assert collected["config_digest"] == provenance.config_digest(loader.loads(loader.dump(config)))
    assert "config_digest" not in provenance.collect().as_dict()


def test_different_configs_have_different_digests():
    digests = {provenance.config_digest(loader.compose("m", method)) for method in ("none", "ngram")}
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("llama-3.3-70b-draft-8b", "1d3170e517c9a3caf613b0f1791645e5c82cb31ae2ff4582979dc930c1ee486d"),
        ("qwen3-32b-ngram", "0b3d46a0b7435c658c9648689140922c77d834c318b784a9167abc5efc67d7c1"),
        ("smollm2-135m-eagle3", "be0f7b00745034d50f4f37e947aa536c9b8513d3e859266b1f1a557fb39e7ce3"),
        ("smollm2-135m-none", "a83325554837cbb24f9ade45e511f700a4ea65123a2bf02f183453805257ff46"),
        ("vicuna-7b-medusa", "4e73a90ce055769ca0927117275709ab24d82b839228e48f12c633dcd27d8752"),
    ],
)
def test_the_digest_of_a_config_stays(name, digest):
    """Evidence and reports name it; a key that is moved or gets another default would part them from their run."""
    assert provenance.config_digest(loader.load(name)) == digest


def test_the_commit_of_a_checkout(tmp_path):
    assert provenance.git_commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert provenance.git_commit(tmp_path) is None
    (tmp_path / "a").write_text("1", encoding="utf-8")
    subprocess.run([*git, "add", "a"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "a"], check=True)
    found = provenance.git_commit(tmp_path)
    assert len(found.commit) == 40
    assert found.is_dirty is False
    (tmp_path / "untracked").write_text("1", encoding="utf-8")
    assert provenance.git_commit(tmp_path).is_dirty is False
    (tmp_path / "a").write_text("2", encoding="utf-8")
    assert provenance.git_commit(tmp_path).is_dirty is True


def test_the_digest_of_the_sources_sees_every_change(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "one.py").write_text("a = 1\n", encoding="utf-8")
    found = [provenance.source_digest(["room"], tmp_path)]
    (tmp_path / "room" / "one.py").write_text("a = 2\n", encoding="utf-8")
    found.append(provenance.source_digest(["room"], tmp_path))
    (tmp_path / "room" / "one.py").rename(tmp_path / "room" / "two.py")
    found.append(provenance.source_digest(["room"], tmp_path))
    assert len(set(found)) == 3
    (tmp_path / "room" / "notes.txt").write_text("no code", encoding="utf-8")
    (tmp_path / "other.py").write_text("a = 1\n", encoding="utf-8")
    assert provenance.source_digest(["room"], tmp_path) == found[-1]
