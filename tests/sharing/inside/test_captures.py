"""Captures, on a class with the methods of torch's CUDAGraph."""

import threading

import pytest

from cotune.sharing.inside.captures import Captures


@pytest.fixture
def kind():
    class Graph:
        def capture_begin(self, pool=None):
            if pool == "refused":
                raise RuntimeError("CUDA error: operation not permitted")

        def capture_end(self):
            if pool_is_broken:
                raise RuntimeError("CUDA error: capture was invalidated")

    pool_is_broken = []
    Graph.broken = pool_is_broken
    return Graph


def test_captures_are_counted(kind):
    captures = Captures(kind)
    assert not captures.has_failed
    first, second = kind(), kind()
    first.capture_begin(pool="a")
    second.capture_begin()
    first.capture_end()
    assert captures
    second.capture_end()
    assert not captures
    assert not captures.has_failed


def test_one_that_is_refused_or_ends_with_an_error_is_over(kind):
    captures = Captures(kind)
    with pytest.raises(RuntimeError, match="not permitted"):
        kind().capture_begin(pool="refused")
    assert not captures
    assert captures.has_failed
    graph = kind()
    graph.capture_begin()
    kind.broken.append(True)
    captures.has_failed = False
    with pytest.raises(RuntimeError, match="invalidated"):
        graph.capture_end()
    assert not captures
    assert captures.has_failed


def test_a_capture_waits_while_they_are_held_off(kind):
    captures = Captures(kind)
    about_to, begun = threading.Event(), threading.Event()

    def capture():
        about_to.set()
        kind().capture_begin()
        begun.set()

    thread = threading.Thread(target=capture)
    with captures.held_off() as may:
        assert may
        thread.start()
        assert about_to.wait(10)
        assert not begun.wait(0.05)
    thread.join(10)
    assert begun.is_set()
    with captures.held_off() as may:
        assert not may
