"""Pickles what other processes cannot import by value: cloudpickle, with further rules.

cloudpickle makes a class once per process. What is loaded later finds that class and sets its attributes again: in the
driver to copies from a lane, in a lane to what they were when the trial began. Here a class stays as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import enum
import functools
import importlib
import inspect
import io
import random
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from cotune.script import annotated, identities, pytrees, streams, wrapped
from cotune.script.class_hooks import above_superfluous, is_found_by_name, without_superfluous_hooks
from cotune.script.installed import is_unfinished
from cotune.used_code import codes

# The place of the file's name among the arguments of a code object.
_FILE = 10
# Classes that have all their attributes in this process.
_complete: weakref.WeakSet[type] = weakref.WeakSet()
_loading = threading.local()
_NAMED = (typing.NewType, typing.ParamSpec, typing.TypeVarTuple)
_SCALARS = (str, bytes, bool, int, float, type(None))
_SENTINELS = {id(getattr(dataclasses, name)): name for name in ("MISSING", "KW_ONLY")}


def dumps(value: Any) -> bytes:
    """Pickles a value; what other processes cannot import is pickled by value."""
    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


def forget_classes() -> None:
    """Has all classes set anew when they are loaded next, for a trial that begins."""
    _complete.clear()


def is_complete(cls: Any) -> bool:
    """Whether a class has been loaded, or pickled, since `forget_classes`."""
    return cls in _complete


@contextlib.contextmanager
def functions_of_script() -> Iterator[list[FunctionType]]:
    """Collects the functions of the script that this thread loads within the block."""
    _loading.functions = []
    try:
        yield _loading.functions
    finally:
        del _loading.functions


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle pickler with rules for more kinds of objects (`_RULES`).

    Functions share the variables that they share (`nonlocal`), and know their file, by which tracebacks and
    `inspect.getsource` find the source: cloudpickle 3.1.3 leaves it out. One that a module's decorator has made of one
    of the script uses the variables of that module, not a copy of them. A function has what it names in the bodies of
    its classes. Nested classes know which class they are in. Enums keep aliases, named combinations, members that are
    functions, and attributes that `__init__` or `__new__` gave members. Identities stay (`identities`).

    Attributes:
        cells: By id, the variables that functions pickled so far share with others, each with what stands for it.
        classes: Those pickled by value so far.
    """

    def __init__(self, file: typing.IO[bytes]) -> None:
        super().__init__(file)
        self.cells: dict[int, tuple[CellType, _Cell]] = {}
        self.classes: list[type] = []
        self._singles = identities.singles()

    def reducer_override(self, obj: Any) -> Any:
        for reduced in _RULES:
            if (found := reduced(obj)) is not NotImplemented:
                return found
        if (found := wrapped.looked_up(obj, self.classes)) is not NotImplemented:
            return found
        if type(obj) is CodeType:
            make, args = self.dispatch_table[CodeType](obj)
            return make, (*args[:_FILE], obj.co_filename, *args[_FILE + 1 :])
        is_by_value = isinstance(obj, FunctionType) and not is_found_by_name(obj)
        found = super().reducer_override(annotated.readable(obj) if is_by_value else obj)
        if found is NotImplemented and type(obj) not in self.dispatch_table:
            return identities.reduced(obj, self._singles)
        if found is NotImplemented or len(found) != 6:
            return found
        if isinstance(obj, FunctionType):
            return self._function(obj, *found)
        _complete.add(obj)
        _annotate(obj, found[2][0])
        return _enum(obj, *found) if isinstance(obj, enum.EnumType) else self._class(obj, *found)

    def _function(self, function: FunctionType, make: Any, args: Any, state: Any, *rest: Any) -> Any:
        """What `reducer_override` returns for a function by value, made of what cloudpickle does."""
        code, variables, *args, closure = args
        # Only a decorator's: to import the module of a function that was made within another may do much more.
        if (name := _module_with(function.__globals__)) not in (None, function.__module__):
            variables = _Variables(name)
            state[1]["__globals__"] = {}
        else:
            names = function.__globals__
            state[1]["__globals__"] |= {name: names[name] for name in _named_in_classes(function) if name in names}
        closure = closure and tuple(map(self._cell, function.__closure__ or ()))
        if parameters := getattr(function, "__type_params__", ()):
            state[1]["__type_params__"] = parameters
        return _function, (make, code, variables, *args, closure), state, *rest

    def _class(self, cls: type, make: Any, args: Any, state: Any, *rest: Any) -> Any:
        """What `reducer_override` returns for a class by value, made of what cloudpickle does."""
        self.classes.append(cls)
        own, (attributes, slots), given = vars(cls), state, args[3]
        # Hooks of bases and metaclasses in modules, such as those that keep tables of classes, look at these.
        given.update({name: it for name, it in own.items() if type(it) in _SCALARS and name[:2] != "__"})
        if "<locals>" not in cls.__qualname__:
            # With it, what is pickled in a lane now could not be: such a class is not found by name.
            given["__qualname__"] = cls.__qualname__
        if "__slots__" in own and typing.NamedTuple not in own.get("__orig_bases__", ()):
            # cloudpickle leaves them out, so that objects take any attribute. `NamedTuple` gives them itself.
            given["__slots__"] = own["__slots__"]
            for name in [name for name, it in attributes.items() if type(it) is types.MemberDescriptorType]:
                del attributes[name]
        complete = functools.partial(_complete_class, rest[-1])
        return _made_once, (make, *args), (attributes, slots, pytrees.known(cls)), *rest[:-1], complete

    def _cell(self, cell: CellType) -> _Cell:
        return self.cells.setdefault(id(cell), (cell, _Cell()))[1]


