"""What code a function or class uses."""

import functools

from cotune.used_code import functions_of, globals_read_by, globals_set_by, used_by

LEVEL = 0


class Base:
    def step(self):
        return helper()


class Derived(Base):
    class Inner:
        pass

    @property
    def size(self):
        return Other

    @functools.cached_property
    def known(self):
        return 1

    @staticmethod
    def make():
        return functools.partial


class Other:
    pass


def helper():
    return decorated()


def wrapping(function):
    def call():
        return function()

    return call


def hidden():
    return Other


decorated = wrapping(hidden)


def set_level():
    global LEVEL
    LEVEL = max(0, (lambda: SIZE)())  # noqa: F821


def test_what_a_class_uses_inherits_from_or_encloses_is_found_and_nothing_of_other_modules():
    used = [*used_by(Derived)]
    assert used[0] is Derived
    assert {*used} == {Derived, Base, Derived.Inner, Other, helper, decorated, hidden}


def test_properties_and_static_methods_are_functions_of_a_class():
    assert [function.__name__ for function in functions_of(Derived)] == ["size", "known", "make"]
    assert [*functions_of(helper)] == [helper]


def test_which_variables_code_sets_and_reads():
    assert globals_set_by(set_level.__code__) == {"LEVEL"}
    assert globals_read_by(set_level.__code__) == {"max", "SIZE"}
