"""What a run looks like, in a terminal and out of one."""

import io
import logging
import os
import signal
import sys
import threading
import warnings
from dataclasses import replace

import pytest
from rich.console import Console

from cotune.dashboard.snapshot import RunningView, Snapshot
from cotune.dashboard.views import LiveTable, PlainLines, headline, make_view, table
from cotune.demand import GIB, MIB
from cotune.packer import DeviceView, LaneView, PackerView, WaitingView


def lane(number, *residents, quota=2 * GIB, ready=True):
    return LaneView(number, quota, residents, ready)


def device(name, *lanes, width=2):
    return DeviceView(name, 80 * GIB, 6 * GIB, width, lanes)


def running(trial, step=7, value=0.123456, peak=1536 * MIB, seconds=75.0):
    return RunningView(trial, seconds, step, value, peak)


def snapshot(**fields):
    defaults = {
        "name": "my-run",
        "metric": "loss",
        "seconds": 12.34,
        "total": 100,
        "counts": {"waiting": 90, "running": 2, "done": 5, "stopped": 2, "failed": 1, "interrupted": 0},
        "best": (3, 0.0123456789),
        "running": (running(11), running(12, step=None, value=None, peak=None, seconds=0.5)),
        "packer": PackerView(
            (device("cuda:0", lane(0, 11), lane(1, 12)), device("cuda:1", lane(2), lane(3, ready=False))),
            WaitingView(13, "needs 6.1 GiB, largest hole 4.0 GiB on cuda:1"),
            90,
        ),
        "note": "",
    }
    return Snapshot(**{**defaults, **fields})


def rendered(shot, width=80, height=24):
    console = Console(record=True, width=width, height=height, file=io.StringIO(), color_system=None)
    console.print(table(shot, width, height))
    return console.export_text()


def row(text, start):
    """The line that begins with this."""
    (line,) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return line


# What a wide terminal shows of trial 11.
WHOLE = ["lane", "0", "11", "7", "0.12346", "2.0", "GiB", "1.5", "GiB", "1:15"]


# ---- in one line


def test_the_headline_tells_name_time_counts_and_best():
    assert headline(snapshot()) == (
        "my-run 12.3s  8/100 trials, 2 running, 5 done, 2 stopped, 1 failed, best loss=0.0123457 (trial 3)"
    )


def test_the_headline_without_an_end_or_a_best_leaves_them_out():
    assert headline(snapshot(total=None, best=None, counts={"running": 1})) == "my-run 12.3s  0 trials, 1 running"


@pytest.mark.parametrize("lanes", [(), (lane(0, 11, ready=False),)])
def test_the_headline_says_so_until_the_first_lane_is_up(lanes):
    shot = snapshot(best=None, counts={"running": 1}, packer=PackerView((device("cuda:0", *lanes),), None, 0))
    assert headline(shot) == "my-run 12.3s  0/100 trials, 1 running, starting lanes"
    assert "starting" not in headline(replace(shot, counts={"done": 1})), "a lane that is replaced"


def test_the_headline_of_a_run_that_ends_before_a_lane_is_up_or_after_all_are_gone_starts_none():
    shot = snapshot(
        best=None, counts={"interrupted": 1}, packer=PackerView((device("cuda:0"),), None, 0), ends_early=True
    )
    assert headline(shot) == "my-run 12.3s  0/100 trials, 1 interrupted"


def test_the_headline_ends_with_what_just_went_wrong():
    assert headline(snapshot(note="trial 4 failed: ValueError")).endswith(", trial 4 failed: ValueError")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0s"),
        (59.4, "59.4s"),
        (60.0, "1:00"),
        (61.9, "1:01"),
        (3599.0, "59:59"),
        (3600.0, "1:00:00"),
        (90061.0, "25:01:01"),
    ],
)
def test_the_time_is_short(seconds, text):
    assert headline(snapshot(seconds=seconds)).startswith(f"my-run {text} ")


def test_finished_trials_are_those_that_are_done_stopped_or_failed():
    assert snapshot(counts={"done": 1, "stopped": 2, "failed": 4, "running": 8, "interrupted": 16}).finished == 7


# ---- how far it is


def test_the_table_tells_how_far_the_run_is_and_how_long_the_rest_may_take():
    assert " 8%, about 2:22 left" in rendered(snapshot(seconds_left=142.0))
    text = rendered(snapshot(counts={"done": 50}), 60)
    assert "50%\n" in text.replace(" ", "")
    assert "left" not in text
    assert "%" not in rendered(snapshot(total=None))


