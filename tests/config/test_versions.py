"""Versions order as PEP 440 says, fall into lines, and have the container that the compatibility matrix names."""

from __future__ import annotations

import pytest

from trt_spec.config import versions
from trt_spec.config.versions import parse
from trt_spec.errors import ConfigError


def test_release_candidates_are_ordered_by_number():
    names = ["0.19.0", "1.0.0rc3", "1.0.0", "1.2.0rc8", "1.2.0", "1.2.1", "1.3.0rc9", "1.3.0rc20", "1.3.0rc21", "1.3.0"]
    assert sorted(reversed(names), key=parse) == names
    assert parse("1.2") == parse("1.2.0")


@pytest.mark.parametrize(
    ("text", "line", "has_engine", "has_llmapi"),
    [
        ("0.18.2", "0.18", False, False),
        ("0.19.0", "0.19", True, False),
        ("0.21.0", "0.21", True, False),
        ("1.0.0rc3", "1.0", True, False),
        ("1.0.0", "1.0", True, True),
        ("1.2.0rc8", "1.2", True, True),
        ("1.3.0rc9", "1.3-early", True, True),
        ("1.3.0rc20", "1.3-early", True, True),
        ("1.3.0rc21", "1.3-late", False, True),
        ("1.3.0", "1.3-late", False, True),
        ("1.4.0rc4", "1.4", False, True),
        ("1.5.0rc1", "1.5", False, False),
    ],
)
def test_lines_and_backends(text, line, has_engine, has_llmapi):
    version = parse(text)
    assert versions.line_of(version) == line
    assert versions.has_engine_path(version) == has_engine
    assert versions.has_llmapi(version) == has_llmapi


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("1.0.0", "nvcr.io/nvidia/tritonserver:25.10-trtllm-python-py3"),
        ("1.1.0", "nvcr.io/nvidia/tritonserver:26.02-trtllm-python-py3"),
        ("1.2.0rc8", "nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3"),
        ("1.2.1", "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"),
        ("1.3.0rc20", "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc20"),
    ],
)
def test_containers(text, image):
    container = versions.container_of(parse(text))
    assert container.image == image
    assert container.has_tritonserver == ("tritonserver" in image)


def test_golden_versions_cover_what_is_asked_for():
    assert len({versions.line_of(parse(text)) for text in versions.GOLDEN_VERSIONS}) == len(versions.GOLDEN_VERSIONS)


def test_what_is_no_version_is_refused():
    with pytest.raises(ConfigError):
        parse("latest")
