"""Devices of a cluster, without Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

ray = pytest.importorskip("ray")

from cotune.ray_tune import slots
from cotune.ray_tune.slots import Slot, Slots


@pytest.mark.parametrize(("state", "said"), [("PENDING", True), ("CREATED", False)])
def test_that_others_leave_no_room_for_lanes_is_said(state, said, monkeypatch, caplog):
    there = object.__new__(Slots)
    there.all = [Slot(SimpleNamespace(bundle_specs=[{"CPU": 1.0}]), 1, 1.0, None)]
    there._nodes = [{"Resources": {"CPU": 2.0}}]
    monkeypatch.setattr(slots, "placement_group_table", lambda group: {"state": state})
    monkeypatch.setattr(ray, "available_resources", dict)
    there.say_what_is_missing()
    assert ("lanes need 1 CPU on one node, and of the cluster's 2 CPUs" in caplog.text) == said
