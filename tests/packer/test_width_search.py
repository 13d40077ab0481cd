"""The search for a width under a whole brain, on imagined devices that do as much as an H100 was seen to do."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

import pytest

from cotune.demand import GIB, MIB
from cotune.engines.simulated import Costs, SimulatedEngine, Work
from cotune.engines.simulated.engine import devices
from cotune.packer import (
    AllTrialsAdded,
    ConcludeTrial,
    Packer,
    PackerOptions,
    StartTrial,
    TrialAdded,
)
from cotune.packer.events import Event, Tick
from cotune.trial import Report, TrialSpec

WIDTHS = (1, 2, 4, 8, 16)
# Steps a second of all lanes together at these widths (docs/gpu.md, "Three ways to be parallel").
RATES = {
    "light, MPS": (374, 861, 1534, 3160, 6650),
    "light, slices": (368, 807, 1601, 2442, 2498),
    "CNN, MPS": (395, 791, 994, 1017, 970),
    "transformer, slices": (79, 157, 158, 159, 159),
    "compute-bound, MPS": (76, 84, 84, 85, 86),
    "compute-bound, slices": (76, 68, 68, 68, 69),
}


def rate(rates: tuple[int, ...], lanes: int) -> float:
    above = bisect_left(WIDTHS, lanes)
    if WIDTHS[above] == lanes:
        return rates[above]
    share = (lanes - WIDTHS[above - 1]) / (WIDTHS[above] - WIDTHS[above - 1])
    return rates[above - 1] + share * (rates[above] - rates[above - 1])


class Play:
    """So many trials of some seconds each, played to their end.

    Args:
        ahead: How many are added before they can start; None for all of them.
    """

    def __init__(
        self,
        rates: tuple[int, ...],
        trials: int,
        seconds: float,
        *,
        width: int | None = None,
        ahead: int | None = None,
        gpus: int = 1,
        begin: int = 1,
    ) -> None:
        steps = int(seconds * rates[0])
        work = Work(steps, 1 / rates[0], startup=0.01, persistent=20 * MIB, ephemeral=20 * MIB)
        self.engine = SimulatedEngine(
            devices(gpus, 80 * GIB, 600 * MIB),
            lambda spec: work,
            # A lane tells of its progress five times a second.
            Costs(open=0.7, start=0.003, progress=max(1, int(5 * seconds))),
            speed=lambda loads: rate(rates, len(loads)) / len(loads) / rates[0] if loads else 1.0,
        )
        self.packer = Packer(PackerOptions(width=width))
        self.widest = 1
        self._left, self._trials, self._ahead = trials, trials, ahead
        for found in self.engine.start():
            self._feed(replace(found, width=begin))
        self._add()
        while self.packer.unfinished:
            for happened in self.engine.poll(5.0) or [Tick(self.engine.now())]:
                if not isinstance(happened, Report):
                    self._feed(happened)
            self._add()
        self.makespan = self.engine.now()

    def _add(self) -> None:
        while self._left and (self._ahead is None or self.packer.waiting < self.packer.seats + self._ahead):
            self._left -= 1
            self._feed(TrialAdded(self.engine.now(), self._trials - self._left))
            if not self._left:
                self._feed(AllTrialsAdded(self.engine.now()))

    def _feed(self, event: Event) -> None:
        for instruction in self.packer.handle(event):
            if isinstance(instruction, StartTrial):
                self.engine.execute(instruction, TrialSpec(instruction.trial, 0, {}, 0, Path()))
            elif not isinstance(instruction, ConcludeTrial):
                self.engine.execute(instruction)
        self.widest = max(self.widest, self.packer.breadth)


@pytest.mark.parametrize("what", RATES)
def test_a_long_sweep_takes_hardly_longer_than_with_the_best_number_of_lanes(what: str) -> None:
    rates = RATES[what]
    best = min(Play(rates, 150, 5.0, width=width).makespan for width in WIDTHS)
    for ahead in (None, 1, 0):
        assert Play(rates, 150, 5.0, ahead=ahead).makespan < 1.12 * best, f"{ahead} ahead"


@pytest.mark.parametrize("ahead", [1, 0])
def test_two_devices_take_half_as_long_also_where_trials_come_one_by_one(ahead: int) -> None:
    one, two = (Play(RATES["light, MPS"], 60 * gpus, 3.0, ahead=ahead, gpus=gpus) for gpus in (1, 2))
    assert two.makespan < 1.1 * one.makespan


@pytest.mark.parametrize("what", RATES)
@pytest.mark.parametrize("seconds", [0.6, 3.0])
def test_to_begin_with_half_of_what_paid_before_costs_nothing_and_helps_where_many_pay(
    what: str, seconds: float
) -> None:
    first = Play(RATES[what], 60, seconds)
    again = Play(RATES[what], 60, seconds, begin=max(1, first.packer.proven_widths()[0][2] // 2))
    assert again.makespan < (0.91 if what == "light, MPS" else 1.01) * first.makespan


@pytest.mark.parametrize("seconds", [0.6, 2.0, 5.0, 30.0])
def test_what_four_lanes_do_no_faster_than_two_is_tried_again_and_again_and_never_kept(seconds: float) -> None:
    assert Play(RATES["compute-bound, MPS"], 60, seconds).widest == 4


@pytest.mark.parametrize("seconds", [0.6, 30.0])
def test_what_two_lanes_do_no_faster_is_tried_and_never_kept(seconds: float) -> None:
    rates = RATES["compute-bound, slices"]
    alone, found = (Play(rates, 60, seconds, width=width) for width in (1, None))
    assert found.widest == 2
    assert found.makespan < 1.05 * alone.makespan


@pytest.mark.parametrize("ahead", [None, 1, 0])
def test_sixty_short_light_trials_are_five_times_as_fast_as_one_at_a_time(ahead: int | None) -> None:
    rates = RATES["light, MPS"]
    alone, found = (Play(rates, 60, 0.6, width=width, ahead=ahead) for width in (1, None))
    assert alone.makespan > 5 * found.makespan
