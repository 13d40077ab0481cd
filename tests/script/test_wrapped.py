"""Functions that a library has wrapped reach another process with their wrapper."""

import contextlib
import functools
import os
import pickle
import subprocess
import sys
import threading
from types import FunctionType, ModuleType

import pytest

from cotune.script import by_value


def travelled(value):
    return pickle.loads(by_value.dumps(value))


def test_a_function_that_pydantic_validates_travels_without_the_variables_around_it():
    pydantic = pytest.importorskip("pydantic")
    around = threading.Lock()

    @pydantic.validate_call(validate_return=True)
    def double(number: int) -> int:
        return 2 * number

    there = travelled(double)
    assert there("4") == 8
    with pytest.raises(pydantic.ValidationError):
        there("four")
    assert not around.locked()


class Wrapper:
    """As wrapt's: it says that it is what it wraps."""

    def __init__(self, wrapped, wrapper, enabled=None):
        self.__wrapped__, self._self_wrapper, self._self_enabled = wrapped, wrapper, enabled
        self.__module__, self.__qualname__ = wrapped.__module__, wrapped.__qualname__

    @property
    def __class__(self):
        return type(self.__wrapped__)

    def __call__(self, *args):
        return self._self_wrapper(self.__wrapped__, None, args, {})

    def __reduce_ex__(self, protocol):
        raise NotImplementedError("object proxy must define __reduce__()")


def plain(value):
    return value


wrapped_here = Wrapper(plain, lambda wrapped, instance, args, kwargs: -wrapped(*args))
wrapped_here.__qualname__ = "wrapped_here"


def test_what_is_wrapped_by_wrapt_travels_with_its_wrapper(monkeypatch):
    fake = ModuleType("wrapt")
    fake.FunctionWrapper = Wrapper
    monkeypatch.setitem(sys.modules, "wrapt", fake)
    assert isinstance(wrapped_here, FunctionType)
    assert travelled(wrapped_here) is wrapped_here, "another process imports it"

    there = travelled(Wrapper(lambda value: value, lambda wrapped, instance, args, kwargs: -wrapped(*args)))
    assert (type(there), there(3)) == (Wrapper, -3)
    fake.FunctionWrapper = object
    with pytest.raises(NotImplementedError, match="object proxy"):
        by_value.dumps(there)


class Named:
    """As cachetools': it is pickled by its name."""

    def __init__(self, function):
        self.cache = {}
        functools.update_wrapper(self, function)

    def __call__(self, value):
        return self.cache.setdefault(value, self.__wrapped__(value))

    def __reduce__(self):
        return self.__qualname__


def test_a_wrapper_that_would_be_pickled_by_a_name_that_is_not_found_travels_with_what_it_holds():
    double = Named(lambda value: 2 * value)
    assert double(3) == 6
    there = travelled(double)
    assert (type(there), dict(there.cache), there(4)) == (Named, {3: 6}, 8)


def test_a_curried_function_of_the_script_travels_as_one_with_its_arguments(monkeypatch):
    class Curry:
        def __init__(self, func, *args, **keywords):
            self.func, self.args, self.keywords = func, args, keywords
            self._made_of = threading.Lock()

        def __call__(self, *args, **keywords):
            return self.func(*self.args, *args, **self.keywords, **keywords)

        def __reduce__(self):
            raise NotImplementedError("by its name")

    Curry.__module__, Curry.__name__, Curry.__qualname__ = "toolz.functoolz", "curry", "curry"
    fake = ModuleType("toolz.functoolz")
    fake.curry = Curry
    monkeypatch.setitem(sys.modules, "toolz", ModuleType("toolz"))
    monkeypatch.setitem(sys.modules, "toolz.functoolz", fake)
    names = {"__name__": "__main__", "curry": Curry}
    exec("@curry\ndef add(*args, by=1): return add if not args else sum(args) * by", names)
    of_script = Curry(names["add"].func, 2, by=3)
    of_script.note = "kept"
    there = travelled(of_script)
    assert (type(there), there(5), there.note) == (Curry, 21, "kept")
    assert type(there.func()) is Curry
    with pytest.raises(NotImplementedError, match="by its name"):
        by_value.dumps(Curry(plain, 2))


def test_a_function_decorated_with_a_context_manager_travels_and_one_that_is_entered_does_not():
    entered = []

    @contextlib.contextmanager
    def noted(name, *, by):
        entered.append(name * by)
        yield entered

    @noted("a", by=2)
    def count():
        return len(entered), entered[-1]

    there = travelled(count)
    assert (there(), there()) == ((1, "aa"), (2, "aa"))
    assert not entered, "which is the script's own"
    with travelled(noted("b", by=1)) as copied:
        assert copied == ["b"]
    block = noted("c", by=1)
    with block, pytest.raises(TypeError, match="generator"):
        by_value.dumps(block)


@contextlib.contextmanager
def counted():
    seen.append(1)
    yield


seen = []


def test_a_context_manager_of_a_module_uses_the_variables_of_that_module():
    @counted()
    def once():
        pass

    travelled(once)()
    assert seen == [1]
    seen.clear()


LOOKED_UP = """
class Method:
    def __init__(self, function):
        self.__wrapped__, self.of_class = function, None

    def __set_name__(self, owner, name):
        self.owner, self.name = owner, name

    def __get__(self, obj, objtype=None):
        if obj is None:
            self.of_class = self.of_class or OfClass(self)
            return self.of_class
        return lambda *args: self.__wrapped__(obj, *args)

    def __reduce__(self):
        return found, (self.owner, self.name)

class OfClass:
    def __init__(self, method):
        self.method = method

    def __reduce__(self):
        return self.method.__get__, (None,)

def found(owner, name):
    return vars(owner)[name]
"""


@pytest.mark.parametrize("sent", ["Script, method", "method, Script"])
def test_a_descriptor_that_is_pickled_as_what_a_class_has_travels_with_a_class_of_the_script(tmp_path, sent):
    (tmp_path / "looked_up.py").write_text(LOOKED_UP)
    dump = (
        "import looked_up, sys; from cotune.script import by_value\n"
        "class Script:\n"
        "    @looked_up.Method\n"
        "    def double(self, value): return 2 * value\n"
        "assert Script.double is Script.double\n"
        "method = vars(Script)['double']\n"
        f"sys.stdout.buffer.write(by_value.dumps(({sent})))"
    )
    load = (
        "import pickle, sys\n"
        f"{sent} = pickle.load(sys.stdin.buffer)\n"
        "print(vars(Script)['double'] is method, Script().double(4), type(Script.double).__name__)"
    )
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    blob = subprocess.run([sys.executable, "-c", dump], env=paths, capture_output=True, check=True, timeout=60).stdout
    done = subprocess.run([sys.executable, "-c", load], env=paths, input=blob, capture_output=True, timeout=60)
    assert done.stdout.decode().split() == ["True", "8", "OfClass"], done.stderr.decode()


class Constant:
    """It is what its class has under its name, and nothing else."""

    def __set_name__(self, owner, name):
        self.owner, self.name = owner, name

    def __reduce__(self):
        return getattr, (self.owner, self.name)


def test_a_constant_that_is_pickled_by_its_name_in_a_class_of_the_script_travels():
    class Script:
        one = Constant()

    there = travelled((Script, Script.one))[1]
    assert (type(there), there.owner, there.name) == (Constant, Script, "one")
