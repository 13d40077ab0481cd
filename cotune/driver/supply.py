"""When the search is asked for trials, and when it is told that those there are have no others to wait for."""

from __future__ import annotations

from cotune.packer import Packer
from cotune.search.proposer import Proposer

ASK_AHEAD = 64


class Supply:
    """Keeps a suggestion ready for every lane, so that a freed one never waits for the sampler.

    Args:
        search: Suggests.
        packer: Knows how many trials could run.
        limit: How many there are to be; None for no limit.
        lockstep: Ask for a trial only when it can start.
        is_blind: The sampler's suggestions do not depend on results.
        proposed: How many there are already.

    Attributes:
        asked: Suggestions that are still to come.
    """

    def __init__(
        self, search: Proposer, packer: Packer, limit: int | None, lockstep: bool, is_blind: bool, proposed: int
    ) -> None:
        self.asked = 0
        self._search = search
        self._packer = packer
        self._limit = limit
        self._ahead = 0 if lockstep else ASK_AHEAD if is_blind else None
        self._proposed = proposed
        self._is_exhausted = self._is_closed = self._is_settling = False

    def ask(self, estimated: int, is_guessing: bool) -> None:
        """Asks for as many as are wanted now.

        Args:
            estimated: Trials that wait for an estimate, of which the packer does not know yet.
            is_guessing: Trials are estimated, and little is known yet of what an estimate is worth.
        """
        if self._is_exhausted or self._is_closed:
            return
        packer = self._packer
        ahead = packer.breadth if self._ahead is None else self._ahead
        if is_guessing:
            # Hints do not change once they are given: one trial at most waits by an estimate of which little is known.
            ahead = min(ahead, 1)
        wanted = packer.seats + ahead - packer.waiting - estimated - self.asked
        if wanted < ahead // 2:
            # Many at once: a sampler that has just been at work is three times as fast.
            return
        if self._limit is not None:
            wanted = min(wanted, self._limit - self._proposed - self.asked)
        if wanted > 0:
            self.asked += wanted
            self._search.ask(wanted)

    @property
    def is_over(self) -> bool:
        """Whether all trials there are to be have been suggested."""
        is_enough = self._limit is not None and self._proposed >= self._limit
        return is_enough or self._is_exhausted or self._is_closed

    def suggested(self) -> None:
        """One has come."""
        self.asked = max(0, self.asked - 1)
        self._proposed += 1

    def exhausted(self) -> None:
        """No more will come, not even what was asked for."""
        self._is_exhausted, self.asked = True, 0

    def close(self) -> None:
        """Asks for no more."""
        self._is_closed = True
        self._search.drop_asks()

    def settle(self) -> None:
        """Where all that are left wait for others to be worse, and there are no others, has the search end it."""
        if self._is_settling or self.asked or not self.is_over or self._is_closed:
            return
        if self._packer.unfinished and self._packer.unfinished == self._packer.held:
            self._is_settling = True
            self._search.settle()

    def settled(self) -> None:
        """The search has said who goes on, if anybody does."""
        self._is_settling = False
