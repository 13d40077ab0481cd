"""Successive halving that waits: trials pause at rungs, and the best go on."""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable

from cotune.errors import InputError


class AshaPromote:
    """Asynchronous successive halving by promotion (Li et al., MLSys'20, algorithm 2), for `run(pruner=)`.

    A trial pauses at each rung, the steps `min_resource * reduction_factor ** k`. As soon as it is among the best
    1/`reduction_factor` of all that have come to the rung so far, it goes on to the next. Others by pruning
    (`pruner="asha"`) let the first trials go on whatever they are worth, and stop for good what later turns out to be
    good enough; here nothing is decided before it has to be. We differ in that a promoted trial goes on at once where
    it waits, before new trials, not when a worker asks for work.

    Args:
        min_resource: Step of the first rung.
        reduction_factor: Of how many that come to a rung one goes on.

    Raises:
        InputError: `min_resource` is not a whole number of 1 or more, or `reduction_factor` not one of 2 or more.
    """

    def __init__(self, min_resource: int = 1, reduction_factor: int = 4) -> None:
        for name, value, least in (("min_resource", min_resource, 1), ("reduction_factor", reduction_factor, 2)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name}={value!r} is not a whole number of {least} or more", hint=f"write {name}=4")
        self.min_resource = min_resource
        self.reduction_factor = reduction_factor


class Rungs:
    """Who stands on which rung of an `AshaPromote`.

    Args:
        rule: Where the rungs are.
        sign: 1 if smaller is better, -1 if larger.
    """

    def __init__(self, rule: AshaPromote, sign: float) -> None:
        self._rule = rule
        self._sign = sign
        # On each rung, the best first: value and trial. And how many there have gone on, or are over.
        self._entries: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        self._gone: defaultdict[int, set[int]] = defaultdict(set)
        self._at: dict[int, int] = {}
        self._waiting: set[int] = set()

    @property
    def waiting(self) -> frozenset[int]:
        """Trials that wait on a rung."""
        return frozenset(self._waiting)

    def report(self, trial: int, step: int, value: float) -> tuple[bool, list[int]]:
        """Takes in a report.

        Returns:
            Whether the trial is to wait now, and which trials go on that have waited.
        """
        if math.isnan(value):
            return trial in self._waiting, []
        promoted: list[int] = []
        if trial not in self._waiting:
            self._at.setdefault(trial, 0)
            while trial not in self._waiting and step >= self._step(self._at[trial]):
                rung = self._at[trial]
                insort(self._entries[rung], (self._sign * value, trial))
                self._waiting.add(trial)
                promoted += self._promote(rung)
        return trial in self._waiting, [other for other in promoted if other != trial]

    def restore(self, trial: int, values: Iterable[tuple[int, float]], is_over: bool) -> None:
        """Takes in a trial of an earlier session; who of those that wait goes on is decided in `settle`."""
        rung, has_gone_on = -1, True
        for step, value in values:
            if math.isnan(value):
                continue
            # It made no report past the one on a rung before it was promoted from there.
            has_gone_on = True
            if step >= self._step(rung + 1):
                self._gone[rung].add(trial)
                rung, has_gone_on = rung + 1, False
                insort(self._entries[rung], (self._sign * value, trial))
        if rung < 0:
            return
        self._at[trial] = rung
        if is_over:
            self.over(trial)
        elif has_gone_on:
            self._go_on(trial, rung)
        else:
            self._waiting.add(trial)

    def settle(self) -> None:
        """Lets all those go on that have been restored and are good enough."""
        for rung in list(self._entries):
            self._promote(rung)

    def over(self, trial: int) -> None:
        """The trial will not go on; its place on the rungs stands."""
        self._waiting.discard(trial)
        if trial in self._at:
            self._gone[self._at.pop(trial)].add(trial)

    def best_waiting(self) -> int | None:
        """Lets the best trial on the highest rung go on, whatever its share; None if nobody waits."""
        for rung in sorted(self._entries, reverse=True):
            for _, trial in self._entries[rung]:
                if trial in self._waiting and self._at.get(trial) == rung:
                    self._go_on(trial, rung)
                    return trial
        return None

    def _promote(self, rung: int) -> list[int]:
        entries, gone = self._entries[rung], self._gone[rung]
        room = len(entries) // self._rule.reduction_factor
        chosen = [trial for _, trial in entries[:room] if trial not in gone]
        for trial in chosen:
            self._go_on(trial, rung)
        return chosen

    def _go_on(self, trial: int, rung: int) -> None:
        self._gone[rung].add(trial)
        self._waiting.discard(trial)
        self._at[trial] = rung + 1

    def _step(self, rung: int) -> int:
        return self._rule.min_resource * int(self._rule.reduction_factor**rung)
