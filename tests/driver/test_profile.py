"""What one run has measured, and the next one begins with."""

from __future__ import annotations

import copy
import errno
import functools
import json
import math
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

import cotune
from cotune.demand import GIB, MIB, Demand, Estimate
from cotune.driver.calibration import FEW
from cotune.driver.profile import ENOUGH, KEPT, UNLEARNT_ALLOWANCE, UNLEARNT_FACTOR, Profile, profile_path


def hungry(config):
    held = bytearray(config["mib"] * MIB)
    held[::4096] = b"x" * len(held[::4096])
    for step in range(3):
        cotune.report({"loss": float(config["mib"])}, step=step)


def helper():
    return 1


def uses_helper(config):
    return helper()


class Steps:
    def setup(self, config): ...

    def step(self):
        return None


def sweep(storage, **options):
    space = {"mib": cotune.randint(10, 40)}
    common = {"metric": "loss", "devices": ["cpu:0@4GiB"], "lanes": 2, "seed": 0, "dashboard": False}
    return cotune.run(hungry, space, trials=8, storage=storage, **common, **options)


def test_the_second_sweep_does_not_probe(tmp_path):
    first, second = sweep(tmp_path), sweep(tmp_path)
    assert first.trials[0].expected is None
    for trial in second:
        assert trial.expected is not None
        assert trial.persistent < trial.expected < 2 * (trial.persistent + trial.ephemeral) + 64 * MIB
    assert {trial.attempts for trial in second} == {1}


def test_a_resumed_run_does_not_probe_again(tmp_path):
    sweep(tmp_path, name="one")
    for path in (tmp_path / ".profiles").iterdir():
        path.unlink()
    common = {"metric": "loss", "devices": ["cpu:0@4GiB"], "lanes": 2, "seed": 0, "dashboard": False, "resume": True}
    space = {"mib": cotune.randint(10, 40)}
    results = cotune.run(hungry, space, trials=10, storage=tmp_path, name="one", **common)
    assert all(trial.expected is not None for trial in results.trials[8:])


def test_what_is_kept_predicts_by_features(tmp_path):
    path = tmp_path / ".profiles" / "train.json"
    profile = Profile(path)
    assert profile.expect({"width": 1.0}) == (None, None)
    for width in range(1, 11):
        profile.learn({"width": width}, Demand(width * 100 * MIB, 10 * MIB, 0.5), float(width))
    profile.save()
    demand, seconds = Profile(path).expect({"width": 5.0})
    assert 500 * MIB <= demand.persistent < 700 * MIB
    assert demand.busy == pytest.approx(0.5)
    assert seconds == pytest.approx(5.0, rel=0.1)


def test_a_trial_of_a_resumed_run_counts_once_though_the_file_has_it_too(tmp_path):
    seen = [({"a": 1.0, "b": 3.0}, 150), ({"a": 2.0, "b": 1.0}, 310), ({"a": 4.0, "b": 2.0}, 290)]
    profile = Profile(tmp_path / "train.json")
    for features, peak in seen:
        profile.learn(features, Demand(peak * MIB, 0, 0.3), 1.0)
    profile.save()
    resumed = Profile(tmp_path / "train.json")
    for features, peak in [*seen, ({"a": 3.0, "b": 3.0}, 400)]:
        resumed.recall(features, Demand(peak * MIB, 0, 0.3), 1.0)
    # Four are too few for a margin that could be relied on, so it is the largest; with seven they were not.
    assert [resumed.expect(features)[0].peak for features, _ in seen] == [400 * MIB] * 3


def test_once_this_run_knows_enough_earlier_ones_are_silent(tmp_path):
    profile = Profile(None)
    profile.recall({}, Demand(MIB, 0), None)
    for _ in range(ENOUGH):
        assert profile.expect({})[0] is not None
        profile.learn({}, Demand(MIB, 0), None)
    assert profile.expect({}) == (None, None)


def taught(path, count, start=1):
    """A profile that has seen trials whose bytes are 1.2 times the estimate and 30 MiB, at 1 s for a GFLOP."""
    profile = Profile(path)
    for n in range(start, start + count):
        estimate = Estimate(n * 100 * MIB, n * 50 * MIB, n * 10**9)
        demand = Demand(int(n * 120 * MIB) + 30 * MIB, n * 60 * MIB, 0.5)
        profile.learn({}, demand, float(n), estimate)
        profile.compare(n, estimate, demand, float(n))
    return profile