def test_the_table_draws_how_much_of_each_device_is_taken():
    full, empty = (replace(device(name, lane(0)), taken=taken) for name, taken in (("cuda:0", 80 * GIB), ("cuda:1", 0)))
    text = rendered(snapshot(packer=PackerView((full, empty), None, 0)))
    assert "━" in row(text, "cuda:0")
    assert "━" not in row(text, "cuda:1")


# ---- the table


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_shows_every_device_with_its_lanes_and_memory(width):
    text = rendered(snapshot(), width)
    for name, active in (("cuda:0", 2), ("cuda:1", 0)):
        line = row(text, name)
        assert f"{active}/2 lanes" in line
        assert "6.0 GiB" in line
        assert "80.0 GiB" in line


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_shows_a_running_trial_with_its_lane_step_metric_and_memory(width):
    assert row(rendered(snapshot(), width), "lane 0").split() == WHOLE


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_shows_what_is_not_known_yet_as_a_dash(width):
    assert row(rendered(snapshot(), width), "lane 1").split() == [
        "lane",
        "1",
        "12",
        "-",
        "-",
        "2.0",
        "GiB",
        "-",
        "0.5s",
    ]


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_tells_idle_lanes_from_those_that_start(width):
    text = rendered(snapshot(), width)
    assert "(idle)" in row(text, "lane 2")
    assert "(starting)" in row(text, "lane 3")


def test_a_resident_that_is_over_does_not_make_a_lane_with_others_look_idle():
    shot = snapshot(running=(running(12),), packer=PackerView((device("cuda:0", lane(0, 11, 12)),), None, 0))
    text = rendered(shot, 100)
    assert "idle" not in text
    assert text.count("lane 0") == 1


def test_the_table_shows_every_resident_of_a_lane():
    shot = snapshot(
        running=(running(11), running(12)), packer=PackerView((device("cuda:0", lane(0, 11, 12)),), None, 0)
    )
    lines = [line.split()[:3] for line in rendered(shot).splitlines() if "lane 0" in line]
    assert lines == [["lane", "0", "11"], ["lane", "0", "12"]]


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_the_table_says_how_many_wait_and_why_the_first_does(width):
    text = " ".join(rendered(snapshot(), width).split())
    assert "90 waiting; trial 13: needs 6.1 GiB, largest hole 4.0 GiB on cuda:1" in text


def test_a_long_reason_takes_two_lines_of_the_table():
    packer = PackerView((device("cuda:0", lane(0, 0)),), WaitingView(41, "no room " * 40), 1)
    text = rendered(snapshot(packer=packer), 60)
    assert len([line for line in text.splitlines() if "no room" in line]) == 2
    assert text.rstrip().endswith("…")


def test_the_table_begins_with_the_headline():
    assert rendered(snapshot(), 140).startswith(headline(snapshot()))


@pytest.mark.parametrize("width", [40, 60, 68, 80, 140])
def test_no_line_is_wider_than_the_terminal(width):
    assert max(map(len, rendered(snapshot(), width).splitlines())) <= width


@pytest.mark.parametrize("metric", ["loss", "validation/balanced_accuracy_top5"], ids=["short", "long"])
@pytest.mark.parametrize("width", [40, 50, 60, 68, 80, 140])
def test_whatever_the_width_no_value_is_cut(width, metric):
    shown = row(rendered(snapshot(metric=metric), width), "lane 0").split()
    assert shown == WHOLE[: len(shown)]


@pytest.mark.parametrize("width", [50, 60, 80, 140])
def test_also_in_a_narrow_terminal_a_trial_is_shown_with_its_metric(width):
    assert row(rendered(snapshot(), width), "lane 0").split()[:5] == WHOLE[:5]


def test_a_long_metric_name_is_shown_from_its_beginning():
    text = rendered(snapshot(metric="validation/balanced_accuracy_top5", best=None))
    assert "validation/" in row(text, "lane  ")


@pytest.mark.parametrize("name", ["acc[top5]", "loss[/b]", "[red]"])
def test_brackets_in_a_metric_name_are_shown_as_they_are(name):
    text = rendered(snapshot(metric=name, best=None), 140)
    assert name in text


