"""The end of a log, for error messages."""

from __future__ import annotations

import os
from pathlib import Path

# Bytes read: a library may have filled a log with gigabytes.
MOST = 1 << 16


def last_lines(log: Path) -> list[str]:
    """The last lines of a log; none if there is no log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST))
            return file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return []
