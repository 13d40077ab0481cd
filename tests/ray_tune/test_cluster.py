"""What others take of a GPU that lanes of a cluster share, as their beats tell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from cotune.demand import GIB
from cotune.engines.others import SETTLE, OthersOnGpu
from cotune.ray_tune.cluster import Cluster
from cotune.ray_tune.lane import Beat
from cotune.ray_tune.slots import Slot


@pytest.fixture
def gpu():
    """A GPU of 16 GiB with two lanes, of which no figure is in doubt; `look` is what a second passing does."""
    cluster = object.__new__(Cluster)
    cluster._pending = []
    slot = Slot(None, 4, 1.0, None, "gpu:0", others=OthersOnGpu(16 * GIB, 16 * GIB, lambda free: free))

    def look(*beats):
        slot.lanes = {n: SimpleNamespace(ready=beat is not None, last=beat) for n, beat in enumerate(beats)}
        cluster._watch_others(slot, slot.others)
        told, cluster._pending = [event.capacity for event in cluster._pending], []
        return told

    for _ in range(SETTLE):
        look(beat(0, 0), beat(0, 0))
    return look


def beat(held, used, quiet=0.0):
    return Beat([], None, quiet, held, used)


def test_what_no_lane_holds_is_taken_by_others(gpu):
    # Beats are not of the same moment: the largest figure is the careful one.
    told = [gpu(beat(2 * GIB, 6 * GIB), beat(GIB, 7 * GIB)) for _ in range(2)]
    assert told == [[], [12 * GIB]], "two looks must agree"
    assert gpu(beat(2 * GIB, 6 * GIB), beat(GIB, 7 * GIB)) == []


@pytest.mark.parametrize("other", [None, beat(GIB, None), beat(GIB, 7 * GIB, quiet=3.0)])
def test_nothing_is_concluded_beside_a_lane_whose_figure_is_not_known(gpu, other):
    assert gpu(beat(GIB, 7 * GIB), other) == []
    assert gpu(beat(GIB, 7 * GIB), beat(GIB, 7 * GIB)) == [], "nor at once when it is"


def test_nothing_is_concluded_where_no_lane_tells(gpu):
    assert gpu() == []
