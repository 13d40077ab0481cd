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
    1/`reduction_factor` of all trials that have reached the rung so far, it goes on to the next. ASHA by pruning
    (`pruner="asha"`) lets the first trials go on whatever their value, and stops for good trials that later turn out
    to be good enough; here a trial is only paused. Unlike in the paper, a promoted trial goes on at once where it
    waits, before new trials, not when a worker asks for work.

    Args:
        min_resource: Step of the first rung.
        reduction_factor: One in so many trials that reach a rung goes on.

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
    """Which trials stand on which rung of an `AshaPromote`.

    Args:
        rule: Decides where the rungs are.
        sign: 1 if smaller is better, -1 if larger.
    """

    def __init__(self, rule: AshaPromote, sign: float) -> None:
        self._rule = rule
        self._sign = sign
        # For each rung: value and trial, the best first; and the trials that have gone on from there, or are over.
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
            Whether the trial is to wait now, and which waiting trials go on.
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
        """Takes in a trial of an earlier session; which waiting trials go on is decided in `settle`."""
        rung, has_gone_on = -1, True
        for step, value in values:
            if math.isnan(value):
                continue
            # A report after the one on a rung shows that the trial was promoted from there.
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
        """Promotes all restored trials that are good enough."""
        for rung in list(self._entries):
            self._promote(rung)

    def over(self, trial: int) -> None:
        """Notes that a trial will not go on; its places on the rungs stay."""
        self._waiting.discard(trial)
        if trial in self._at:
            self._gone[self._at.pop(trial)].add(trial)

    def best_waiting(self) -> int | None:
        """Promotes the best waiting trial on the highest rung, whatever its share; None if no trial waits."""
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
