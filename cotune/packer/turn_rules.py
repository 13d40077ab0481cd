"""Who has the turn in a lane, where it is not passed round."""

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
        ledger: Has the lanes.
        line: Knows what a policy may look at.
    """

    def __init__(self, policy: Policy, ledger: Ledger, line: Line) -> None:
        self._policy = policy
        self._ledger = ledger
        self._line = line

    def _claim(self, trial: Trial) -> tuple[float, ...]:
        """Where a resident stands among those that want the turn: priority, and then as the policy has it."""
        key = self._policy.key(self._line.view(trial)) if self._policy.preempts else ()
        return (-trial.priority, *key)

    def has_turn(self, trial: Trial, lane: Lane) -> bool:
        """Whether a trial would have the turn in this lane, or its part of it; else it would only take memory."""
        others = lane.residents.values()
        if not self._policy.preempts and all(other.priority == trial.priority for other in others):
            return True
        # One by one: of many residents the first or second mostly settles it, for each of many trials that wait.
        claim = self._claim(trial)
        return all(claim < self._claim(other) for other in others)

    def review(self) -> None:
        """Where priorities differ or the policy preempts, the first of a lane's residents has every turn."""
        for lane in [lane for device in self._ledger.stirred for lane in device.lanes.values()]:
            claims = {trial.id: self._claim(trial) for trial in lane.residents.values()}
            if len(claims) < 2 or (not self._policy.preempts and len(set(claims.values())) == 1):
                lane.turn = None
                continue
            first = min(claims, key=claims.__getitem__)
            if first != lane.turn:
                lane.turn = first
                self._ledger.out.append(do.GiveTurn(lane.id, first))
