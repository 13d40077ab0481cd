"""What Tune has asked for, and what of it is to be made good."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cotune.ray_tune.lane_handle import LaneHandle


@dataclass(eq=False)
class Ticket:
    """One request of Tune: a trial that wants to run, runs, or is being run again.

    Attributes:
        number: What the brain calls it.
        trial: Tune's trial.
        lane: Where the brain has put it; None while it waits.
        seated: Tune has been given its handle.
        kwargs: What the Trainable is made with.
        trainable: What it is made from: a number, and the pickled class.
        cleans_up: It is a class of the user's, which may do so for long when it is stopped; a function is just left.
        checkpoint: What an attempt restores, if Tune does not say so itself.
        attempt: Counts the lanes it has been in.
        calls: Counts Tune's calls in this attempt.
        held: Calls that failed by our doing, to be made again.
        answers: Futures of ours that Tune was given as answers.
        refusal: Why it will not run again.
        stopping: Tune has told it to stop.
        over: The brain has concluded it.
    """

    number: int
    trial: Any
    lane: LaneHandle | None = None
    seated: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    trainable: tuple[int, bytes] = (-1, b"")
    cleans_up: bool = False
    checkpoint: Any = None
    attempt: int = 0
    calls: int = 0
    held: list[Held] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    refusal: Exception | None = None
    stopping: bool = False
    over: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.number, self.attempt


@dataclass(frozen=True, slots=True)
class Held:
    """A call of Tune that is to be made again, or refused in the end."""

    method: str
    error: Exception
    again: Callable[[], None]
    refuse: Callable[[Exception], None]
