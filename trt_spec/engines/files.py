"""Files of an engine directory: whole by itself, without copying what can be linked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link_or_copy(source: str | Path, link: str | Path) -> None:
    """A second name for a file, so that the engine is whole by itself; a copy on another file system.

    Symbolic links (as the hub's cache has them) are followed first: what they lead to may be outside of a container.
    """
    source = Path(source).resolve()
    try:
        os.link(source, link)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, link)
