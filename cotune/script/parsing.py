"""Syntax trees of the user's sources."""

from __future__ import annotations

import ast
import threading
import warnings

# Python 3.11's parser fails at times when two threads are in it (SystemError), and two sweeps may begin at once.
_one = threading.Lock()


def parsed(source: str | bytes) -> ast.Module | None:
    """The syntax tree of a source; None if it is not Python, as a notebook's cell may be."""
    with _one, warnings.catch_warnings():
        # Of the source itself, which Python gives once it compiles the file.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, TypeError, SystemError):
            return None