def test_rows_beyond_the_height_are_counted():
    lanes = [lane(number, number) for number in range(40)]
    shot = snapshot(
        running=tuple(running(number) for number in range(40)),
        packer=PackerView((device("cuda:0", *lanes, width=40),), WaitingView(41, "no room"), 1),
    )
    text = rendered(shot, height=24)
    shown = len([line for line in text.splitlines() if line.strip().startswith("lane ") and "GiB" in line])
    assert 0 < shown < 40
    assert f"and {40 - shown} more" in text
    assert len(text.splitlines()) <= 24


@pytest.mark.parametrize("count", [8, 40])
def test_many_devices_fit_the_height_too(count):
    devices = [device(f"cuda:{n}", lane(n, n)) for n in range(count)]
    shot = snapshot(running=tuple(running(n) for n in range(count)), packer=PackerView(tuple(devices), None, 0))
    assert len(rendered(shot, height=24).splitlines()) <= 24


def test_a_run_without_lanes_yet_has_a_table():
    shot = snapshot(running=(), packer=PackerView((device("cuda:0"),), None, 0))
    assert "0/2 lanes" in row(rendered(shot), "cuda:0")


def test_a_resident_that_the_driver_does_not_know_as_running_yet_is_no_error():
    assert "lane 0" in rendered(snapshot(running=()))


# ---- plain lines


@pytest.fixture
def stream():
    return io.StringIO()


def finished(count, seconds):
    return snapshot(seconds=seconds, counts={"done": count})


def test_a_line_is_printed_when_a_trial_has_finished(stream):
    lines = PlainLines(stream)
    lines.update(finished(0, 0.1))
    lines.update(finished(1, 5.0))
    assert stream.getvalue().splitlines() == [headline(finished(0, 0.1)), headline(finished(1, 5.0))]


def test_nothing_is_printed_while_nothing_changes(stream):
    lines = PlainLines(stream)
    for seconds in (0.0, 2.0, 4.0):
        lines.update(finished(1, seconds))
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("so_far", [0.0, 3600.0])
def test_a_new_note_is_a_change_and_does_not_wait_for_the_next_line_of_a_long_run(stream, so_far):
    lines = PlainLines(stream)
    lines.update(finished(1, so_far))
    lines.update(replace(finished(1, so_far + 2.0), note="trial 4 failed: ValueError"))
    assert "trial 4 failed" in stream.getvalue().splitlines()[-1]


def test_a_note_is_printed_once(stream):
    lines = PlainLines(stream)
    for count in (1, 2, 3):
        lines.update(replace(finished(count, 2.0 * count), note="trial 4 failed: ValueError"))
    assert [", trial 4 failed: ValueError" in line for line in stream.getvalue().splitlines()] == [True, False, False]


def test_at_most_one_line_a_second_is_printed(stream):
    lines = PlainLines(stream)
    for tick in range(50):
        lines.update(finished(tick, tick * 0.1))
    assert len(stream.getvalue().splitlines()) == 5


def test_the_longer_a_run_takes_the_fewer_lines_are_printed(stream):
    lines = PlainLines(stream)
    for second in range(7200):
        lines.update(finished(second, float(second)))
    assert 300 < len(stream.getvalue().splitlines()) < 400


def test_a_line_tells_how_long_the_rest_may_take(stream):
    lines = PlainLines(stream)
    lines.update(replace(finished(1, 5.0), seconds_left=90.0))
    assert stream.getvalue().splitlines() == [f"{headline(finished(1, 5.0))}, about 1:30 left"]


def test_a_change_that_came_too_soon_is_printed_when_it_may_be(stream):
    lines = PlainLines(stream)
    lines.update(finished(1, 0.0))
    lines.update(finished(2, 0.5))
    lines.update(finished(2, 1.5))
    assert stream.getvalue().splitlines()[-1] == headline(finished(2, 1.5))


def test_the_last_state_is_printed_at_the_end_however_soon(stream):
    lines = PlainLines(stream)
    lines.update(finished(1, 0.0))
    lines.update(finished(2, 0.1))
    lines.close(finished(2, 0.2))
    assert stream.getvalue().splitlines() == [headline(finished(1, 0.0)), headline(finished(2, 0.2))]


def test_the_last_state_is_not_printed_twice(stream):
    lines = PlainLines(stream)
    lines.update(finished(1, 0.0))
    lines.close(finished(1, 0.1))
    assert len(stream.getvalue().splitlines()) == 1


