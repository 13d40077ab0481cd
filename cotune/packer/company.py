"""Who may run beside whom on a device: all rules must agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cotune.packer.protection import Protection
from cotune.packer.state import Device, Trial


class Rule(Protocol):
    """Hears how trials fare, and says whether a trial may get a lane of its own on a device."""

    def starts(self, trial: Trial, device: Device) -> None:
        """A trial is about to run there."""

    def ran(self, trial: Trial, count: int, seconds: float) -> None:
        """It has made so many iterations in so many seconds."""

    def left(self, trial: Trial) -> None:
        """It does not run any more."""

    def ended(self, trial: Trial, stopped: bool) -> None:
        """It has come to its end, or was stopped."""

    def tolerates(self, trial: Trial, device: Device) -> bool:
        """Whether nobody there, nor the trial itself, would suffer more than is allowed."""

    def explain(self, trial: Trial, devices: Sequence[Device]) -> str | None:
        """Why the trial may run on none of these although there is room, if that is so."""


class Company:
    """Asks all rules.

    Attributes:
        protection: That for trials with priority.
    """

    def __init__(self, protection: Protection) -> None:
        self.protection = protection
        self._rules: list[Rule] = [protection]

    def add(self, rule: Rule) -> None:
        """Has another rule agree from now on."""
        self._rules.append(rule)

    @property
    def is_particular(self) -> bool:
        """Whether one trial may be welcome where another, no larger, is not."""
        return self.protection.is_on

    def starts(self, trial: Trial, device: Device) -> None:
        for rule in self._rules:
            rule.starts(trial, device)

    def ran(self, trial: Trial, count: int, seconds: float) -> None:
        for rule in self._rules:
            rule.ran(trial, count, seconds)

    def left(self, trial: Trial) -> None:
        for rule in self._rules:
            rule.left(trial)

    def ended(self, trial: Trial, stopped: bool) -> None:
        for rule in self._rules:
            rule.ended(trial, stopped)

    def tolerates(self, trial: Trial, device: Device) -> bool:
        # Asked for every device that is looked at: a generator would take longer than the rules.
        for rule in self._rules:  # noqa: SIM110
            if not rule.tolerates(trial, device):
                return False
        return True

    def explain(self, trial: Trial, devices: Sequence[Device]) -> str | None:
        return next((why for rule in self._rules if (why := rule.explain(trial, devices)) is not None), None)
