"""What prints to standard output or error does so in another process, too."""

import contextlib
import io
import pickle
import sys
import threading

import pytest

from cotune.script import by_value


def travelled(value):
    return pickle.loads(by_value.dumps(value))


class Unfit(io.TextIOBase):
    """As a notebook's, or pytest's."""

    def __init__(self):
        self.guard = threading.Lock()


def test_a_standard_stream_of_any_kind_is_that_of_the_other_process():
    with contextlib.redirect_stderr(Unfit()), contextlib.redirect_stdout(Unfit()):
        pickled = by_value.dumps({"out": sys.stdout, "error": sys.stderr})
    assert pickle.loads(pickled) == {"out": sys.stdout, "error": sys.stderr}


def test_a_buffer_for_what_is_printed_travels_with_its_text():
    with contextlib.redirect_stdout(io.StringIO()) as buffer:
        print("before")
        assert travelled(buffer).getvalue() == "before\n"


class Core:
    def __init__(self, *handlers):
        self.handlers = dict(enumerate(handlers))


class Handler:
    def __init__(self, sink, *, queue=None):
        self._sink, self._enqueue, self._queue = sink, queue is not None, queue


class StreamSink:
    def __init__(self, stream):
        self._stream = stream


class FileSink(StreamSink):
    pass


class CallableSink:
    def __init__(self, function):
        self._function = function


@pytest.fixture
def loguru(monkeypatch):
    monkeypatch.setattr(Core, "__module__", "loguru._logger")
    for name in ("loguru", "loguru._logger"):
        monkeypatch.setitem(sys.modules, name, sys.modules[__name__])


@pytest.mark.usefixtures("loguru")
def test_the_sinks_of_loguru_that_print_travel(tmp_path):
    with open(tmp_path / "log", "w") as file:
        sinks = FileSink(file), StreamSink(sys.stderr), StreamSink(file), CallableSink(print)
        core = Core(*map(Handler, sinks), Handler(StreamSink(sys.stdout), queue=threading.Lock()))
        there = travelled(core).handlers
        assert sorted(core.handlers) == [0, 1, 2, 3, 4]
    assert sorted(there) == [1, 3, 4]
    assert there[1]._sink._stream is sys.stderr
    assert there[3]._sink._function is print
    assert there[4]._sink._stream is sys.stdout
    assert (there[4]._enqueue, there[4]._queue) == (False, None)
    assert core.handlers[4]._enqueue


@pytest.mark.usefixtures("loguru")
def test_a_core_that_loguru_has_made_otherwise_travels_as_it_is():
    assert travelled(Core("something")).handlers == {0: "something"}
