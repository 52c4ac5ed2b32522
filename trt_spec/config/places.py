"""Where run configs and checkpoints are looked up by name. Imports nothing heavy."""

from __future__ import annotations

import re
from pathlib import Path


def config_dirs() -> list[Path]:
    """Where runs are looked up by name: ./configs, then the configs/ of this checkout or installation."""
    here = Path(__file__).resolve()
    candidates = [Path("configs"), here.parents[2] / "configs", here.parents[1] / "configs"]
    seen: dict[Path, Path] = {}
    for path in candidates:
        if path.is_dir():
            seen.setdefault(path.resolve(), path)
    return list(seen.values())


def run_names() -> list[str]:
    """Names of all runs in configs/, sorted."""
    return sorted({path.stem for directory in config_dirs() for path in directory.glob("*.y*ml")})


def checkpoint_path(name: str) -> str:
    """A path as written where it exists; else checkpoints/<name> for a bare name; else as written."""
    bare = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None
    return f"checkpoints/{name}" if bare and not Path(name).exists() else name
