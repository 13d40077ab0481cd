"""Syntax trees of the user's sources."""

import ast
import gc
import threading

import pytest

from cotune.script.parsing import parsed


@pytest.mark.parametrize("source", ["!ls", "x = (", "\0", b"\xff", None, "(" * 10_000])
def test_what_is_no_python_has_no_tree(source):
    assert parsed(source) is None


@pytest.mark.filterwarnings("error")
def test_what_python_warns_of_when_it_compiles_a_source_is_not_said_twice():
    assert isinstance(parsed("x = 1 is 1\ny = '\\d'"), ast.Module)


def test_two_threads_may_parse_at_once():
    source = "x = [" + ", ".join(f"f({n}, (a.b[{n}] + {n}) * 2)" for n in range(3_000)) + "]"
    found = []
    switching = lambda *_: None  # noqa: E731 - runs Python code in the middle of the parser, where threads may switch
    gc.callbacks.append(switching)
    try:
        threads = [threading.Thread(target=lambda: found.append(parsed(source))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.callbacks.remove(switching)
    assert [type(tree) for tree in found] == [ast.Module] * 4
