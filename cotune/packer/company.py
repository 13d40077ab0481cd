"""Which trials may run beside each other on a device."""

from __future__ import annotations

from cotune.packer.critical import Critical
from cotune.packer.protection import Protection
from cotune.packer.state import Device
from cotune.packer.trial import Trial


class Company:
    """Forwards the progress of trials to the rules about neighbours; a neighbour must satisfy all of them.

    Attributes:
        protection: Protects trials with priority.
        critical: Protects trials that the sweep would end with.
    """

    def __init__(self, protection: Protection, critical: Critical) -> None:
        self.protection = protection
        self.critical = critical

    def starts(self, trial: Trial, device: Device) -> None:
        """A trial is about to run on a device."""
        self.protection.starts(trial, device)
        self.critical.note(trial, device)

    def ran(self, trial: Trial, device: Device, count: int, seconds: float) -> None:
        """A trial has made `count` iterations in `seconds`; `Trial.beside` then says how many may run beside it."""
        self.protection.ran(trial, device, count, seconds)
        self.critical.note(trial, device)

    def left(self, trial: Trial) -> None:
        """A trial no longer runs."""
        self.protection.left(trial)
        self.critical.left(trial)

    def ended(self, trial: Trial, stopped: bool) -> None:
        """A trial has come to its end, or was stopped."""
        if not stopped:
            self.protection.ended(trial)
        self.critical.ended(trial, stopped)