def _made_anew(obj: Any) -> Any:
    """What `reducer_override` returns for objects that are made from their parts; `NotImplemented` for others.

    A `functools.cached_property` holds a lock before Python 3.12. A `random.SystemRandom` has no state
    (`from secrets import choice` is a method of one).
    """
    kind = type(obj)
    if kind is random.SystemRandom:
        return kind, ()
    if kind is functools.partialmethod:
        return _partialmethod, (obj.func, obj.args, obj.keywords)
    if isinstance(obj, functools.cached_property):
        return _cached_property, (kind,), {name: it for name, it in vars(obj).items() if name != "lock"}
    if kind in _NAMED and not is_found_by_name(obj):
        supertype = (obj.__supertype__,) if kind is typing.NewType else ()
        return kind, (obj.__name__, *supertype)
    return NotImplemented


def _weak(obj: Any) -> Any:
    """What `reducer_override` returns for weak references, which are sent with what they refer to."""
    if type(obj) is weakref.ref:
        return _weakly, (obj(),)
    if type(obj) is weakref.WeakMethod:
        # By name: the class of what has the method may be there already, with a function of its own.
        return _weakly, (None, "method") if (there := obj()) is None else (there.__self__, _attribute(there))
    if type(obj) in (weakref.WeakKeyDictionary, weakref.WeakValueDictionary):
        return type(obj), (dict(obj),)
    return NotImplemented


def _by_name(obj: Any) -> Any:
    """What `reducer_override` returns for modules of a subclass, those that only their parent knows, and sentinels.

    `optuna.integration` is of a subclass of `ModuleType`; cloudpickle sends others by name itself. Only its parent
    knows `torch._C._functions`, to which `once_differentiable` refers.
    """
    if id(obj) in _SENTINELS:
        return getattr, (dataclasses, _SENTINELS[id(obj)])
    if not isinstance(obj, ModuleType):
        return NotImplemented
    parent, _, name = obj.__name__.rpartition(".")
    if obj.__name__ not in sys.modules and getattr(sys.modules.get(parent), name, None) is obj:
        return getattr, (sys.modules[parent], name)
    return NotImplemented if type(obj) is ModuleType else (importlib.import_module, (obj.__name__,))


# Each says how to pickle an object, as `reducer_override` does.
_RULES = (wrapped.reduced, streams.reduced, annotated.reduced, _made_anew, _weak, _by_name)


def _annotate(cls: type, attributes: dict[str, Any]) -> None:
    """Gives the attributes with which a class travels its annotations."""
    attributes.pop("__annotations_cache__", None)
    if own := annotated.of_class(cls):
        attributes["__annotations__"] = own


def _named_in_classes(function: FunctionType) -> Iterator[str]:
    """Names used in the bodies of classes that a function defines, which cloudpickle overlooks."""
    for code in codes(function.__code__):
        if not code.co_flags & inspect.CO_OPTIMIZED:
            steps = dis.get_instructions(code)
            yield from (step.argval for step in steps if step.opname in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))


class _Cell:
    """Stands for a variable that functions share; cloudpickle sets it once the functions are there."""

    def __reduce__(self) -> Any:
        return CellType, ()


