"""CPUs that others leave while lanes run."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

ray = pytest.importorskip("ray")

from ray import tune

from cotune.ray_tune import colocate
from cotune.ray_tune import growth as module
from cotune.ray_tune.growth import STEADY, grow
from cotune.ray_tune.slot import Slot


@pytest.fixture
def cpus_of(monkeypatch):
    """Stands for Ray: gives a device with one CPU, what is reserved for it, and says where groups are placed."""
    made = SimpleNamespace(slot=Slot("first", 1, 1.0, "here"), place="here", asked=[], given_back=[])

    def table(group):
        return {"state": "CREATED" if made.place else "PENDING", "bundles_to_node_id": {0: made.place}}

    monkeypatch.setattr(module, "placement_group", lambda bundles, strategy: made.asked.append(bundles) or "more")
    monkeypatch.setattr(module, "placement_group_table", table)
    monkeypatch.setattr(module, "remove_placement_group", made.given_back.append)
    made.look = lambda spare, width=lambda cores: cores: grow(made.slot, spare, width, lambda cores: {"CPU": cores})
    return made


def test_cpus_that_have_stayed_free_are_taken(cpus_of):
    assert [cpus_of.look(3) for _ in range(STEADY)] == [False] * STEADY
    assert cpus_of.asked == [[{"CPU": 3}]]
    assert cpus_of.look(0)
    assert (cpus_of.slot.cores, cpus_of.slot.groups) == (4, ["first", "more"])


def test_cpus_that_come_and_go_and_those_on_which_no_lane_pays_are_left(cpus_of):
    for spare in (3, 3, 0, 3, 3, 0):
        assert not cpus_of.look(spare)
    for _ in range(2 * STEADY):
        assert not cpus_of.look(3, width=lambda cores: 1)
    assert cpus_of.asked == []


@pytest.mark.parametrize("place", ["", "elsewhere"])
def test_what_has_no_place_or_another_is_given_back(cpus_of, place):
    cpus_of.place = place
    for _ in range(STEADY + 1):
        assert not cpus_of.look(3)
    assert (cpus_of.slot.cores, cpus_of.slot.groups, cpus_of.given_back) == (1, ["first"], ["more"])


@pytest.mark.ray
def test_lanes_take_up_what_another_job_leaves_in_the_middle(cpus, run_config, tmp_path):
    @ray.remote(num_cpus=1)
    class Other:
        def there(self):
            pass

    other, pids, met = Other.remote(), set(), tmp_path / "met"
    ray.get(other.there.remote())

    class Leaves(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            if not pids:
                ray.kill(other)
            pids.add(result["pid"])
            if len(pids) > 1:
                met.touch()

    def trainable(config):
        for step in range(1_000):
            tune.report({"score": step})
            if met.exists():
                return
            time.sleep(0.02)

    tuner = tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=colocate()),
        run_config=run_config(callbacks=[Leaves()]),
    )
    results = tuner.fit()
    assert results.num_errors == 0
    assert len(pids) == 2
    assert all(result.metrics["score"] < 999 for result in results), "the second began while the first ran"
