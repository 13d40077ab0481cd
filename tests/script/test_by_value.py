"""Objects of a script reach another process and come back without changing the classes there."""

import abc
import collections
import dataclasses
import enum
import functools
import gc
import importlib
import pickle
import random
import secrets
import sys
import threading
import traceback
import typing
import weakref
from collections import ChainMap
from types import CodeType, FunctionType, ModuleType

import pytest

from cotune.script import by_value
from cotune.sharing.inside.script_classes import ScriptClasses


def travelled(value):
    return pickle.loads(by_value.dumps(value))


def as_elsewhere(cls):
    """The class as a process makes it that does not have it."""
    blob = by_value.dumps(cls)
    here, there = ScriptClasses(inherits=False), ScriptClasses(inherits=False)
    here.leave()
    there.enter()
    made = pickle.loads(blob)
    here.enter()
    return made


def test_functions_of_the_script_that_a_thread_loads_are_known():
    def of(module):
        return FunctionType((lambda: None).__code__, {"__name__": module})

    blob, others = by_value.dumps([of("__main__"), of("elsewhere")]), []

    def loads_too():
        others.append(pickle.loads(blob))

    with by_value.functions_of_script() as functions:
        first, _ = pickle.loads(blob)
        thread = threading.Thread(target=loads_too)
        thread.start()
        thread.join()
    loads_too()
    assert len(others) == 2
    assert functions == [first]


def test_an_object_that_comes_back_is_of_the_class_it_was_and_leaves_it_as_it_is():
    class Item:
        kind = "made here"

        def method(self):
            return self

    Item.kind, method = "changed since", Item.method
    blob = by_value.dumps(Item())
    Item.kind = "changed later"
    assert type(pickle.loads(blob)) is Item
    assert (Item.kind, Item.method) == ("changed later", method)


def test_functions_keep_the_file_they_are_in(monkeypatch):
    """Which cloudpickle leaves out since 3.1.3."""

    def without_file(code):
        make, args = reduced(code)
        return make, (*args[:10], "<dynamic-code>", *args[11:])

    def fails():
        raise ZeroDivisionError("there")

    table = by_value.Pickler.dispatch_table
    reduced = table[CodeType]
    monkeypatch.setattr(by_value.Pickler, "dispatch_table", ChainMap({CodeType: without_file}, table))
    with pytest.raises(ZeroDivisionError) as raised:
        pickle.loads(by_value.dumps(fails))()
    assert 'raise ZeroDivisionError("there")' in "".join(traceback.format_exception(raised.value))


def test_functions_share_the_variables_they_share():
    best = 0.0

    def update(value):
        nonlocal best
        best = max(best, value)

    def read():
        return best

    update, read, also = travelled((update, read, lambda: read()))
    update(3.0)
    assert (read(), also(), best) == (3.0, 3.0, 0.0)


def test_a_function_that_calls_itself_travels():
    def factorial(number):
        return number * factorial(number - 1) if number else 1

    assert travelled(factorial)(5) == 120


