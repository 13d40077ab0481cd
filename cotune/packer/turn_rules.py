"""Which resident has the turn in a lane, if turns do not rotate."""

from __future__ import annotations

from cotune.packer import instructions as do
from cotune.packer.ledger import Ledger
from cotune.packer.line import Line
from cotune.packer.policies import Policy
from cotune.packer.state import Lane
from cotune.packer.trial import Trial


class TurnRules:
    """Gives a lane's turns to one resident where priorities differ or the policy preempts.

    Args:
        policy: Orders residents of the same priority, if it preempts.
        ledger: Holds the lanes.
        line: Provides a policy's view of a trial.
    """

    def __init__(self, policy: Policy, ledger: Ledger, line: Line) -> None:
        self._policy = policy
        self._ledger = ledger
        self._line = line

    def _claim(self, trial: Trial) -> tuple[float, ...]:
        """Sort key of a resident for the turn: whoever is to leave, then priority, then the policy's key."""
        key = self._policy.key(self._line.view(trial)) if self._policy.preempts else ()
        return (not trial.withdrawn, -trial.priority, *key)

    def has_turn(self, trial: Trial, lane: Lane) -> bool:
        """Whether a trial would get the turn in this lane, or a share of it; otherwise it would only take memory."""
        others = lane.residents.values()
        if not self._policy.preempts and all(other.priority == trial.priority for other in others):
            return True
        # One at a time: the first or second of many residents usually decides, and this runs for many waiting trials.
        claim = self._claim(trial)
        return all(claim < self._claim(other) for other in others)

    def review(self) -> None:
        """If priorities differ or the policy preempts, gives every turn to the first of a lane's residents."""
        for lane in [lane for device in self._ledger.stirred for lane in device.lanes.values()]:
            if lane.turn not in lane.residents:
                # The body has given the turns back to all.
                lane.turn = None
            if len(lane.residents) < 2:
                continue
            claims = {trial.id: self._claim(trial) for trial in lane.residents.values()}
            are_equal = not self._policy.preempts and len(set(claims.values())) == 1
            first = None if are_equal else min(claims, key=claims.__getitem__)
            if first != lane.turn:
                lane.turn = first
                self._ledger.out.append(do.GiveTurn(lane.id, first))
