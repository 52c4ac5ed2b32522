"""The manifest survives a round trip, its digest moves with every input, and recorded digests are reused."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace

import pytest

from trt_spec.engines import manifest as manifests
from trt_spec.engines.manifest import Check, CheckpointRecord, FileRecord, Limits, Manifest
from trt_spec.errors import CheckpointError

RECORD = FileRecord("ab" * 32, 3, 1)


def example(**changes) -> Manifest:
    checkpoint = CheckpointRecord("ckpt", "target", "none", "llama", 2, 10, {"float32": 2}, {"config.json": RECORD})
    base = Manifest(
        run="tiny",
        build_target="torch",
        created="2026-01-01T00:00:00+00:00",
        digest="00",
        engine=Limits("ngram", "rejection", 4, 8, 128, "float32", 5),
        config={"name": "tiny"},
        inputs={"target": checkpoint},
        outputs={"target/config.json": RECORD},
        commands=("trt-spec build tiny",),
        git=None,
        versions={"torch": "2.13.0"},
        machine={"cpus": 2},
        verified=(Check("loads", "yes", {"tokens": 3}),),
        not_verified=("speed",),
    )
    return replace(base, **changes)


def test_round_trip(tmp_path):
    manifests.write(tmp_path, example())
    assert manifests.read(tmp_path) == example()


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "no engine here"), ("{", "cannot be read"), ('{"format": 0}', "another format"), ("[]", "another format")],
)
def test_what_is_no_manifest_is_refused_with_the_next_step(tmp_path, text, says):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=says) as caught:
        manifests.read(tmp_path)
    assert "trt-spec build" in str(caught.value)


def test_a_manifest_with_a_missing_field_is_damaged(tmp_path):
    manifests.write(tmp_path, example())
    path = tmp_path / "manifest.json"
    data = json.loads(path.read_text())
    del data["outputs"]
    path.write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="damaged"):
        manifests.read(tmp_path)


def test_digests_are_those_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    record = manifests.digest_files(tmp_path, ["a"])["a"]
    assert record.sha256 == hashlib.sha256(b"abc").hexdigest()
    assert record.size == 3


def test_a_recorded_digest_is_taken_only_while_size_and_time_hold(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    known = {"a": replace(manifests.digest_files(tmp_path, ["a"])["a"], sha256="recorded")}
    assert manifests.digest_files(tmp_path, ["a"], known)["a"].sha256 == "recorded"
    path.write_bytes(b"abd")
    os.utime(path, ns=(known["a"].mtime_ns + 1,) * 2)
    assert manifests.digest_files(tmp_path, ["a"], known)["a"].sha256 == hashlib.sha256(b"abd").hexdigest()


def test_a_missing_input_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="gone"):
        manifests.digest_files(tmp_path, ["gone"])


def test_the_build_digest_moves_with_config_and_bytes_but_not_with_times():
    inputs = {"target": {"a": RECORD}}
    base = manifests.build_digest({"name": "x"}, inputs)
    assert base == manifests.build_digest({"name": "x"}, {"target": {"a": replace(RECORD, mtime_ns=9)}})
    others = [
        manifests.build_digest({"name": "y"}, inputs),
        manifests.build_digest({"name": "x"}, {"target": {"a": replace(RECORD, sha256="cd" * 32)}}),
        manifests.build_digest({"name": "x"}, {"target": {"b": RECORD}}),
        manifests.build_digest({"name": "x"}, {**inputs, "draft": {"a": RECORD}}),
    ]
    assert len({base, *others}) == 5


def test_is_whole_sees_missing_and_changed_outputs(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    manifest = example(outputs=manifests.digest_files(tmp_path, ["a"]))
    assert manifests.is_whole(tmp_path, manifest)
    os.utime(tmp_path / "a")  # copied elsewhere: other time, equal bytes
    assert manifests.is_whole(tmp_path, manifest)
    (tmp_path / "a").write_bytes(b"abd")
    assert not manifests.is_whole(tmp_path, manifest)
    (tmp_path / "a").unlink()
    assert not manifests.is_whole(tmp_path, manifest)
