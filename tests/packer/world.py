"""A body without processes: carries out the brain's instructions and answers when a test says so.

What a lane really may hold is tracked apart from the brain's books: a growth counts from the moment it is asked
for, a shrink only once its `LaneResized` was delivered, a lane until its `LaneLost` was.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace

from cotune.demand import MIB, Demand
from cotune.packer import Packer, PackerOptions
from cotune.packer import events as ev
from cotune.packer import instructions as do
from cotune.packer.events import Outcome
from cotune.packer.state import IDLE, MOST_PAUSED
from cotune.packer.trial import padded

__all__ = ["MIB", "Job", "World", "WorldDevice", "WorldLane"]


@dataclass
class Job:
    """What a trial really is: bytes and iterations; `late` more ephemeral bytes from the third iteration on.

    One that does not know (`knows`) cannot tell what it was refused.
    """

    trial: int
    persistent: int
    ephemeral: int
    steps: int = 4
    late: int = 0
    seconds: float = 1.0
    busy: float | None = None
    splits: int = 0
    gain: float = 1.0
    paces: dict[int, float] = field(default_factory=dict)
    done: int = 0
    stopping: bool = False
    concurrency: int = 1
    granted: int | None = None
    saves: bool = False
    movable: int = 0
    knows: bool = True
    pausing: bool = False
    paused: bool = False
    parked: int = 0

    @property
    def most(self) -> int:
        return self.persistent + self.ephemeral + self.late

    @property
    def now(self) -> int:
        return self.concurrency * (self.ephemeral + (self.late if self.done >= 2 else 0))

    @property
    def pace(self) -> float:
        """Seconds of an iteration: as said, or by `gain`, how much of a further micro-batch at once is won."""
        if self.concurrency in self.paces:
            return self.paces[self.concurrency]
        return self.seconds / (1 + self.gain * (self.concurrency - 1))


@dataclass
class WorldLane:
    """A lane as it is: it does at once what it is told, but word of that takes its time."""

    lane: int
    device: str
    quota: int
    confirmed: int
    context: int
    residue: int = 0
    leaves: int = 0
    unanswered: list[int] = field(default_factory=list)
    residents: dict[int, Job] = field(default_factory=dict)
    mail: deque[ev.Event] = field(default_factory=deque)
    alive: bool = True
    served: bool = False
    stuck: int = 0

    @property
    def bound(self) -> int:
        """The most it may hold until something is confirmed."""
        return max([self.confirmed, *self.unanswered])

    @property
    def held(self) -> int:
        return self.context + self.residue + sum(job.persistent - job.parked for job in self.residents.values())


@dataclass
class WorldDevice:
    capacity: int
    full: int
    context: int
    real_context: int


class World:
    """Plays the body of one `Packer`.

    Args:
        options: For the packer.
        checked: Whether every answer of the packer is held against the world's own books.
    """

    def __init__(self, options: PackerOptions | None = None, checked: bool = True) -> None:
        self.options = options or PackerOptions()
        self.packer = Packer(self.options)
        self.checked = checked
        self.time = 0.0
        self.opening = 0.0
        self.devices: dict[str, WorldDevice] = {}
        self.lanes: dict[int, WorldLane] = {}
        self.asleep: set[int] = set()
        self.ghosts: list[ev.Event] = []
        self.jobs: dict[int, Job] = {}
        self.where: dict[int, int | None] = {}
        self.concluded: dict[int, do.ConcludeTrial] = {}
        self.started: list[tuple[int, int]] = []
        self.retries: list[do.RetryTrial] = []
        self.log: list[do.Instruction] = []
        self._held: dict[str, int] = {}

    # ---- what a test does

    def device(
        self,
        name: str,
        capacity: int,
        context: int = 0,
        real_context: int | None = None,
        width: int = 16,
        idle_width: int = 0,
        shared: int = 0,
        opens: int = 99,
    ) -> None:
        self.devices[name] = WorldDevice(capacity, capacity, context, context if real_context is None else real_context)
        found = ev.DeviceFound(self.time, name, capacity, context, width, idle_width=idle_width, shared=shared)
        self.send(replace(found, opens=opens))

    def change(self, name: str, capacity: int) -> list[do.Instruction]:
        device = self.devices[name]
        device.capacity, device.full = capacity, max(device.full, capacity)
        return self.send(ev.DeviceChanged(self.time, name, capacity))

    def lose(self, name: str) -> list[do.Instruction]:
        """The device goes; its lanes can only say late that they are gone."""
        del self.devices[name]
        for lane in [lane for lane in self.lanes.values() if lane.device == name]:
            # What a trial has said there is of an attempt that is over, and would be taken for the next one's.
            late = [mail for mail in lane.mail if isinstance(mail, ev.LaneEvent)]
            self.ghosts += [*late, ev.LaneLost(self.time, lane.lane, None, "gone")]
            del self.lanes[lane.lane]
        return self.send(ev.DeviceLost(self.time, name))

    def add(
        self,
        trial: int,
        persistent: int = 0,
        ephemeral: int = 0,
        *,
        steps: int = 4,
        late: int = 0,
        seconds: float = 1.0,
        busy: float | None = None,
        kind: str = "",
        features: dict[str, float] | None = None,
        priority: float = 0.0,
        hint: float | None = None,
        knows_busy: bool = False,
        max_steps: int | None = None,
        splits: int = 0,
        gain: float = 1.0,
        saves: bool = False,
        movable: float = 0.0,
        lane_deaths: int = 0,
    ) -> list[do.Instruction]:
        """A trial; with `hint`, its owner expects it to need that many times what it will, and may know its share."""
        self.jobs[trial] = Job(trial, persistent, ephemeral, steps, late, seconds, busy, splits, gain)
        self.jobs[trial].saves, self.jobs[trial].movable = saves, int(persistent * movable)
        self.where[trial] = None
        share = busy if knows_busy else None
        expected = Demand(int(persistent * hint), int(ephemeral * hint), share) if hint else None
        length = steps * seconds * hint if hint else None
        added = ev.TrialAdded(self.time, trial, kind, features or {}, priority, expected, length, max_steps)
        return self.send(replace(added, lane_deaths=lane_deaths))

    def withdraw(self, trial: int) -> list[do.Instruction]:
        return self.send(ev.TrialWithdrawn(self.time, trial))

    def hold(self, trial: int) -> list[do.Instruction]:
        self.asleep.add(trial)
        return self.send(ev.TrialHeld(self.time, trial))

    def release(self, trial: int) -> list[do.Instruction]:
        self.asleep.discard(trial)
        return self.send(ev.TrialReleased(self.time, trial))

    def step(self, trial: int) -> None:
        """One iteration of a running trial; what comes of it waits in its lane's mail."""
        lane = self.lane_of(trial)
        job = lane.residents[trial]
        if job.stopping:
            return self._end(lane, job, Outcome.STOPPED)
        assert not job.paused, "a paused trial took a step"
        at_once = job.concurrency
        if at_once > 1 and lane.held + job.now > lane.quota:
            job.concurrency = 1
            self._mail(lane, ev.GrantChanged(self.time, trial, 1, at_once))
        if lane.held + job.now > lane.quota:
            needed = job.persistent + job.now if job.knows else None
            return self._end(lane, job, Outcome.OUT_OF_MEMORY, needed)
        self._mail(
            lane,
            ev.IterationsDone(self.time, trial, 1, job.pace, job.persistent, job.now, job.busy, job.splits, at_once),
        )
        job.done += 1
        if job.granted is not None:
            job.concurrency, job.granted = job.granted, None
            self._mail(lane, ev.GrantChanged(self.time, trial, job.concurrency))
        if job.done >= job.steps:
            self._end(lane, job, Outcome.DONE)
        elif job.pausing:
            job.pausing, job.paused, job.concurrency, job.granted = False, True, 1, None
            self._mail(lane, ev.TrialPaused(self.time, trial, job.persistent, job.saves, job.movable))

    def fail(self, trial: int, *, final: bool = False) -> None:
        lane = self.lane_of(trial)
        self._end(lane, lane.residents[trial], Outcome.FAILED, detail="ValueError: no", final=final)

    def crash(self, lane: int, holder: int | None = None, refused: int | None = None) -> None:
        """The lane's process dies of itself."""
        dying = self.lanes[lane]
        if dying.alive:
            dying.alive = False
            dying.residents.clear()
            self._mail(dying, ev.LaneLost(self.time, lane, holder, "killed by signal 11", refused=refused))

    def leave_behind(self, lane: int, residue: int, tainted: bool = False) -> list[do.Instruction]:
        """The lane says what ended trials left in it: at once, or with the next end if none was since a trial began."""
        holder = self.lanes[lane]
        holder.leaves = residue
        if holder.served:
            holder.residue = residue
        return self.send(ev.LaneHolds(self.time, lane, 0, holder.residue, tainted))

    def deliver(self, lane: int) -> list[do.Instruction]:
        """The oldest message of one lane."""
        sender = self.lanes[lane]
        event = sender.mail.popleft()
        if isinstance(event, ev.LaneResized):
            sender.unanswered.pop(0)
            sender.confirmed = event.quota
        elif isinstance(event, ev.LaneLost):
            del self.lanes[lane]
        return self.send(event)

    def settle(self) -> None:
        """Delivers everything, answers to answers too."""
        while waiting := [lane.lane for lane in self.lanes.values() if lane.mail]:
            self.deliver(waiting[0])

    def go(self, trial: int, iterations: int = 1) -> None:
        """Some iterations, everything being delivered at once."""
        for _ in range(iterations):
            self.step(trial)
            self.settle()

    def finish(self, trial: int) -> None:
        """Runs the trial to its end, or to where it leaves its lane."""
        lane = self.lane_of(trial)
        while trial in lane.residents:
            self.go(trial)

    def run(self, rounds: int = 1000) -> int:
        """Everything answers promptly until all trials are concluded; the rounds that took."""
        for count in range(rounds):
            self.settle()
            if len(self.concluded) == len(self.jobs):
                return count
            self.round()
            self.settle()
            if self.packer.unfinished and self.packer.unfinished == self.packer.held:
                # As a sweep does it: nobody is left who could change the order.
                for trial in [trial for trial in self.jobs if trial not in self.concluded]:
                    (self.release if trial % 2 else self.withdraw)(trial)
        left = [trial for trial in self.jobs if trial not in self.concluded]
        raise AssertionError(f"not over after {rounds} rounds: {[(t, self.why(t)) for t in left]}")

    def wait(self, seconds: float) -> list[do.Instruction]:
        """Time passes, tick by tick."""
        said: list[do.Instruction] = []
        while seconds > 0:
            said += self.sleep(min(seconds, 1.0))
            seconds -= 1.0
        return said

    def sleep(self, seconds: float) -> list[do.Instruction]:
        """Time passes in which nobody runs, this side included."""
        self.time += seconds
        return self.send(ev.Tick(self.time))

    def run_some(self, rounds: int) -> None:
        for _ in range(rounds):
            self.settle()
            self.round()
        self.settle()

    def round(self) -> None:
        """One iteration of every trial that runs."""
        for trial in self.running():
            if self.where[trial] is not None and trial in self.lane_of(trial).residents:
                job = self.jobs[trial]
                if job.stopping or not job.paused:
                    self.step(trial)
        self.wait(1.0)

    # ---- what a test asks

    def lane_of(self, trial: int) -> WorldLane:
        lane = self.where[trial]
        assert lane is not None, f"trial {trial} does not run: {self.why(trial)}"
        return self.lanes[lane]

    def running(self) -> list[int]:
        return [trial for trial, lane in self.where.items() if lane is not None]

    def waiting(self) -> list[int]:
        return [t for t, lane in self.where.items() if lane is None and t not in self.concluded]

    def why(self, trial: int) -> str | None:
        return self.packer.why_waiting(trial)

    def outcome(self, trial: int) -> Outcome | None:
        return self.concluded[trial].outcome if trial in self.concluded else None

    def error(self, trial: int) -> str:
        return self.concluded[trial].error

    def held(self, device: str) -> int:
        return sum(lane.bound for lane in self.lanes.values() if lane.device == device)

    def could_not_fit(self, trial: int) -> bool:
        """Whether it needs more than every device has, less the tenth that other programs may keep for good."""
        most, devices = self.jobs[trial].most, self.devices.values()
        return all(device.real_context + most > max(device.capacity, 0.9 * device.full) for device in devices)

    # ---- carrying out

    def send(self, event: ev.Event) -> list[do.Instruction]:
        instructions = self.packer.handle(event)
        for instruction in instructions:
            self._carry_out(instruction)
        self.log += instructions
        if self.checked:
            self.check()
        return instructions

    def _carry_out(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.OpenLane(lane, device, quota):
                assert lane not in self.lanes
                opened = WorldLane(lane, device, quota, quota, self.devices[device].real_context)
                self.lanes[lane] = opened
                self._mail(opened, ev.LaneReady(self.time + self.opening, lane, opened.context))
            case do.ResizeLane(lane, quota):
                assert quota > 0
                resized = self.lanes[lane]
                resized.quota = max(quota, min(resized.quota, max(resized.held, resized.stuck)))
                resized.unanswered.append(resized.quota)
                self._mail(resized, ev.LaneResized(self.time, lane, resized.quota))
            case do.CloseLane(lane, kill):
                closed = self.lanes[lane]
                assert kill or not closed.residents, "closed a lane with trials in it"
                if closed.alive:
                    closed.alive = False
                    closed.residents.clear()
                    self._mail(closed, ev.LaneLost(self.time, lane, None, "closed"))
            case do.StartTrial(trial, lane):
                assert trial not in self.concluded
                assert self.where[trial] is None, "started while it runs"
                self.where[trial] = lane
                job = self.jobs[trial]
                assert trial not in self.asleep, "started though it is held"
                job.done, job.stopping, job.concurrency, job.granted = 0, False, 1, None
                job.pausing, job.paused, job.parked = False, False, 0
                self.started.append((trial, lane))
                if self.lanes[lane].alive:
                    self.lanes[lane].served &= bool(self.lanes[lane].residents)
                    self.lanes[lane].residents[trial] = job
            case do.StopTrial(trial):
                self.jobs[trial].stopping = True
            case do.PauseTrial(trial):
                job = self.jobs[trial]
                assert not job.pausing, "told to pause twice"
                assert not job.paused
                job.pausing = True
            case do.ResumeTrial(trial):
                self._carry_out_resume(trial)
            case do.ParkTrial(trial):
                self._carry_out_park(trial)
            case do.GrantTrial(trial, concurrency):
                self._carry_out_grant(trial, concurrency)
            case do.GiveTurn(lane, trial):
                assert trial is None or trial in self.packer._ledger.lanes[lane].residents
                assert len(self.packer._ledger.lanes[lane].residents) > 1
            case do.RetryTrial(trial):
                assert self.where[trial] is not None, "retried though it did not run"
                self.where[trial] = None
                self.retries.append(instruction)
            case do.ConcludeTrial(trial):
                assert trial not in self.concluded, "concluded twice"
                self.where[trial] = None
                self.concluded[trial] = instruction
                if instruction.error == "TrialTooLarge":
                    assert self.could_not_fit(trial), "given up though a device is large enough"
            case _:
                raise AssertionError(f"unknown instruction {instruction}")

    def _carry_out_resume(self, trial: int) -> None:
        job, where = self.jobs[trial], self.where[trial]
        assert trial not in self.asleep, "resumed though it is held"
        assert where is not None
        lane = self.lanes[where]
        assert job.paused, "resumed though it runs"
        # What it was granted before the brain heard of the pause is void.
        job.paused, job.parked, job.granted = False, 0, None
        if lane.alive and trial in lane.residents:
            begun = lane.held - sum(other.persistent for other in lane.residents.values() if not other.done)
            assert begun <= lane.quota, "what was parked does not fit its lane any more"

    def _carry_out_park(self, trial: int) -> None:
        job, where = self.jobs[trial], self.where[trial]
        assert where is not None
        lane = self.lanes[where]
        if lane.alive and trial in lane.residents:
            assert job.paused
            assert job.movable > job.parked == 0
            job.parked = job.movable
            self._mail(lane, ev.TrialParked(self.time, trial, job.parked))

    def _carry_out_grant(self, trial: int, concurrency: int) -> None:
        job, where = self.jobs[trial], self.where[trial]
        assert job.splits, "granted to a trial that has no micro-batches"
        assert concurrency >= 1
        assert where is not None
        lane = self.lanes[where]
        if lane.alive and trial in lane.residents:
            assert job.granted is None, "told before it has answered"
            job.granted = concurrency
            if concurrency > 1:
                needs = lane.held + concurrency * job.ephemeral
                assert needs <= lane.quota or len(lane.residents) > 1, "granted beyond the lane's quota"

    def _mail(self, lane: WorldLane, event: ev.Event) -> None:
        lane.mail.append(event)

    def _end(
        self,
        lane: WorldLane,
        job: Job,
        outcome: Outcome,
        needed: int | None = None,
        detail: str = "",
        final: bool = False,
    ) -> None:
        del lane.residents[job.trial]
        lane.served = True
        if lane.leaves != lane.residue:
            lane.residue = lane.leaves
            self._mail(lane, ev.LaneHolds(self.time, lane.lane, 0, lane.residue))
        self._mail(lane, ev.TrialEnded(self.time, job.trial, outcome, needed, detail=detail, final=final))

    # ---- what must always hold

    def check(self) -> None:
        self._check_memory()
        self._check_trials()
        self._check_books()
        self._check_no_idle_room()
        self._check_grants()

    def _check_grants(self) -> None:
        """Nobody waits for room that a grant holds: whoever has one has been told to give it back, or is about to."""
        grants = self.packer._grants
        for grant in grants._grants.values():
            assert not set(self.waiting()) - self.asleep or grant.asked == 1 or grant.unanswered
        for device in self.packer._ledger.devices.values():
            running = [trial for lane in device.lanes.values() for trial in lane.residents.values()]
            for trial in running:
                assert trial.granted == 1 or trial.id in grants._grants
        for trial, job in self.jobs.items():
            if job.concurrency > 1 and self.where[trial] is not None and trial in self.lane_of(trial).residents:
                assert self.packer._trials[trial].granted >= job.concurrency

    def _check_memory(self) -> None:
        for name, device in self.devices.items():
            held, before = self.held(name), self._held.get(name, 0)
            assert held <= device.capacity or held <= before, f"{name}: {held} of {device.capacity} granted"
            self._held[name] = held

    def _check_trials(self) -> None:
        for trial in self.jobs:
            state, lane = self.packer._trials.get(trial), self.where[trial]
            assert (state.lane.id if state is not None and state.lane is not None else None) == lane
            assert (self.why(trial) is None) == (lane is not None or trial in self.concluded)
        assert self.packer.unfinished == len(self.jobs) - len(self.concluded)
        assert self.packer.waiting == len([t for t in self.waiting() if t not in self.asleep])
        asleep = [t for t in self.asleep if t not in self.concluded]
        assert self.packer.held <= len(asleep)

    def _check_books(self) -> None:
        seen: set[int] = set()
        for device in self.packer.snapshot().devices:
            assert device.device in self.devices
            assert device.capacity == self.devices[device.device].capacity
            assert device.taken == sum(lane.quota for lane in device.lanes)
            for view in device.lanes:
                real = self.lanes[view.lane]
                seen.add(view.lane)
                assert real.device == device.device
                assert view.quota >= real.bound
                assert view.quota == real.bound or real.unanswered
                inside = [t for t, lane in self.started_in(view.lane) if lane == view.lane]
                assert sorted([*view.residents, *view.paused]) == sorted(inside)
                assert len(view.residents) <= self.options.residents
                assert len(inside) <= self.options.residents + MOST_PAUSED, "more than a lane has seats"
        assert seen == set(self.lanes)

    def started_in(self, lane: int) -> list[tuple[int, int]]:
        """Trials in a lane, in the order in which they were started there."""
        order: dict[int, int] = {}
        for trial, where in self.started:
            order.pop(trial, None)
            order[trial] = where
        return [(trial, where) for trial, where in order.items() if where == lane and self.where[trial] == lane]

    def _check_no_idle_room(self) -> None:
        """No waiting trial with a known demand could be placed; written apart from `Fitting`."""
        brain = self.packer
        if brain._line._outdated:
            return
        pending = any(lane.unanswered or not lane.alive for lane in self.lanes.values())
        for trial_id in self.waiting():
            if trial_id in self.asleep:
                continue
            trial = brain._trials[trial_id]
            brain._line._predictor.appraise(trial)
            demand = trial.expected
            if demand is None or trial.wants_all:
                continue
            for device in brain._ledger.devices.values():
                lanes = list(device.lanes.values())
                if any(lane.closing or self.lanes[lane.id].unanswered for lane in lanes):
                    continue
                if device.reserved_for not in (None, trial):
                    continue
                free = device.capacity - sum(lane.quota for lane in lanes)
                running = [lane for lane in lanes if lane.residents]
                if any(other.exclusive or other.alone for lane in running for other in lane.residents.values()):
                    continue
                if trial.exclusive and running:
                    continue
                everyone = [trial, *(other for lane in running for other in lane.residents.values())]
                if running and any(one.priority > 0 for one in everyone):
                    # Neighbours are chosen, then; see test_protection.py.
                    continue
                choosy = len(brain._ledger.devices) > 1 and all(one.busy is not None for one in everyone)
                if running and choosy and self.options.policy.spares_critical:
                    # The same; see test_critical.py.
                    continue
                used = sum(max(one.load for one in lane.residents.values()) for lane in running)
                if len(running) < min(device.width.width, math.inf if used < IDLE else device.width.limit):
                    is_busy_opening = sum(not lane.ready for lane in lanes) >= device.opens
                    new = device.context + device.shared + demand.peak
                    assert is_busy_opening or new > free, f"{trial_id} fits a new lane"
                    for lane in lanes:
                        if not lane.residents and not lane.retiring and not trial.is_apart:
                            if len(lane.paused) > MOST_PAUSED:
                                continue
                            asleep = sum(t.rest.taken for t in lane.paused.values())
                            room = lane.quota - lane.context - lane.shared - lane.residue - asleep + free
                            assert free < 0 or demand.peak > room, f"{trial_id} fits idle lane {lane.id}"
                    continue
                for lane in [] if pending or trial.is_apart or self.options.policy.preempts else running:
                    others = list(lane.residents.values())
                    measured = [t.grown(t.demand) for t in others if t.demand and not t.alone]
                    if lane.retiring or len(measured) < len(others):
                        continue
                    if any(other.granted > 1 for other in others):
                        continue
                    if len(others) >= self.options.residents or any(t.floor for t in others):
                        continue
                    if len(lane.paused) > MOST_PAUSED or len({t.priority for t in [trial, *others]}) > 1:
                        continue
                    base = lane.context + lane.shared + lane.residue
                    base += sum(t.rest.taken for t in lane.paused.values())
                    held = sum(padded(d.persistent) for d in measured) + demand.persistent
                    peak = max(demand.ephemeral, *(padded(d.ephemeral) for d in measured))
                    assert free < 0 or base + held + peak > lane.quota + free, f"{trial_id} fits lane {lane.id}"

    def check_condition_of(self, number: int) -> None:
        """Salus's condition: what measured trials need together fits their lane, or no room is left to grow."""
        lane = self.packer._ledger.lanes.get(number)
        demands = [trial.demand for trial in lane.residents.values() if trial.demand] if lane else []
        if lane is None or lane.closing or not demands or len(demands) < len(lane.residents):
            return
        need = lane.context + lane.shared + lane.residue + sum(t.rest.taken for t in lane.paused.values())
        need += sum(padded(d.persistent) for d in demands) + max(padded(d.ephemeral) for d in demands)
        assert need <= lane.asked or need - lane.quota > lane.device.capacity - lane.device.taken
