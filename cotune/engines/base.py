"""The interface of a body: it carries out the brain's instructions and reports what happened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cotune.packer import DeviceFound, Event, Instruction
from cotune.trial import Estimated, Question, Report, TrialSpec

# What `Engine.poll` returns.
Happened = Event | Report | Question | Estimated


class Engine(ABC):
    """A body: lanes on real, remote or simulated devices.

    `cotune.testing.EngineConformance` is the contract. Only `wake()` may be called from another thread.

    Attributes:
        can_estimate: Whether trials can be estimated before they run.
        uses_gpus: Whether its devices are GPUs.
    """

    can_estimate = False
    uses_gpus = False

    @abstractmethod
    def start(self, is_over: Callable[[], bool] = lambda: False) -> list[DeviceFound]:
        """Starts the engine and returns its devices; none if `is_over()` becomes true while it waits for them."""

    @abstractmethod
    def execute(self, instruction: Instruction, spec: TrialSpec | None = None) -> None:
        """Carries out an instruction; its outcome arrives later as an event.

        Args:
            instruction: What to do; instructions for the trial's owner (`ConcludeTrial`, `RetryTrial`) are ignored.
            spec: The attempt to run, for `StartTrial`.
        """

    @abstractmethod
    def poll(self, timeout: float) -> Sequence[Happened]:
        """Returns what happened since the last call, in order; waits up to `timeout` seconds if nothing has."""

    def estimate(self, trial: int, config: Mapping[str, Any]) -> None:
        """Requests an estimate of a trial, one at a time; an `Estimated` follows, even on failure."""
        raise NotImplementedError

    @abstractmethod
    def verdict(self, trial: int, attempt: int) -> None:
        """Lets an attempt at a trial go on after its last report; to stop it, `StopTrial` is executed first."""

    @abstractmethod
    def answer(self, trial: int, attempt: int, payload: bytes) -> None:
        """Answers an attempt's `Question`.

        Until then the trial waits; its lane-mates run meanwhile, and its lane is not reported as quiet (`LaneQuiet`).
        """

    @abstractmethod
    def wake(self) -> None:
        """Makes a waiting `poll()` return; may be called from any thread or signal handler."""

    @abstractmethod
    def close(self) -> None:
        """Ends all lanes at once, along with the trials in them."""

    @abstractmethod
    def now(self) -> float:
        """The current time in seconds, by the clock of the engine's events."""