class _Variables:
    """Stands for the variables of a module, which is imported where they are loaded."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> Any:
        return _variables, (self._module,)


def _variables(module: str) -> dict[str, Any]:
    return vars(importlib.import_module(module))


def _module_with(variables: dict[str, Any]) -> str | None:
    """The name of the module whose variables these are; None if other processes cannot import it."""
    name = variables.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if name in (None, "__main__", *cloudpickle.list_registry_pickle_by_value()) or not isinstance(module, ModuleType):
        return None
    spec = vars(module).get("__spec__")
    is_there = spec is not None and spec.name == name and not is_unfinished(spec)
    return name if is_there and vars(module) is variables else None


def _function(make: Callable[..., FunctionType], *args: Any) -> FunctionType:
    made = make(*args)
    if made.__globals__.get("__name__") == "__main__":
        getattr(_loading, "functions", []).append(made)
    return made


def _cached_property(cls: Any) -> Any:
    made = cls.__new__(cls)
    if sys.version_info < (3, 12):
        made.lock = threading.RLock()
    return made


def _partialmethod(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    # From Python 3.14 on it cannot be made without these, as pickle does.
    return functools.partialmethod(function, *args, **keywords)


def _weakly(referent: Any, method: str | None = None) -> Any:
    # A reference to what is gone is one to what goes at once.
    referent = _Gone() if referent is None else referent
    return weakref.WeakMethod(getattr(referent, method)) if method else weakref.ref(referent)


def _attribute(method: Any) -> str:
    """The name by which an object has a method; `__name__` lacks what Python puts before private names."""
    bases = type(method.__self__).__mro__
    names = (name for base in bases for name, value in vars(base).items() if value is method.__func__)
    return next(names, method.__name__)


class _Gone:
    """What dead references refer to."""

    def method(self) -> None: ...


def _made_once(make: Any, *args: Any) -> Any:
    """A class, made if cloudpickle's table has none with its number.

    Args:
        make: cloudpickle's function that makes the class.
        args: The function's arguments.
    """
    metaclass, name, bases, given, number, _ = args
    known = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(number)
    if known is not None:
        return known
    bases = types.resolve_bases(bases)
    with without_superfluous_hooks(bases):
        if (above := above_superfluous(metaclass)) is None:
            return make(*args)
        made = above.__new__(metaclass, name, bases, dict(given))
        return cloudpickle.cloudpickle._lookup_class_or_track(number, made)


def _complete_class(fill: Callable[[type, Any], Any], cls: type, state: tuple[dict[str, Any], Any, Any]) -> None:
    """Gives a class its attributes, unless it has them.

    Args:
        fill: cloudpickle's function for it.
        cls: The class, just made or found.
        state: Its attributes by name, without its slots; nothing; and what JAX knows of it (`pytrees`).
    """
    if cls in _complete:
        return
    for name, value in list(vars(cls).items()):
        # What an earlier trial has added. A slot is an attribute that knows its class.
        if name not in state[0] and not name.startswith("__") and not hasattr(value, "__objclass__"):
            delattr(cls, name)
    fill(cls, state[:2])
    _complete.add(cls)
    if state[2] is not None:
        pytrees.tell(cls, state[2])


def _enum(cls: Any, make: Any, args: Any, state: Any, *rest: Any) -> Any:
    bases, name, qualname, _, *others = args
    members = {name: _member_value(member.value) for name, member in cls.__members__.items()}
    attributes = {name: value for name, value in state[0].items() if name not in members}
    own = {name: _attributes(member) for name, member in cls.__members__.items()}
    fill = functools.partial(_complete_enum, rest[-1])
    return make, (bases, name, qualname, members, *others), (attributes, state[1], own), None, None, fill


def _member_value(value: Any) -> Any:
    # A function would become a method.
    return enum.member(value) if hasattr(value, "__get__") else value


def _attributes(member: Any) -> dict[str, Any]:
    """What `__init__` or `__new__` has given a member of an enum."""
    return {name: value for name, value in vars(member).items() if not (name[0] == name[-1] == "_")}


def _complete_enum(fill: Callable[[type, Any], Any], cls: Any, state: tuple[Any, Any, dict[str, Any]]) -> None:
    if cls not in _complete:
        fill(cls, state[:2])
        for name, attributes in state[2].items():
            vars(cls.__members__[name]).update(attributes)
        _complete.add(cls)
