"""Where a folder of a test lies: on some machines the temporary folder is no disk."""

from __future__ import annotations

from pathlib import Path

import psutil


def is_in_memory(folder: Path) -> bool:
    """Whether a file system keeps its files in memory: the kernel counts no traffic of those."""
    place = folder.resolve()
    kinds = {
        part.mountpoint: part.fstype
        for part in psutil.disk_partitions(all=True)
        if place.is_relative_to(part.mountpoint)
    }
    return kinds.get(max(kinds, key=len, default=""), "") in ("tmpfs", "ramfs")
