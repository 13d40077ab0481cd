"""What a body is: it does what the brain says, and says what happened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cotune.packer import DeviceFound, Event, Instruction
from cotune.trial import Estimated, Question, Report, TrialSpec

# What a body has to say.
Happened = Event | Report | Question | Estimated


class Engine(ABC):
    """A body: lanes on real, remote or imagined devices.

    `cotune.testing.EngineConformance` says what each must do. Only one thread uses an engine, but for `wake()`.

    Attributes:
        can_estimate: Whether trials can be estimated before they run.
        uses_gpus: Whether its devices are GPUs.
    """

    can_estimate = False
    uses_gpus = False

    @abstractmethod
    def start(self, is_over: Callable[[], bool] = lambda: False) -> list[DeviceFound]:
        """Begins, and gives the devices it has; perhaps none, if it has to wait for them and all is over meanwhile."""

    @abstractmethod
    def execute(self, instruction: Instruction, spec: TrialSpec | None = None) -> None:
        """Carries out an instruction; its outcome is an event later on.

        Args:
            instruction: What to do; one that is meant for the owner (`ConcludeTrial`, `RetryTrial`) is ignored.
            spec: What to run, with `StartTrial`.
        """

    @abstractmethod
    def poll(self, timeout: float) -> Sequence[Happened]:
        """What happened, in order; waits up to `timeout` seconds for something to happen."""

    def estimate(self, trial: int, config: Mapping[str, Any]) -> None:
        """Requests an estimate of a trial, one at a time; an `Estimated` comes, whatever happens."""
        raise NotImplementedError

    @abstractmethod
    def verdict(self, trial: int, attempt: int) -> None:
        """Lets an attempt at a trial go on after its last report; a stop is sent before it with `StopTrial`."""

    @abstractmethod
    def answer(self, trial: int, attempt: int, payload: bytes) -> None:
        """Answers an attempt's `Question`; until then it waits, without being quiet or keeping others from running."""

    @abstractmethod
    def wake(self) -> None:
        """Makes a `poll()` that waits return; from any thread or signal handler."""

    @abstractmethod
    def close(self) -> None:
        """Ends every lane at once, whatever runs in them."""

    @abstractmethod
    def now(self) -> float:
        """The clock of its events, in seconds."""
