"""What a trial starts on Ray, without Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

ray = pytest.importorskip("ray")

from cotune.ray_tune import launches


@pytest.mark.parametrize(("held", "said"), [(1.0, False), (2.0, True)])
def test_a_trial_that_asks_ray_for_cpus_is_told_once_where_lanes_leave_none(held, said, monkeypatch, caplog):
    lanes = {"state": "CREATED", "bundles": {0: {"CPU": held}}}
    gone = {"state": "REMOVED", "bundles": {0: {"CPU": 2.0}}}
    trial = SimpleNamespace(trial=3, has_launched=False)
    monkeypatch.setattr(launches, "placement_group_table", lambda: {"lanes": lanes, "gone": gone})
    monkeypatch.setattr(launches, "current_trial", lambda: trial)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    for _ in range(2):
        launches._launched(None, {"CPU": 1.0}, "DEFAULT")
    assert ["trial 3 asks Ray for 1 CPUs" in record.message for record in caplog.records] == [True] * said