def test_before_a_few_were_measured_an_estimate_counts_with_a_stated_margin():
    estimate = Estimate(100 * MIB, 50 * MIB, 10**9)
    for count in range(FEW):
        demand, seconds = taught(None, count).expect({}, estimate)
        assert demand.persistent == 100 * MIB * UNLEARNT_FACTOR + UNLEARNT_ALLOWANCE
        assert demand.peak == 150 * MIB * UNLEARNT_FACTOR + UNLEARNT_ALLOWANCE
        assert seconds is None


def test_after_a_few_an_estimate_counts_as_others_were_measured():
    demand, seconds = taught(None, FEW).expect({}, Estimate(1000 * MIB, 500 * MIB, 10**10))
    assert demand.persistent == pytest.approx(1230 * MIB, rel=0.02)
    assert demand.peak == pytest.approx(1830 * MIB, rel=0.02)
    assert demand.busy == 0.5
    assert seconds == pytest.approx(10.0, rel=0.02)


def test_the_next_run_begins_with_the_ratio(tmp_path):
    path = tmp_path / ".profiles" / "train.json"
    taught(path, FEW).save()
    demand, seconds = Profile(path).expect({}, Estimate(1000 * MIB, 500 * MIB, 10**10))
    assert demand.peak == pytest.approx(1830 * MIB, rel=0.02)
    assert seconds is not None


def test_a_run_knows_best_how_long_its_trials_are_and_goes_by_estimates_for_their_bytes():
    demand, seconds = taught(None, ENOUGH).expect({}, Estimate(1000 * MIB, 500 * MIB, 10**10))
    assert demand.peak == pytest.approx(1830 * MIB, rel=0.02)
    assert seconds is None


def test_what_earlier_runs_have_measured_goes_before_an_estimate_without_a_ratio():
    profile = Profile(None)
    profile.recall({}, Demand(70 * MIB, 0), None)
    demand, _ = profile.expect({}, Estimate(1000 * MIB, 500 * MIB, 10**10))
    assert demand.peak < 100 * MIB


def test_a_trial_without_an_estimate_goes_by_earlier_runs(tmp_path):
    path = tmp_path / ".profiles" / "train.json"
    taught(path, FEW).save()
    assert Profile(path).expect({})[0].persistent >= FEW * 120 * MIB


def test_the_file_stays_small(tmp_path):
    path = tmp_path / ".profiles" / "train.json"
    for start in range(3):
        profile = Profile(path)
        for number in range(KEPT // 2):
            profile.learn({"n": start * 1000 + number}, Demand(MIB, 0), None)
        profile.save()
    assert path.read_text().count('"n"') == KEPT


def test_a_long_run_keeps_no_more_of_its_trials_than_the_file_does(tmp_path):
    profile = Profile(tmp_path / "train.json")
    for number in range(3 * KEPT):
        profile.learn({"n": float(number)}, Demand(MIB, 0), None)
    assert len(profile._samples) == KEPT
    profile.save()
    rows = json.loads((tmp_path / "train.json").read_text())["trials"]
    assert [row[0]["n"] for row in rows] == list(range(2 * KEPT, 3 * KEPT))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"version": 1}', '{"version": 1, "trials": [[1]]}', "\x00"])
def test_a_file_that_is_not_ours_is_no_harm(tmp_path, content):
    path = tmp_path / "train.json"
    path.write_text(content)
    assert Profile(path).expect({}) == (None, None)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("value", [math.inf, math.nan, "much", [1]])
def test_a_figure_that_cannot_be_one_is_no_harm(tmp_path, place, value):
    path = tmp_path / "train.json"
    taught(path, FEW).save()
    content = json.loads(path.read_text())
    content["trials"][1][place] = {"n": value} if place == 0 else value
    path.write_text(json.dumps(content))
    assert Profile(path).expect({"n": 1.0}) == (None, None)


def test_a_folder_that_cannot_be_written_is_no_harm(tmp_path):
    (tmp_path / ".profiles").write_text("")
    profile = Profile(tmp_path / ".profiles" / "train.json")
    profile.learn({}, Demand(MIB, 0), None)
    profile.save()


def test_where_there_is_no_room_for_a_profile_the_last_one_stays(tmp_path, monkeypatch):
    path = tmp_path / "train.json"
    taught(path, FEW).save()
    before = path.read_text()

    def full(self, *_, **__):
        self.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    taught(path, FEW + 1).save()
    assert (path.read_text(), os.listdir(tmp_path)) == (before, ["train.json"])


