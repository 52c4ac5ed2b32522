"""Versions of TensorRT-LLM: how they order, what exists in which, and the container that has it. Data; torch-free.

The facts are NVIDIA's release notes, documentation and compatibility matrix; nothing of this was executed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from trt_spec.errors import ConfigError

FIRST_ENGINE_VERSION = Version("0.19.0")  # the oldest whose flags are known here
LAST_ENGINE_VERSION = Version("1.3.0rc20")  # of 30 June 2026; trtllm-build and the converters are gone after it
FIRST_REMOVED_VERSION = Version("1.3.0rc21")
FIRST_LLMAPI_VERSION = Version("1.0.0")  # the PyTorch backend became the default, and the Triton model rests on it
NEWEST_KNOWN_VERSION = Version("1.4.0rc4")  # newest documentation that was read
FIRST_UNKNOWN_VERSION = Version("1.5.0.dev0")

# The newest stable release, which is also what the newest Triton container with both backends has.
DEFAULT_VERSION = {"tensorrt": "1.2.1", "llmapi": "1.2.1"}

# Versions that plans and repositories are pinned for by golden files, one or more for each line of `line_of`.
GOLDEN_VERSIONS = ("0.19.0", "0.21.0", "1.0.0", "1.1.0", "1.2.0", "1.3.0rc20", "1.3.0rc29", "1.4.0rc4")


@dataclass(frozen=True)
class Container:
    """An NGC image and where it keeps what a build needs.

    Attributes:
        image: name and tag.
        examples_dir: the folder of the converter scripts of TensorRT-LLM.
        has_tritonserver: whether the image can also serve what was built in it.
    """

    image: str
    examples_dir: str
    has_tritonserver: bool


# From the compatibility matrix of Triton: the newest image that has exactly this version.
_TRITON_TAGS = {
    "0.19.0": "25.05",
    "0.20.0": "25.07",
    "0.21.0": "25.08",
    "1.0.0": "25.10",
    "1.1.0": "26.02",
    "1.2.0rc8": "26.03",
    "1.2.1": "26.07",
}


def parse(text: str) -> Version:
    """A version, ordered as PEP 440 orders it: 1.3.0rc9 < 1.3.0rc20 < 1.3.0, and 1.2 == 1.2.0.

    Raises:
        ConfigError: not a version.
    """
    try:
        return Version(text)
    except InvalidVersion:
        raise ConfigError(
            "this is no version of TensorRT-LLM",
            where="build.tensorrt_llm_version",
            got=text,
            expected="a release such as 1.2.1 or 1.3.0rc20",
            remedy="see https://github.com/NVIDIA/TensorRT-LLM/releases",
        ) from None


def has_engine_path(version: Version) -> bool:
    """Whether `trtllm-build`, the converters and Triton's C++ backend are in a version, and known here."""
    return FIRST_ENGINE_VERSION <= version < FIRST_REMOVED_VERSION


def has_llmapi(version: Version) -> bool:
    """Whether the `llmapi` target can be written for a version: PyTorch backend, fields known here."""
    return FIRST_LLMAPI_VERSION <= version < FIRST_UNKNOWN_VERSION


def line_of(version: Version | str) -> str:
    """The stretch of versions with the same flags and fields.

    One of 0.19, 0.20, 0.21, 1.0, 1.1, 1.2, 1.3-early (up to rc20), 1.3-late (rc21 and on) and 1.4. A release candidate
    belongs to the line of its release.
    """
    version = parse(str(version))
    line = f"{version.major}.{version.minor}"
    if line != "1.3":
        return line
    return "1.3-early" if version < FIRST_REMOVED_VERSION else "1.3-late"


def container_of(version: Version | str) -> Container:
    """The image for a version: Triton's own where one has exactly it, else the release image of TensorRT-LLM."""
    version = parse(str(version))
    for release, tag in _TRITON_TAGS.items():
        if Version(release) == version:
            return Container(f"nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3", "/app/examples", True)
    return Container(f"nvcr.io/nvidia/tensorrt-llm/release:{version}", "/app/tensorrt_llm/examples", False)
