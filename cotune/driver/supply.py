"""When the search is asked for trials, and when it is asked to settle trials that wait for others."""

from __future__ import annotations

from cotune.driver.options import SweepOptions
from cotune.packer import Packer
from cotune.search.proposer import Proposer

ASK_AHEAD = 64


class Supply:
    """Keeps a suggestion ready for every lane, so that a freed one never waits for the sampler.

    Args:
        search: Suggests trials.
        packer: Knows how many trials could run.
        options: How many trials there are in total, and how far ahead they may be asked for.
        proposed: Trials that exist already.

    Attributes:
        asked: Suggestions asked for and not received yet.
    """

    def __init__(self, search: Proposer, packer: Packer, options: SweepOptions, proposed: int) -> None:
        self.asked = 0
        self._search = search
        self._packer = packer
        self._limit = options.trials
        self._ahead = 0 if options.lockstep else ASK_AHEAD if options.is_blind else None
        self._proposed = proposed
        self._is_exhausted = self._is_closed = self._is_settling = False

    def ask(self, estimated: int, is_guessing: bool) -> None:
        """Asks for as many trials as are wanted now.

        Args:
            estimated: Trials that wait for an estimate and that the packer does not know yet.
            is_guessing: Whether trials are estimated while estimates are not calibrated yet.
        """
        if self._is_exhausted or self._is_closed:
            return
        packer = self._packer
        ahead = packer.breadth if self._ahead is None else self._ahead
        if is_guessing:
            # A hint does not change once it is given, so at most one trial waits with an uncalibrated estimate.
            ahead = min(ahead, 1)
        wanted = packer.seats + ahead - packer.waiting - estimated - self.asked
        if wanted < ahead // 2:
            # Asks for many at once: a sampler that has just been at work is three times as fast.
            return
        if self._limit is not None:
            wanted = min(wanted, self._limit - self._proposed - self.asked)
        if wanted > 0:
            self.asked += wanted
            self._search.ask(wanted)

    @property
    def is_over(self) -> bool:
        """Whether no more trials will be suggested."""
        is_enough = self._limit is not None and self._proposed >= self._limit
        return is_enough or self._is_exhausted or self._is_closed

    def suggested(self) -> None:
        """Notes that a suggestion has come."""
        self.asked = max(0, self.asked - 1)
        self._proposed += 1

    def exhausted(self) -> None:
        """Notes that no more suggestions come, not even those asked for."""
        self._is_exhausted, self.asked = True, 0

    def close(self) -> None:
        """Stops asking for trials."""
        self._is_closed = True
        self._search.drop_asks()

    def settle(self) -> None:
        """Has the search settle trials if all unfinished ones are held and no other trial is to come."""
        if self._is_settling or self.asked or not self.is_over or self._is_closed:
            return
        if self._packer.unfinished and self._packer.unfinished == self._packer.held:
            self._is_settling = True
            self._search.settle()

    def settled(self) -> None:
        """Notes that the search has settled: a trial goes on, or none will."""
        self._is_settling = False