@pytest.fixture
def counting(tmp_path, monkeypatch):
    """A module whose decorator counts the calls of what it decorates."""
    (tmp_path / "counting_of_the_user.py").write_text(
        "import functools\n"
        "calls = {}\n"
        "def counted(function):\n"
        "    @functools.wraps(function)\n"
        "    def called(*arguments):\n"
        "        calls[function.__name__] = calls.get(function.__name__, 0) + 1\n"
        "        return function(*arguments)\n"
        "    return called\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("counting_of_the_user")
    sys.modules.pop("counting_of_the_user", None)


def test_a_decorator_of_a_module_uses_that_module_and_no_copy_of_its_variables(counting):
    blob = by_value.dumps(counting.counted(lambda: 3))
    del sys.modules["counting_of_the_user"]
    decorated = pickle.loads(blob)
    assert (decorated(), decorated()) == (3, 3)
    assert (sys.modules["counting_of_the_user"].calls, counting.calls) == ({"<lambda>": 2}, {})


def test_a_decorator_of_a_module_that_nobody_can_import_travels_with_copies(counting):
    counting.__spec__ = None
    decorated = travelled(counting.counted(lambda: 3))
    assert decorated() == 3
    assert (decorated.__globals__["calls"], counting.calls) == ({"<lambda>": 1}, {})


def test_nested_classes_know_where_they_are():
    there = as_elsewhere(type("Config", (), {"__module__": "__main__", "__qualname__": "Model.Config"}))
    assert there.__qualname__ == "Model.Config"


def enums():
    class Size(enum.Enum):
        SMALL = (1, 2)
        LARGE = (3, 4)

        def __init__(self, width, depth):
            self.width = width

    class Operation(str, enum.Enum):  # noqa: UP042 - StrEnum takes no second value
        def __new__(cls, value, arity):
            made = str.__new__(cls, value)
            made._value_, made.arity = value, arity
            return made

        ADD = ("add", 2)
        PLUS = ("add", 2)

    class Function(enum.Enum):
        HALF = enum.member(lambda value: value / 2)

    class Access(enum.Flag):
        READ = 1
        WRITE = 2
        BOTH = 3

    return Size, Operation, Function, Access


def test_enums_keep_all_that_their_members_are_and_have():
    size, operation, function, access = map(as_elsewhere, enums())
    assert (size.LARGE.width, size((1, 2)).width) == (3, 1)
    assert (operation.PLUS is operation.ADD, operation("add").arity, operation.ADD == "add") == (True, 2, True)
    assert function.HALF.value(3.0) == 1.5
    assert (access.BOTH.name, list(access.__members__)) == ("BOTH", ["READ", "WRITE", "BOTH"])


def test_the_sentinels_of_dataclasses_are_those_of_the_process_that_loads():
    @dataclasses.dataclass
    class Settings:
        rate: float
        _: dataclasses.KW_ONLY
        width: int = 3

    there = as_elsewhere(Settings)
    assert dataclasses.fields(there)[0].default is dataclasses.MISSING

    @dataclasses.dataclass
    class More(there):
        depth: int = 1

    with pytest.raises(TypeError):
        More()


def test_names_for_types_travel():
    metres, params, types = typing.NewType("Metres", float), typing.ParamSpec("P"), typing.TypeVarTuple("Ts")
    there = travelled([metres, params, types, metres])
    assert there[0](2.0) == 2.0
    assert [one.__name__ for one in there] == ["Metres", "P", "Ts", "Metres"]
    assert there[3] is there[0]
    assert travelled(Imported) is Imported


Imported = typing.NewType("Imported", int)


def test_functions_that_go_by_type_travel():
    @functools.singledispatch
    def show(value):
        return "anything"

    @show.register
    def _(value: int):
        return "a number"

    assert show(3) == "a number"
    show = travelled(show)
    show.register(str, lambda value: "a text")
    assert [show(3), show("3"), show(None)] == ["a number", "a text", "anything"]


def test_weak_references_travel_with_what_they_refer_to():
    class Node:
        def __itself(self):
            return self

        def weakly(self):
            return weakref.WeakMethod(self.__itself)

    node, gone = Node(), Node()
    weak = [
        weakref.ref(node),
        weakref.ref(gone),
        node.weakly(),
        gone.weakly(),
        weakref.WeakKeyDictionary({node: 1}),
        weakref.WeakValueDictionary(a=node),
    ]
    del gone
    there, (alive, dead, method, dead_method, by_key, values) = travelled((node, weak))
    gc.collect()
    assert (alive(), dead(), by_key[there], values["a"]) == (there, None, 1, there)
    assert (method()(), dead_method()) == (there, None)


def test_functions_with_a_cache_keep_their_attributes_and_need_no_name():
    @functools.cache
    def doubled(value):
        return 2 * value

    doubled.tag = "mine"
    there, first = travelled([doubled, functools.cache(functools.partial(max, 3))])
    assert (there(2), there.tag, there.__wrapped__(3), there.cache_info().currsize, first(2)) == (4, "mine", 6, 1, 3)


def test_what_draws_from_the_system_travels():
    choice, source = travelled((secrets.choice, random.SystemRandom()))
    assert choice([3]) == 3
    assert 0.0 <= source.random() < 1.0


def test_a_class_keeps_its_slots():
    @dataclasses.dataclass(slots=True)
    class Point:
        x: int = 1

    class Private:
        __slots__ = ("__value", "__weakref__")

        def __init__(self):
            self.__value = 2

        def value(self):
            return self.__value

    class Loose(Private):
        pass

    class Typed(typing.NamedTuple):
        x: int = 1

    class Pair(collections.namedtuple("Pair", "left right")):
        __slots__ = ()

    point, private, loose, typed, pair = map(as_elsewhere, (Point, Private, Loose, Typed, Pair))
    assert (point(3).x, private().value(), loose().value()) == (3, 2, 2)
    assert weakref.ref(made := private())() is made
    for one in (point(), private(), typed(), pair(1, 2)):
        with pytest.raises(AttributeError):
            one.typo = 1
    loose().typo = 1
    assert pickle.loads(by_value.dumps([Point(4)]))[0].x == 4


def test_a_class_keeps_its_annotations():
    class Plain:
        left: int
        right: "Plain"

    class Typed(typing.TypedDict, total=False):
        left: int

    class Kind(enum.Enum):
        LEFT = 1
        text: str

    plain, typed, kind = map(as_elsewhere, (Plain, Typed, Kind))
    assert plain.__annotations__ == {"left": int, "right": "Plain"}
    assert typing.get_type_hints(typed) == {"left": int}
    assert kind.__annotations__ == {"text": str}


@pytest.mark.skipif(sys.version_info < (3, 14), reason="until Python 3.13 annotations were computed at once")
def test_what_is_annotated_with_a_name_for_type_checkers_only_travels():
    variables = {"__name__": "__main__"}
    text = "class Step:\n    of: Net\n    number: int\ndef train(net: Net, *, number: int = 3) -> Step: return number"
    exec(text, variables)
    train, step = travelled(variables["train"]), as_elsewhere(variables["Step"])
    assert train(None) == 3
    assert train.__annotations__ == {"net": "Net", "number": "int", "return": "Step"}
    assert step.__annotations__ == {"of": "Net", "number": "int"}
    with pytest.raises(NameError):
        variables["train"].__annotations__  # noqa: B018 - the script's own are as they were


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`type` came with Python 3.12")
def test_what_type_names_and_parameters_of_types_travel():
    variables = {"__name__": "__main__"}
    text = "type Pair[T] = tuple[T, T]\ntype Row = list[Pair[int]]\ntype Late = Missing\n"
    exec(text + "def first[T](pair: Pair[T], late: Late, row: Row) -> T: return pair[0]", variables)
    first = travelled(variables["first"])
    pair, late, row, result = first.__annotations__.values()
    (parameter,) = first.__type_params__
    assert first((1, 2), None, None) == 1
    assert (pair.__args__, result) == ((parameter,), parameter)
    assert (pair.__origin__.__name__, late.__name__, row.__value__.__args__[0].__args__) == ("Pair", "Late", (int,))


def test_a_class_keeps_methods_with_some_arguments_filled_in():
    class Scale:
        def by(self, factor, offset):
            return factor + offset

        double = functools.partialmethod(by, 2, offset=1)

    assert as_elsewhere(Scale)().double() == 3


def test_a_table_of_classes_in_a_module_finds_the_names_that_classes_of_the_script_give_themselves(
    tmp_path, monkeypatch
):
    (tmp_path / "tables.py").write_text(
        "MODELS, LOSSES = {}, {}\n"
        "class Model:\n"
        "    name = 'base'\n"
        "    def __init_subclass__(cls): MODELS[cls.name] = cls\n"
        "class Table(type):\n"
        "    def __new__(cls, name, bases, given):\n"
        "        LOSSES[given.get('kind')] = made = super().__new__(cls, name, bases, given)\n"
        "        return made\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tables = importlib.import_module("tables")
    monkeypatch.setitem(sys.modules, "tables", tables)

    class Large(tables.Model):
        name = "large"

    class Hinge(metaclass=tables.Table):
        kind = "hinge"

    blobs = by_value.dumps(Large), by_value.dumps(Hinge)
    tables.MODELS.clear()
    tables.LOSSES.clear()
    here, there = ScriptClasses(inherits=False), ScriptClasses(inherits=False)
    here.leave()
    there.enter()
    large, hinge = map(pickle.loads, blobs)
    here.enter()
    assert ({"large": large}, {"hinge": hinge}) == (tables.MODELS, tables.LOSSES)


def test_a_kind_of_cached_property_travels_as_what_it_is():
    class Kept(functools.cached_property):
        def __init__(self, function, ttl):
            super().__init__(function)
            self.ttl = ttl

    class Item:
        def _value(self):
            return [1]

        value = Kept(_value, ttl=3)

    there = as_elsewhere(Item)
    item = there()
    assert item.value is item.value
    assert vars(there)["value"].ttl == 3


def test_classes_are_not_made_anew_for_the_hooks_of_their_bases():
    known = []

    class Base:
        def __init_subclass__(cls, key, **others):
            super().__init_subclass__(**others)
            known.append((key, cls))

    class Model(Base, key="model"):
        pass

    class Small(Model, key="small"):
        pass

    blob = by_value.dumps((known, Small))
    assert pickle.loads(blob)[1] is Small
    assert len(known) == 2
    here, there = ScriptClasses(inherits=False), ScriptClasses(inherits=False)
    here.leave()
    there.enter()
    found, small = pickle.loads(blob)
    here.enter()
    assert [key for key, _ in found] == ["model", "small"]
    assert found[1][1] is small is not Small
    with pytest.raises(TypeError, match="key"):
        type("More", (small,), {})


def test_classes_are_not_made_anew_for_their_metaclasses():
    names = []

    class Strict(abc.ABCMeta):
        def __new__(meta, name, bases, given, key=None):
            if name in names:
                raise TypeError(f"{name} is there already")
            names.append(name)
            return super().__new__(meta, name, bases, given)

    class Base(metaclass=Strict, key="base"):
        @abc.abstractmethod
        def act(self): ...

    class Model(Base):
        def act(self):
            return names

    made = as_elsewhere(Model)
    assert made().act() == ["Base", "Model"] == names
    assert type(made).__name__ == "Strict"
    assert made is not Model
    with pytest.raises(TypeError, match="abstract"):
        made.__base__()


@pytest.fixture
def table(monkeypatch):
    """A module that keeps a table of classes."""
    table = ModuleType("table_of_ours")
    table.known = []
    monkeypatch.setitem(sys.modules, "table_of_ours", table)
    return table


def by_name(table):
    class Base:
        def __init_subclass__(cls):
            table.known.append(cls)

    return Base


def by_import(table):
    class Base:
        def __init_subclass__(cls):
            import table_of_ours

            table_of_ours.known.append(cls)

    return Base


def by_helper(table):
    def register(cls):
        return [table.known.append(one) for one in [cls]]

    class Base:
        def __init_subclass__(cls, key=None):
            register(cls)

    return Base


def by_metaclass(table):
    class Kind(type):
        def __init__(cls, name, bases, given):
            table.known.append(cls)

    class Base(metaclass=Kind):
        pass

    table.known.clear()
    return Base


@pytest.mark.parametrize("made", [by_name, by_import, by_helper, by_metaclass])
def test_hooks_that_use_modules_run_where_a_class_is_made_since_modules_do_not_travel(table, made):
    base = made(table)
    model = type(base)("Model", (base,), {"__module__": "of no file"})
    found = as_elsewhere(model)
    assert [one for one in table.known if one.__name__ == "Model"] == [model, found]


def test_hooks_that_want_keywords_do_not_run_since_python_keeps_none(table):
    class Base:
        def __init_subclass__(cls, key):
            table.known.append(key)

    class Model(Base, key="model"):
        pass

    as_elsewhere(Model)
    assert table.known == ["model"]


def test_a_function_has_what_it_names_in_the_bodies_of_its_classes():
    made = {"__name__": "__main__", "WIDTH": 3, "Number": float}
    source = "def train():\n class Net:\n  width: Number = WIDTH\n  class Part:\n   half = WIDTH / 2\n return Net"
    exec(source, made)
    net = travelled(made["train"])()
    assert (net.width, net.Part.half) == (3, 1.5)


def test_a_class_that_equinox_would_make_without_its_fields_is_refused():
    meta = type("_ModuleMeta", (type,), {"__module__": "equinox._module"})
    model = meta("Model", (), {"__module__": "__main__", "__qualname__": "Model"})
    with pytest.raises(pickle.PicklingError, match="put class Model into a module"):
        by_value.dumps(model)
