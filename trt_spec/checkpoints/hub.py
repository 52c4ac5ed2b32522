"""A checkpoint named by its Hugging Face hub id, downloaded once into checkpoints/<owner>--<model>."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from trt_spec.atomic import atomic_directory
from trt_spec.errors import MachineError

# One safetensors copy of the weights and what belongs to it; many repositories keep second and third copies.
_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "LICENSE*", "NOTICE*")
_IGNORED = ("*/*", "consolidated*")


def is_hub_id(name: str) -> bool:
    """Whether a name reads as <owner>/<model> and not as a path here.

    checkpoints/x is a path, also before either is there: `trt-spec train --draft checkpoints/x` makes both.
    """
    is_path = Path(name).exists() or Path(name).parent.is_dir() or Path(name).parent == Path("checkpoints")
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None and not is_path


def local_dir(hub_id: str, root: str | Path = "checkpoints") -> Path:
    """Where a hub model is kept: <owner>--<model> under `root`, so that two owners' models stay apart."""
    return Path(root) / hub_id.replace("/", "--")


def download(hub_id: str, root: str | Path = "checkpoints") -> Path:
    """The hub's model as a directory under `root`, whole or not at all; reused where it is there.

    Raises:
        MachineError: the hub cannot be reached, or has no such model.
    """
    directory = local_dir(hub_id, root)
    if directory.is_dir():
        return directory
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    # The client lets out its HTTP library's errors, of which its own is one; it has had three such libraries.
    failures = (OSError, RuntimeError, ValueError, *HfHubHTTPError.__bases__)
    with atomic_directory(directory) as staging:
        try:
            snapshot_download(hub_id, local_dir=staging, allow_patterns=list(_PATTERNS), ignore_patterns=list(_IGNORED))
        except failures as error:
            raise MachineError(
                f"{hub_id} cannot be downloaded from the Hugging Face hub",
                got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                remedy=f"check the id and the network, or download it yourself and give the directory: {directory}",
            ) from None
        shutil.rmtree(staging / ".cache", ignore_errors=True)  # the client's book-keeping of partial downloads
    return directory