def test_the_end_is_printed_though_none_has_finished_since(stream):
    lines = PlainLines(stream)
    lines.update(snapshot(counts={"running": 2}))
    lines.close(snapshot(counts={"interrupted": 2}))
    assert "2 interrupted" in stream.getvalue().splitlines()[-1]


def test_why_nothing_runs_is_said_once_if_nothing_does_for_long(stream):
    lines = PlainLines(stream)
    others = PackerView((), WaitingView(3, "others leave 100 MiB"), 7)
    for seconds in (0.0, 4.0, 5.0, 6.0, 60.0):
        lines.update(replace(finished(0, seconds), running=(), packer=others))
    (line,) = (line for line in stream.getvalue().splitlines() if "waiting" in line)
    assert line.endswith(", 7 waiting; trial 3: others leave 100 MiB")


def test_how_far_the_longest_has_come_is_said_once_a_minute_while_nothing_changes(stream):
    lines = PlainLines(stream)
    for seconds in range(150):
        lines.update(replace(finished(1, seconds), running=(running(11), running(12, step=None, seconds=90.0))))
    assert [line.rpartition(", ")[2] for line in stream.getvalue().splitlines()[1:]] == [
        "trial 12: no report yet after 1:30"
    ] * 2


class Gone(io.StringIO):
    def write(self, _text):
        raise BrokenPipeError


@pytest.mark.parametrize("make", [Gone, lambda: (s := io.StringIO(), s.close())[0]], ids=["broken pipe", "closed"])
def test_a_reader_that_has_gone_away_does_not_end_the_run(make):
    lines = PlainLines(make())
    lines.update(finished(1, 0.0))
    lines.close(finished(2, 0.1))


# ---- the live table


def live(stream):
    return LiveTable(Console(file=stream, force_terminal=True, width=100, height=30, color_system=None))


def test_the_cursor_stays_visible_for_a_shell_to_which_a_signal_leads(stream):
    view = live(stream)
    try:
        assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l")
    finally:
        view.close(snapshot())


def test_the_live_table_ends_with_the_last_state(stream):
    view = live(stream)
    view.update(snapshot())
    view.close(snapshot(note="done"))
    assert headline(snapshot(note="done")) in stream.getvalue()


@pytest.mark.parametrize("note", ["KeyError: [1]", "no such file: [/data/x]", "shape [b, c]", ":smile:"])
def test_the_live_table_shows_brackets_in_the_last_note_as_they_are(stream, note):
    view = live(stream)
    view.close(snapshot(note=note))
    assert f", {note}\n" in stream.getvalue()


# ---- which one


def test_without_a_terminal_the_view_is_plain_lines(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert isinstance(make_view(None), PlainLines)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(make_view(None), PlainLines)


def test_a_dashboard_that_is_not_wanted_is_none():
    assert make_view(False) is None


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_the_live_table(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    view = make_view(None)
    view.close(snapshot())
    assert isinstance(view, LiveTable)


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_view(None), PlainLines)


class Gone(io.StringIO):
    """A terminal that is gone."""

    def isatty(self):
        return True

    def write(self, text):
        raise OSError(5, "Input/output error")

    def flush(self):
        raise OSError(5, "Input/output error")


def test_a_terminal_that_has_gone_away_costs_nobody_the_results():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    live = LiveTable(console)
    console.file = Gone()
    live.update(snapshot())
    live.close(snapshot())


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_printed_goes_to_a_file_past_the_table(monkeypatch, is_terminal):
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", out)
    terminal = io.StringIO()
    live = LiveTable(Console(file=terminal, force_terminal=True, width=80))
    print("from a callback")
    live.close(snapshot())
    assert ("from a callback" in out.getvalue(), "from a callback" in terminal.getvalue()) == (
        not is_terminal,
        is_terminal,
    )


def test_output_that_knows_nothing_of_terminals_is_none(monkeypatch):
    class Tee:
        def write(self, text): ...

        def flush(self): ...

    monkeypatch.setattr(sys, "stdout", Tee())
    LiveTable(Console(file=io.StringIO(), force_terminal=True)).close(snapshot())


def test_brackets_of_what_is_printed_without_an_end_of_line_are_shown_as_they_are(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    view = make_view(None)
    print("[/b] :smile: [red]5", end="", flush=True, file=sys.stderr)
    view.close(snapshot())
    assert "[/b] :smile: [red]5\n" in terminal.getvalue()


# ---- log lines beside the live table


def shown(monkeypatch, name="stderr"):
    """A terminal in the place of one of Python's streams; not a fixture, as pytest replaces them after the set-up."""
    terminal = Terminal()
    monkeypatch.setattr(sys, name, terminal)
    return terminal


BOTH = pytest.mark.parametrize("name", ["stdout", "stderr"])


@pytest.fixture
def logger():
    """A logger of its own, whose lines go nowhere else."""
    made = logging.Logger.manager.getLogger("test_views.lines")
    made.propagate = False
    yield made
    made.handlers.clear()


def handled(logger, stream):
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    return handler


@BOTH
def test_lines_of_a_handler_made_before_the_live_table_stand_above_it(monkeypatch, name, stream, logger):
    terminal = shown(monkeypatch, name)
    handler = handled(logger, terminal)
    view = live(stream)
    view.update(snapshot())
    logger.warning("trial 3 has ended")
    view.close(snapshot())
    logger.warning("later")
    assert "trial 3 has ended\n" in stream.getvalue()
    assert terminal.getvalue() == "later\n"
    assert handler.stream is terminal


def test_also_the_root_loggers_lines_stand_above_the_live_table(monkeypatch, stream):
    terminal = shown(monkeypatch)
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler()])
    view = live(stream)
    logging.getLogger("test_views.other").warning("trial 3 has ended")
    view.close(snapshot())
    assert ("trial 3 has ended\n" in stream.getvalue(), terminal.getvalue()) == (True, "")


