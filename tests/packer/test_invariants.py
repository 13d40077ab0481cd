"""Whatever happens in whatever order: memory is never overdrawn, no trial is lost, nothing waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from world import MIB, World

from cotune.packer import PackerOptions
from cotune.packer import events as ev
from cotune.packer.policies import POLICIES, make_policy

CONTEXT = 20 * MIB
pick = st.integers(0, 1 << 16)


class Chaos(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.gone: list[tuple[str, int]] = []

    @initialize(
        capacities=st.lists(st.sampled_from([300, 600, 1000]), min_size=1, max_size=3),
        width=st.sampled_from([None, 1, 2, 4]),
        residents=st.integers(1, 3),
        policy=st.sampled_from(list(POLICIES)),
        max_failures=st.integers(0, 2),
        surprise=st.sampled_from([0, 0, 15]),
        patience=st.sampled_from([1, 2, 8]),
        judged=st.booleans(),
        keeps=st.booleans(),
    )
    def begin(
        self,
        capacities: list[int],
        width: int | None,
        residents: int,
        policy: str,
        max_failures: int,
        surprise: int,
        patience: int,
        judged: bool = False,
        keeps: bool = False,
    ) -> None:
        self.keeps = keeps
        options = PackerOptions(
            width=width,
            residents=residents,
            policy=make_policy(policy),
            max_failures=max_failures,
            patience=patience,
            judged=judged,
            iteration_timeout=100.0,
        )
        self.world = World(options)
        for index, capacity in enumerate(capacities):
            real = CONTEXT + surprise * MIB
            self.world.device(f"gpu {index}", capacity * MIB, CONTEXT, real, 2, idle_width=4, opens=1 + 2 * (index % 2))

    # ---- what people do

    @rule(
        persistent=st.integers(1, 300),
        ephemeral=st.integers(0, 300),
        late=st.sampled_from([0, 0, 0, 40, 150]),
        steps=st.sampled_from([1, 2, 3, 4, 5, 20]),
        kind=st.sampled_from(["a", "a", "b"]),
        priority=st.sampled_from([0.0, 0.0, 1.0]),
        explained=st.booleans(),
        seconds=st.sampled_from([0.5, 1.0, 3.0]),
        busy=st.sampled_from([None, 0.2, 0.6, 1.0]),
        hint=st.sampled_from([None, None, 0.6, 1.0, 1.5]),
        splits=st.sampled_from([0, 2, 8]),
        gain=st.sampled_from([0.0, 0.5, 1.0]),
        saves=st.booleans(),
        movable=st.sampled_from([0.0, 0.0, 0.8]),
    )
    def add(
        self,
        persistent: int,
        ephemeral: int,
        late: int,
        steps: int,
        kind: str,
        priority: float,
        explained: bool,
        seconds: float,
        busy: float | None,
        hint: float | None,
        splits: int,
        gain: float,
        saves: bool,
        movable: float,
    ) -> None:
        features = {"size": float(persistent)} if explained else {}
        self.world.add(
            self.count,
            persistent * MIB,
            ephemeral * MIB,
            late=late * MIB,
            steps=steps,
            seconds=seconds,
            busy=busy,
            kind=kind,
            features=features,
            priority=priority,
            hint=hint,
            splits=splits,
            gain=gain,
            saves=saves,
            movable=movable,
        )
        self.count += 1

    @rule(persistent=st.integers(500, 1100), knows=st.booleans())
    def add_huge(self, persistent: int, knows: bool) -> None:
        self.world.add(self.count, persistent * MIB, 30 * MIB, kind="a", features={"size": float(persistent)})
        self.world.jobs[self.count].knows = knows
        self.count += 1

    @precondition(lambda self: self.count)
    @rule(which=pick)
    def withdraw(self, which: int) -> None:
        self.world.withdraw(which % self.count)

    @precondition(lambda self: self.count)
    @rule(which=pick)
    def hold(self, which: int) -> None:
        if left := [trial for trial in self.world.jobs if trial not in self.world.concluded]:
            self.world.hold(left[which % len(left)])

    @precondition(lambda self: self.count)
    @rule(which=pick)
    def release(self, which: int) -> None:
        if held := sorted(self.world.asleep - set(self.world.concluded)):
            self.world.release(held[which % len(held)])

    @rule()
    def hold_all(self) -> None:
        for trial in sorted(set(self.world.running()) - self.world.asleep):
            self.world.hold(trial)

    @rule()
    def release_all(self) -> None:
        for trial in sorted(self.world.asleep - set(self.world.concluded)):
            self.world.release(trial)

    @precondition(lambda self: self.count)
    @rule(which=pick)
    def hold_and_release(self, which: int) -> None:
        """Before it can have paused."""
        if left := [trial for trial in self.world.jobs if trial not in self.world.concluded]:
            self.world.hold(left[which % len(left)])
            self.world.release(left[which % len(left)])

    # ---- what lanes do

    @rule(which=pick, kind=st.integers(0, 3))
    def say_too_late(self, which: int, kind: int) -> None:
        """What was true of an attempt that is over."""
        time = self.world.time
        if outside := [trial for trial, lane in self.world.where.items() if lane is None]:
            trial = outside[which % len(outside)]
            late = (
                ev.TrialPaused(time, trial, MIB, saved=True, movable=MIB),
                ev.TrialParked(time, trial, MIB),
                ev.GrantChanged(time, trial, 4),
                ev.IterationsDone(time, trial, 1, 1.0, MIB, MIB),
            )
            self.world.send(late[kind])

    def _alive(self) -> list[int]:
        inside = [trial for trial in self.world.running() if trial in self.world.lane_of(trial).residents]
        return [trial for trial in inside if self.world.jobs[trial].stopping or not self.world.jobs[trial].paused]

    @rule(which=pick, times=st.integers(1, 4))
    def step(self, which: int, times: int) -> None:
        for _ in range(times):
            if alive := self._alive():
                self.world.step(alive[which % len(alive)])

    @rule(which=pick, times=st.integers(1, 6))
    def deliver(self, which: int, times: int) -> None:
        for _ in range(times):
            if senders := [lane.lane for lane in self.world.lanes.values() if lane.mail]:
                lane = self.world.lanes[senders[which % len(senders)]]
                told = lane.mail[0]
                self.world.deliver(lane.lane)
                if isinstance(told, ev.IterationsDone):
                    self.world.check_condition_of(lane.lane)

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @rule(rounds=st.integers(3, 5))
    def go_on(self, rounds: int) -> None:
        """Long enough for what is idle to be lent."""
        self.world.run_some(rounds)

    @rule(which=pick, final=st.booleans())
    def fail(self, which: int, final: bool) -> None:
        if alive := self._alive():
            self.world.fail(alive[which % len(alive)], final=final)

    @rule(which=pick)
    def crash(self, which: int) -> None:
        if self.world.lanes:
            self.world.crash(list(self.world.lanes)[which % len(self.world.lanes)])

    @rule(which=pick, seconds=st.sampled_from([50.0, 200.0]))
    def quiet(self, which: int, seconds: float) -> None:
        if alive := self._alive():
            trial = alive[which % len(alive)]
            lane = self.world.lane_of(trial)
            self.world.send(ev.LaneQuiet(self.world.time, lane.lane, trial, seconds, lane.held))

    @rule(which=pick, residue=st.integers(0, 120), tainted=st.sampled_from([False, False, False, True]))
    def holds(self, which: int, residue: int, tainted: bool) -> None:
        if lanes := [lane for lane in self.world.lanes.values() if lane.alive]:
            self.world.leave_behind(lanes[which % len(lanes)].lane, residue * MIB, tainted)

    @rule(seconds=st.sampled_from([1.0, 6.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule(seconds=st.sampled_from([4.0, 4000.0]))
    def sleep(self, seconds: float) -> None:
        self.world.sleep(seconds)

    # ---- what devices do

    @rule(which=pick, percent=st.sampled_from([0, 3, 30, 60, 95, 100, 120]))
    def change(self, which: int, percent: int) -> None:
        if names := list(self.world.devices):
            name = names[which % len(names)]
            self.world.change(name, self.world.devices[name].full * percent // 100)

    @precondition(lambda self: self.world.devices)
    @rule(which=pick)
    def lose(self, which: int) -> None:
        name = list(self.world.devices)[which % len(self.world.devices)]
        self.gone.append((name, self.world.devices[name].full))
        self.world.lose(name)

    @precondition(lambda self: self.gone)
    @rule(which=pick, same=st.booleans())
    def come_back(self, which: int, same: bool) -> None:
        name, capacity = self.gone.pop(which % len(self.gone))
        self.world.device(name if same else f"{name} again", capacity, CONTEXT, width=2, idle_width=4)

    @rule()
    def haunt(self) -> None:
        if self.world.ghosts:
            self.world.send(self.world.ghosts.pop(0))

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        if not world.devices:
            self.come_back(0, same=True)
        left = sorted(world.devices.items(), key=lambda item: item[1].full)
        # What others keep of a device for good must not matter where another is as large.
        for name, device in left[self.keeps and len(left) > 1 :]:
            world.change(name, device.full)
        world.run(rounds=60 + 40 * self.count)


# What fails is made smaller first, which takes its time; where each line of it matters is not looked into.
TestChaos = pytest.mark.timeout(900)(Chaos.TestCase)
TestChaos.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def test_one_that_needs_a_lane_of_its_own_gets_the_room_of_those_that_are_paused() -> None:
    state = Chaos()
    one = {"hint": None, "busy": None, "ephemeral": 0, "explained": False, "gain": 0.0, "late": 0, "movable": 0.0}
    one |= {"priority": 0.0, "saves": False, "seconds": 0.5, "splits": 0}
    state.begin(
        capacities=[1000], width=None, residents=1, policy="makespan", max_failures=1, surprise=0, patience=2
    )  # fmt: skip
    state.add_huge(knows=False, persistent=701)
    state.fail(final=False, which=0)
    state.go_on(rounds=4)
    state.add(kind="a", persistent=1, steps=1, **one)
    state.add(kind="b", persistent=136, steps=2, **one)
    state.crash(which=0)
    state.settle()
    state.hold_all()
    # Says if not all come to their ends.
    state.teardown()


def test_a_device_that_grows_is_still_all_of_one_that_must_run_alone() -> None:
    state = Chaos()
    one = {"hint": 1.0, "busy": None, "ephemeral": 0, "explained": False, "gain": 0.0, "late": 0, "movable": 0.0}
    one |= {"priority": 0.0, "saves": False, "seconds": 0.5, "splits": 0}
    state.begin(capacities=[600], width=4, residents=1, policy="fifo", max_failures=1, surprise=0, patience=2)
    state.change(percent=30, which=0)
    state.add(kind="a", persistent=100, steps=2, **one)
    for _ in range(2):
        state.settle()
        state.crash(which=0)
    state.settle()
    state.add(kind="a", persistent=100, steps=2, **one)
    # The world says if it finds room for the second one.
    state.change(percent=100, which=0)
    assert state.world.lane_of(0).device == "gpu 0"
    assert state.world.waiting() == [1]
    state.teardown()
