"""What a trial is booked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cotune.sharing.inside import trial_meter
from cotune.sharing.inside.host import Host
from cotune.sharing.inside.trial_meter import TrialMeter


class Lane:
    """A lane's host and memory: what its meters say is what a test sets."""

    def __init__(self):
        self.level = 0
        self.used: float | None = 0.0
        self.waited = 0.0
        self.show_held = lambda: None
        self.memory = SimpleNamespace(read=lambda: (0, 0), reset_peak=lambda: None, busy_seconds=lambda: self.used)


@pytest.fixture
def lane(monkeypatch):
    lane = Lane()
    fake = SimpleNamespace(seconds=lambda: lane.waited, close=lambda: None)
    monkeypatch.setattr(trial_meter, "ThreadDelays", lambda: fake)
    return lane


def test_share_of_the_device_is_that_of_the_time_it_was_not_kept_from_it(lane):
    meter = TrialMeter(lane)
    meter.begin(10.0)
    lane.used, lane.waited = 0.5, 1.0
    meter.read(12.0)
    assert meter.take().busy == pytest.approx(0.5)
    meter.read(14.0)
    assert meter.take().busy == 0.0


def test_what_happens_between_turns_is_not_its_own(lane):
    meter = TrialMeter(lane)
    meter.begin(0.0)
    lane.used = 0.5
    meter.read(1.0)
    lane.used, lane.waited = 7.0, 5.0
    meter.begin(9.0)
    lane.used = 7.5
    meter.read(10.0)
    measured = meter.take()
    assert (measured.seconds, measured.busy) == (2.0, 0.5)


def test_no_share_where_it_was_unknown_for_a_part_of_the_time(lane):
    meter = TrialMeter(lane)
    meter.begin(0.0)
    lane.used = None
    meter.read(1.0)
    lane.used = 5.0
    meter.read(2.0)
    assert meter.take().busy is None
    lane.used = 5.5
    meter.read(3.0)
    assert meter.take().busy == pytest.approx(0.5)


def test_no_share_where_a_lane_cannot_tell(lane):
    lane.used = None
    meter = TrialMeter(lane)
    meter.begin(0.0)
    meter.read(1.0)
    assert meter.take().busy is None


def test_an_object_that_a_trial_shares_while_another_one_has_the_turn_is_booked_to_neither(lane):
    shares, runs = TrialMeter(lane), TrialMeter(lane)
    lane.shared_bytes, lane._send_holds = 0, lambda: None
    shares.begin(0.0)
    shares.read(1.0)
    runs.begin(1.0)
    lane.memory.read = lambda: (100, 100)
    Host.hold_shared(lane, 100)
    runs.read(2.0)
    assert (shares.persistent, runs.persistent, lane.shared_bytes) == (0, 0, 100)
