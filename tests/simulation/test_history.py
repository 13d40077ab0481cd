"""When trials were under way, as the events file of a run has it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cotune.demand import GIB, MIB
from cotune.errors import StorageError
from cotune.packer.interference import shared_speed
from cotune.paths import RunFolder
from cotune.simulation import from_run, simulate
from cotune.simulation.history import History, read_history
from cotune.trial import TrialState

Event = dict[str, Any]
Write = Callable[..., RunFolder]


def session(time: float, *devices: str, capacity: int = 4 * GIB, lanes: int | None = None) -> list[Event]:
    found = {"capacity": capacity, "context": 8 * MIB, "max_width": 2, "idle_width": 0, "lanes": lanes}
    run = {"event": "run", "time": time, "version": 1, "metric": "loss"}
    return [run, *({"event": "device", "time": time, "device": name, **found} for name in devices)]


def trial(number: int = 0) -> Event:
    return {"event": "trial", "time": 0.0, "trial": number, "params": {}, "seed": 0}


def start(time: float, number: int = 0, lane: int = 1, device: str = "cpu:0") -> Event:
    return {"event": "start", "time": time, "trial": number, "lane": lane, "device": device}


def report(time: float, step: int, number: int = 0) -> Event:
    return {"event": "report", "time": time, "trial": number, "step": step, "metrics": {"loss": 1.0}}


def noted(what: str, time: float, number: int = 0, **more: Any) -> Event:
    return {"event": what, "time": time, "trial": number, **more}


def end(time: float, number: int = 0, state: str = "done") -> Event:
    return noted("end", time, number, state=state, persistent=MIB, ephemeral=MIB, error=None)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def events(*what: Event) -> RunFolder:
        folder = RunFolder(tmp_path / "my-run")
        folder.path.mkdir()
        folder.events.write_text("".join(json.dumps(event) + "\n" for event in what))
        return folder

    return events


def seconds(history: History, number: int = 0) -> list[float]:
    return [stretch.end - stretch.start for stretch in history.trials[number].counted()]


# A day is between two sessions.
NEXT = 86_400.0
CUT = [*session(0.0, "cpu:0"), trial(), start(0.0), report(4.0, 1), report(8.0, 2), report(10.0, 3)]


def test_a_trial_that_went_on_from_a_checkpoint_took_what_counted_of_both_sessions(write: Write) -> None:
    again = [*session(NEXT, "cpu:0"), start(NEXT), report(NEXT + 4.0, 3), end(NEXT + 6.0)]
    folder = write(*CUT, *again)
    # The third report was made again, so what led to it the first time was done in vain.
    assert seconds(read_history(folder)) == [8.0, 6.0]
    assert [job.seconds for job in from_run(folder).jobs] == pytest.approx([14.0])


def test_a_trial_that_began_anew_took_what_it_took_the_last_time(write: Write) -> None:
    again = [*session(NEXT, "cpu:0"), start(NEXT), report(NEXT + 4.0, 1), end(NEXT + 12.0)]
    assert seconds(read_history(write(*CUT, *again))) == [12.0]


def test_the_time_between_sessions_that_left_no_mark_is_not_counted_either(write: Write) -> None:
    again = [start(NEXT), report(NEXT + 4.0, 3), end(NEXT + 6.0)]
    assert seconds(read_history(write(*CUT, *again))) == [8.0, 6.0]


def test_a_retry_is_no_other_than_a_resume(write: Write) -> None:
    again = [noted("retry", 11.0), start(50.0), report(54.0, 1), end(62.0)]
    assert seconds(read_history(write(*CUT, *again))) == [12.0]


def test_pauses_and_what_a_lane_took_to_open_are_no_work(write: Write) -> None:
    events = [start(0.0), noted("ready", 3.0, context=MIB), noted("pause", 5.0), noted("resume", 105.0), end(109.0)]
    history = read_history(write(*session(0.0, "cpu:0"), trial(), *events))
    assert seconds(history) == [2.0, 4.0]
    assert history.context == MIB


def test_while_the_machine_was_suspended_a_trial_did_not_work(write: Write) -> None:
    events = [start(0.0), noted("ready", 3.0), {**end(NEXT + 9.0), "lasted": 6.0}]
    assert seconds(read_history(write(*session(0.0, "cpu:0"), trial(), *events))) == [6.0]


def test_a_lane_takes_as_long_to_open_as_those_did_that_were_not_the_first(write: Write) -> None:
    first = [trial(0), start(0.0, 0), start(0.0, 1, 2), noted("ready", 9.0, 0), noted("ready", 9.1, 1), end(20.0, 1)]
    events = [*session(0.0, "cpu:0"), *(trial(number) for number in (1, 2)), *first]
    later = [start(20.0, 2, 3), noted("ready", 20.5, 2), end(30.0, 2)]
    folder = write(*events, *later, *session(NEXT, "cpu:0"), start(NEXT, 0), noted("ready", NEXT + 7.0, 0))
    assert read_history(folder).opening == 0.5


def test_no_lane_opens_in_less_than_no_time_where_the_clock_was_set_back_meanwhile(write: Write) -> None:
    events = [start(0.0), noted("ready", 9.0), start(9.5, 1, 2), noted("ready", 4.9, 1), end(6.0), end(7.0, 1)]
    folder = write(*session(0.0, "cpu:0"), trial(0), trial(1), *events)
    assert read_history(folder).opening == 0.0


def test_a_share_of_the_device_is_what_was_measured(write: Write) -> None:
    events = [start(0.0, 0), start(0.0, 1, 2), {**end(10.0, 0), "busy": 0.2}, {**end(10.0, 1), "busy": 0.3}]
    workload = from_run(write(*session(0.0, "cpu:0"), trial(0), trial(1), *events))
    assert {job.busy for job in workload.jobs} == {0.25}


def test_one_that_was_hardly_ever_beside_another_is_hardly_shorter_alone(write: Write) -> None:
    events = [start(0.0, 0), start(99.0, 1, 2), {**end(100.0, 0), "busy": 0.9}, {**end(199.0, 1), "busy": 0.9}]
    workload = from_run(write(*session(0.0, "cpu:0"), trial(0), trial(1), *events))
    assert [job.seconds for job in workload.jobs] == pytest.approx([99.0 + shared_speed(1.8)] * 2)


def test_one_that_is_cut_off_ran_beside_others_up_to_the_end_of_the_session(write: Write) -> None:
    beside = [start(0.0, 0, 1), start(0.0, 1, 2), end(10.0, 1)]
    history = read_history(write(*session(0.0, "cpu:0"), trial(0), trial(1), *beside, *session(NEXT, "cpu:0")))
    (attempt,) = history.trials[0].attempts
    assert attempt.stretches[0].end == 10.0
    assert history.trials[0].state is None


def test_devices_are_those_of_the_last_session_in_which_something_ran(write: Write) -> None:
    first, second = session(0.0, "cpu:0", lanes=2), session(NEXT, "cpu:0", "cpu:1", lanes=1)
    nothing_left = session(2 * NEXT, "cpu:0", "cpu:1", "cpu:2")
    ran = [trial(), start(NEXT), end(NEXT + 1.0)]
    workload = from_run(write(*first, *second, *ran, *nothing_left))
    assert (workload.devices, workload.lanes, workload.max_width) == (2, 1, 2)
    assert (workload.capacity, workload.context) == (4 * GIB, 8 * MIB)


@pytest.mark.parametrize(("busy", "most"), [(0.95, 2), (0.05, 8)])
def test_more_lanes_than_pay_are_played_only_where_trials_leave_the_device_idle(
    write: Write, busy: float, most: int
) -> None:
    run, device = session(0.0, "cpu:0")
    device |= {"idle_width": 8}
    ran = [event for number in range(40) for event in (trial(number), start(number * 50.0, number))]
    ran += [{**end(number * 50.0 + 50.0, number), "busy": busy} for number in range(40)]
    workload = from_run(write(run, device, *sorted(ran, key=lambda event: event["time"])))
    segments = simulate(workload).segments
    assert max(sum(one.start <= it.start < one.end for one in segments) for it in segments) == most


def test_devices_that_differ_are_taken_to_be_like_the_largest_and_that_is_said(write: Write) -> None:
    other = session(0.0, "cpu:1", capacity=GIB)[1:]
    workload = from_run(write(*session(0.0, "cpu:0"), *other, trial(), start(0.0), end(1.0)))
    assert (workload.devices, workload.capacity) == (2, 4 * GIB)
    assert "its devices differ, all are taken to be like the largest: 4.0 GiB" in workload.note


@pytest.mark.parametrize(("state", "judged"), [("done", False), ("stopped", True)])
def test_where_trials_were_stopped_their_order_had_a_part_in_that(write: Write, state: str, judged: bool) -> None:
    folder = write(*session(0.0, "cpu:0"), trial(), start(1.0), end(5.0, state=state))
    assert from_run(folder).judged == judged


def test_residents_of_a_lane_take_turns(write: Write) -> None:
    events = [start(0.0, 0), start(0.0, 1), end(10.0, 0), end(10.0, 1)]
    workload = from_run(write(*session(0.0, "cpu:0"), trial(0), trial(1), *events))
    assert [job.seconds for job in workload.jobs] == pytest.approx([5.0, 5.0])
    assert {job.busy for job in workload.jobs} == {1.0}


def test_turns_that_were_not_even_are_taken_as_they_were(write: Write) -> None:
    events = [start(0.0, 0), start(0.0, 1), {**end(2.0, 0), "seconds": 2.0}, {**end(10.0, 1), "seconds": 8.0}]
    workload = from_run(write(*session(0.0, "cpu:0"), trial(0), trial(1), *events))
    assert [job.seconds for job in workload.jobs] == pytest.approx([2.0, 8.0])


def test_a_run_is_played_under_the_policy_and_with_the_residents_that_it_had(write: Write) -> None:
    run, device = session(0.0, "cpu:0", lanes=1)
    had = {**run, "policy": "fair", "residents": 2, "max_slowdown": 1.5}
    events = [start(0.0, 0), start(0.0, 1), {**end(20.0, 0), "seconds": 10.0}, {**end(20.0, 1), "seconds": 10.0}]
    workload = from_run(write(had, device, trial(0), trial(1), *events))
    assert (workload.policy, workload.residents, workload.max_slowdown) == ("fair", 2, 1.5)
    assert simulate(workload).figures.makespan == pytest.approx(20.0, rel=0.01)
    # By turns they are there at once; one after the other they are not.
    assert simulate(workload).figures.waiting < simulate(replace(workload, residents=1)).figures.waiting


def test_a_policy_that_is_not_known_here_is_pointed_out(write: Write) -> None:
    run, device = session(0.0, "cpu:0")
    workload = from_run(write({**run, "policy": "mine"}, device, trial(0), start(0.0, 0), end(20.0, 0)))
    assert "its policy 'mine' is not known here" in workload.note
    assert workload.policy == ""


def test_trials_have_the_priorities_that_they_had(write: Write) -> None:
    events = [start(0.0, 0), end(20.0, 0), noted("priority", 1.0, 1, priority=2.0), start(20.0, 1), end(25.0, 1)]
    workload = from_run(write(*session(0.0, "cpu:0"), trial(0), trial(1), *events))
    assert [job.priority for job in workload.jobs] == [0.0, 2.0]


def test_trials_that_failed_are_counted(write: Write) -> None:
    events = [start(0.0, 0), end(20.0, 0), start(20.0, 1), end(25.0, 1, "failed")]
    workload = from_run(write(*session(0.0, "cpu:0"), trial(0), trial(1), *events))
    assert "2 trials of my-run, 1 of which failed" in workload.note


def test_a_trial_whose_checkpoint_found_no_room_has_not_failed(write: Write) -> None:
    put_off = {**end(20.0, 1, "failed"), "error": ["StorageError", "no room", ""]}
    history = read_history(
        write(*session(0.0, "cpu:0"), trial(0), trial(1), start(0.0), end(9.0), start(9.0, 1), put_off)
    )
    assert [past.state for past in history.trials.values()] == [TrialState.DONE, None]


def test_an_end_noted_after_the_next_start_in_its_lane_makes_no_further_lane(write: Write) -> None:
    events = [start(0.0, 0), start(10.0, 1), end(10.01, 0), end(20.0, 1)]
    workload = from_run(write(*session(0.0, "cpu:0"), trial(0), trial(1), *events))
    assert {job.busy for job in workload.jobs} == {1.0}


@pytest.mark.parametrize("events", [[], [trial()], [{"event": "run", "time": 0.0, "version": 99}]])
def test_a_file_of_no_version_or_another_is_refused(write: Write, events: list[Event]) -> None:
    with pytest.raises(StorageError, match="version"):
        read_history(write(*events))


_END = {"event": "end", "time": 1.0, "trial": 0, "state": "done", "error": None, "persistent": 1, "ephemeral": 1}
_DEVICE = {**session(1.0, "cpu:1")[1], "capacity": GIB}


@pytest.mark.parametrize(
    "wrong",
    [
        {"event": "report", "time": 1.0, "trial": 0},
        {"event": "tick", "time": "soon"},
        {**_DEVICE, "lanes": "two"},
        {**_DEVICE, "lanes": 2, "capacity": None},
        {"event": "start", "time": 1.0, "trial": 0, "device": "cpu:0", "lane": []},
        {"event": "priority", "time": 1.0, "trial": 0, "priority": 10**400},
        {"event": "run", "time": 1.0, "version": 1, "residents": math.inf},
        {**_END, "persistent": "1"},
        {**_END, "ephemeral": -1},
        {**_END, "busy": "much"},
        {**_END, "seconds": "1"},
        {**_END, "lasted": -1.0},
    ],
)
def test_a_line_that_makes_no_sense_is_named(write: Write, wrong: Event) -> None:
    with pytest.raises(StorageError, match=r"line 5 of .* (makes no sense|is not an event)"):
        read_history(write(*session(0.0, "cpu:0"), trial(), start(0.0), wrong))