def test_a_second_live_table_has_the_lines_of_its_own_run_above_it(monkeypatch, logger):
    handled(logger, shown(monkeypatch))
    for said in ("first", "second"):
        stream = io.StringIO()
        view = live(stream)
        logger.warning(said)
        view.close(snapshot())
        assert f"{said}\n" in stream.getvalue()


@BOTH
def test_a_handler_made_while_the_live_table_is_shown_writes_to_the_terminal_afterwards(
    monkeypatch, name, stream, logger
):
    terminal = shown(monkeypatch, name)
    view = live(stream)
    handler = handled(logger, getattr(sys, name))
    assert handler.stream is not terminal
    view.close(snapshot())
    assert handler.stream is terminal


def test_a_handler_removed_while_the_live_table_is_shown_writes_to_the_terminal_afterwards(monkeypatch, stream, logger):
    terminal = shown(monkeypatch)
    handler = handled(logger, terminal)
    view = live(stream)
    logger.removeHandler(handler)
    view.close(snapshot())
    assert handler.stream is terminal


def test_handlers_of_other_streams_keep_them(monkeypatch, stream, logger, tmp_path):
    shown(monkeypatch)
    closed = io.StringIO()
    closed.close()
    late = logging.FileHandler(tmp_path / "never-opened.txt", delay=True)
    logger.addHandler(late)
    others = [io.StringIO(), closed]
    handlers = [late, *(handled(logger, other) for other in others)]
    view = live(stream)
    assert [handler.stream for handler in handlers] == [None, *others]
    view.close(snapshot())
    assert [handler.stream for handler in handlers] == [None, *others]


def test_a_handler_that_has_no_stream_at_all_is_left_alone(monkeypatch, stream, logger):
    class Bare(logging.StreamHandler):
        def __init__(self):
            logging.Handler.__init__(self)

    shown(monkeypatch)
    logger.addHandler(Bare())
    live(stream).close(snapshot())


def test_handlers_have_their_terminal_again_though_it_has_gone_away(monkeypatch, stream, logger):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = handled(logger, terminal)
    view = live(stream)
    view._live.console.file = Gone()
    terminal.close()
    view.close(snapshot())
    assert handler.stream is terminal


def test_a_process_forked_while_the_live_table_is_drawn_prints_and_logs(monkeypatch, stream, logger):
    terminal = shown(monkeypatch)
    handled(logger, terminal)
    view = live(stream)
    held, over = threading.Event(), threading.Event()

    def draw():
        with view._live._lock, view._live.console._lock:
            held.set()
            over.wait(30)

    drawing = threading.Thread(target=draw)
    drawing.start()
    held.wait(30)
    with warnings.catch_warnings():
        # From Python 3.12 on, forking beside threads is warned of.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            logger.warning("logged")
            print("printed", file=sys.stderr)
        finally:
            os._exit(terminal.getvalue() != "logged\nprinted\n")
    assert os.waitpid(child, 0)[1] == 0
    over.set()
    drawing.join()
    view.close(snapshot())
    assert sys.stderr is terminal