def test_the_same_code_has_the_same_profile_in_every_process(tmp_path):
    here = profile_path(tmp_path, uses_helper, {"batch": 64}, "cpu").name
    code = (
        "import sys; sys.path.insert(0, 'tests/driver'); import test_profile as t; from pathlib import Path;"
        "from cotune.driver.profile import profile_path;"
        "print(profile_path(Path(), t.uses_helper, {'batch': 64}, 'cpu').name)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # The module's name counts, and is another when pytest imports it.
    assert told.stdout.strip() == here


def test_other_code_constants_or_devices_have_another_profile(tmp_path, monkeypatch):
    def name(trainable=uses_helper, constants=None, hardware="cpu"):
        return profile_path(tmp_path, trainable, constants or {}, hardware).name

    before = name()
    assert name(functools.partial(uses_helper)) == name(functools.partial(uses_helper))
    assert name(functools.partial(uses_helper, model="a")) != name(functools.partial(uses_helper, model="b"))
    assert len({before, name(constants={"batch": 64}), name(hardware="cuda"), name(hungry), name(Steps)}) == 5

    def another():
        return 2

    another.__module__ = __name__
    monkeypatch.setitem(globals(), "helper", another)
    assert name() != before


CODE_ELSEWHERE = {
    "a base class": """
        class Base:
            def step(self):
                return NUMBER
        class trainable(Base):
            pass
    """,
    "a base class's property": """
        class Base:
            @property
            def size(self):
                return NUMBER
        class trainable(Base):
            def step(self):
                return self.size
    """,
    "a class that it names": """
        class Net:
            size = lambda self: NUMBER
        class trainable:
            Model = Net
            def step(self):
                return self.Model().size()
    """,
    "an enclosing function": """
        def made():
            def helper():
                return NUMBER
            def trainable(config):
                return helper()
            return trainable
        trainable = made()
    """,
    "a decorator that hides it": """
        def decorated(function):
            def call(config):
                return function(config)
            return call
        @decorated
        def trainable(config):
            return NUMBER
    """,
}


@pytest.mark.parametrize("script", CODE_ELSEWHERE.values(), ids=list(CODE_ELSEWHERE))
def test_code_counts_that_a_trainable_inherits_or_encloses(tmp_path, script):
    def name(number):
        names = {"__name__": "script"}
        exec(textwrap.dedent(script).replace("NUMBER", str(number)), names)
        return profile_path(tmp_path, names["trainable"], {}, "cpu").name

    assert name(1) == name(1)
    assert name(1) != name(2)


@pytest.mark.parametrize("trainable", [print, Steps(), Steps().setup, lambda config: None, functools.partial(print)])
def test_anything_that_can_be_called_has_a_profile(tmp_path, trainable):
    assert profile_path(tmp_path, trainable, {"data": object()}, "cpu").suffix == ".json"


@dataclass
class Model:
    width: int


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"layers": {"width": 64}}, {"layers": {"width": 4096}}),
        ({64}, {4096}),
        (slice(64), slice(4096)),
        (64j, 4096j),
        (Model(64), Model(4096)),
        (Steps, Model),
        (hungry, helper),
        (min, max),
    ],
)
def test_other_models_have_another_profile(tmp_path, one, other):
    def bound(value):
        return profile_path(tmp_path, functools.partial(uses_helper, model=value), {}, "cpu").name

    def constant(value):
        return profile_path(tmp_path, uses_helper, {"parts": [value]}, "cpu").name

    assert bound(one) == bound(copy.copy(one)) != bound(other)
    assert constant(one) == constant(copy.copy(one)) != constant(other)


def test_a_constant_that_contains_itself_has_a_profile(tmp_path):
    endless = []
    endless.append({"parts": endless})
    endless.append(endless)
    assert profile_path(tmp_path, hungry, {"data": endless}, "cpu").suffix == ".json"


def test_how_many_lanes_paid_holds_for_devices_alike_and_the_last_says_most(tmp_path):
    path = tmp_path / "one.json"
    for capacity, most, lanes in [(80 * GIB, 32, 16), (70 * GIB, 32, 12), (16 * GIB, 32, 4), (16 * GIB, 2, 2)]:
        profile = Profile(path)
        profile.learn({}, Demand(MIB, MIB), 1.0)
        profile.learn_width(capacity, most, lanes)
        profile.save()
    later = Profile(path)
    assert later.begin_with(79 * GIB, 32) == 6
    assert later.begin_with(12 * GIB, 32) == 2
    assert later.begin_with(16 * GIB, 2) == 1
    assert later.begin_with(39 * GIB, 32) == 6
    assert later.begin_with(200 * GIB, 32) == 1
    assert later.begin_with(80 * GIB, 48) == 1


def test_what_the_trials_of_a_lane_share_is_kept(tmp_path):
    path = tmp_path / "one.json"
    for known in (0, 150 * MIB):
        profile = Profile(path)
        assert profile.shared == 0
        profile.learn({}, Demand(MIB, MIB), 1.0)
        profile.shared = known
        profile.save()
    assert Profile(path).shared == 150 * MIB
