"""What libraries keep once per process is each trial's own."""

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest

from cotune.sharing.inside.library_state import LibraryState


@pytest.fixture
def libraries(monkeypatch):
    """Stand-ins for accelerate, whose objects share a table each class, and for matplotlib."""
    accelerate, pyplot = ModuleType("accelerate.state"), ModuleType("matplotlib._pylab_helpers")

    def borg(name):
        shared = {}
        made = type(name, (), {"_shared_state": shared, "__init__": lambda self: setattr(self, "__dict__", shared)})
        setattr(accelerate, name, made)

    for name in ("PartialState", "AcceleratorState", "GradientState"):
        borg(name)
    pyplot.Gcf = SimpleNamespace(figs={})
    monkeypatch.setitem(sys.modules, "accelerate.state", accelerate)
    monkeypatch.setitem(sys.modules, "matplotlib._pylab_helpers", pyplot)
    return accelerate, pyplot


def test_of_two_trials_that_take_turns_each_finds_its_own(libraries):
    accelerate, pyplot = libraries
    one, other = LibraryState(), LibraryState()
    one.enter()
    mine = accelerate.GradientState()
    mine.sync_gradients = False
    pyplot.Gcf.figs[1] = "a figure"
    one.leave()
    other.enter()
    assert not hasattr(accelerate.GradientState(), "sync_gradients")
    assert pyplot.Gcf.figs == {}
    accelerate.GradientState().sync_gradients = True
    other.leave()
    one.enter()
    assert mine.sync_gradients is False
    assert pyplot.Gcf.figs == {1: "a figure"}


def test_no_bar_goes_below_those_of_another_trial():
    tqdm = pytest.importorskip("tqdm").tqdm
    one, other = LibraryState(), LibraryState()
    one.enter()
    first = tqdm(total=2, file=io.StringIO())
    one.leave()
    other.enter()
    second = tqdm(total=2, file=io.StringIO())
    assert second.pos == 0
    second.close()
    other.leave()
    one.enter()
    below = tqdm(total=2, file=io.StringIO())
    # Versions differ in the sign.
    assert (first.pos, abs(below.pos)) == (0, 1)
    below.close()
    first.close()
    one.leave()


def test_a_version_that_keeps_it_elsewhere_is_no_harm(libraries):
    accelerate, _ = libraries
    del accelerate.GradientState
    one = LibraryState()
    one.enter()
    one.leave()
