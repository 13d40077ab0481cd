"""Successive halving that waits: trials pause at rungs, and the best go on."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator

from cotune.errors import InputError


class AshaPromote:
    """Asynchronous successive halving by promotion (Li et al., MLSys'20, algorithm 2), for `run(pruner=)`.

    A trial pauses at each rung, the steps `min_resource * reduction_factor ** k`. As soon as it is among the best
    1/`reduction_factor` of all trials that have reached the rung so far, it goes on to the next. ASHA by pruning
    (`pruner="asha"`) lets the first trials go on whatever their value, and stops for good trials that later turn out
    to be good enough; here a trial is only paused. Unlike in the paper, a promoted trial goes on at once where it
    waits, before new trials, not when a worker asks for work.

    Args:
        min_resource: Step of the first rung; if left out, the first step above 0 that is reported.
        reduction_factor: One in so many trials that reach a rung goes on.

    Raises:
        InputError: `min_resource` is not a whole number of 1 or more, or `reduction_factor` not one of 2 or more.
    """

    def __init__(self, min_resource: int | None = None, reduction_factor: int = 4) -> None:
        first = 1 if min_resource is None else min_resource
        for name, value, least in (("min_resource", first, 1), ("reduction_factor", reduction_factor, 2)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name}={value!r} is not a whole number of {least} or more", hint=f"write {name}=4")
        self.min_resource = min_resource
        self.reduction_factor = reduction_factor


class Rungs:
    """Which trials stand on which rung of an `AshaPromote`.

    Args:
        rule: Decides where the rungs are.
        sign: 1 if smaller is better, -1 if larger.
    """

    def __init__(self, rule: AshaPromote, sign: float) -> None:
        self._rule = rule
        self._first = rule.min_resource
        self._sign = sign
        # For each rung: value and trial, the best first; those of them that still stand there, and perhaps some that do
        # not any more; and the trials that have gone on from there, or are over.
        self._entries: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        self._standing: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        self._gone: defaultdict[int, set[int]] = defaultdict(set)
        # The rung that a trial waits on or will come to next, and its last report: step and value.
        self._at: dict[int, int] = {}
        self._last: dict[int, tuple[int, float]] = {}
        self._waiting: set[int] = set()

    @property
    def waiting(self) -> frozenset[int]:
        """Trials that wait on a rung."""
        return frozenset(self._waiting)

    def report(self, trial: int, step: int, value: float) -> tuple[bool, list[int]]:
        """Takes in a report.

        Returns:
            Whether the trial is to wait now, and which waiting trials go on.
        """
        if math.isnan(value):
            return trial in self._waiting, []
        self._note(trial, step, value)
        promoted = dict.fromkeys(self._climb(trial))
        waiting = self._waiting
        return trial in waiting, [other for other in promoted if other != trial and other not in waiting]

    def restore(self, trial: int, values: Iterable[tuple[int, float]], is_over: bool) -> None:
        """Takes in a trial of an earlier session; which waiting trials go on is decided in `settle`."""
        for step, value in values:
            if math.isnan(value):
                continue
            if trial in self._last:
                # A report after another shows that the trial was promoted from the rungs up to that one.
                self._pass(trial)
            self._note(trial, step, value)
        if trial in self._last and self._is_on_rung(trial):
            self._enter(trial)
        if is_over:
            self.over(trial)

    def settle(self) -> None:
        """Promotes all restored trials that are good enough."""
        for rung in list(self._entries):
            for _ in self._promote(rung):
                pass

    def over(self, trial: int) -> None:
        """Notes that a trial will not go on; its places on the rungs stay."""
        self._waiting.discard(trial)
        if trial in self._at:
            self._gone[self._at.pop(trial)].add(trial)
            del self._last[trial]

    def best_waiting(self) -> int | None:
        """Promotes the best waiting trial on the highest rung, whatever its share; None if no trial waits."""
        for rung in sorted(self._entries, reverse=True):
            for _, trial in self._entries[rung]:
                if trial in self._waiting:
                    self._go_on(trial, rung)
                    self._pass(trial)
                    return trial
        return None

    def _note(self, trial: int, step: int, value: float) -> None:
        if self._first is None and step > 0:
            # A rung before it would be passed with the same report.
            self._first = step
        self._at.setdefault(trial, 0)
        self._last[trial] = step, value

    def _is_on_rung(self, trial: int) -> bool:
        first = self._first
        return first is not None and self._last[trial][0] >= first * self._rule.reduction_factor ** self._at[trial]

    def _enter(self, trial: int) -> None:
        """Has the trial wait on its rung, with the value of its last report."""
        rung, entry = self._at[trial], (self._sign * self._last[trial][1], trial)
        insort(self._entries[rung], entry)
        insort(self._standing[rung], entry)
        self._waiting.add(trial)

    def _pass(self, trial: int) -> None:
        """Lets the trial go on past all rungs up to its last report."""
        while self._is_on_rung(trial):
            self._enter(trial)
            self._go_on(trial, self._at[trial])

    def _climb(self, trial: int) -> Iterator[int]:
        """Lets the trial pass rungs up to its last report, as long as it is good enough; yields who is promoted."""
        while trial not in self._waiting and self._is_on_rung(trial):
            self._enter(trial)
            yield from self._promote(self._at[trial])

    def _promote(self, rung: int) -> Iterator[int]:
        entries, standing, gone = self._entries[rung], self._standing[rung], self._gone[rung]
        room = len(entries) // self._rule.reduction_factor
        # All in the room would be looked at again at every report, and they become more with every trial.
        while standing and (standing[0][1] in gone or bisect_left(entries, standing[0]) < room):
            _, trial = standing.pop(0)
            if trial not in gone:
                self._go_on(trial, rung)
                yield trial
                yield from self._climb(trial)

    def _go_on(self, trial: int, rung: int) -> None:
        self._gone[rung].add(trial)
        self._waiting.discard(trial)
        self._at[trial] = rung + 1
