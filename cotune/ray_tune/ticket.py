"""Requests of Tune, and failed calls that are to be made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cotune.ray_tune.actor_lane import ActorLane


@dataclass(eq=False)
class Ticket:
    """One request of Tune: a trial that wants to run, runs, or is being run again.

    Attributes:
        number: The trial's number in the brain.
        trial: Tune's trial.
        lane: The lane the brain has put the trial in; None while it waits.
        seated: Whether Tune has been given the trial's handle.
        kwargs: Arguments of the Trainable's constructor.
        trainable: The Trainable's class, pickled, with a number.
        cleans_up: Whether the Trainable is a user's class, whose clean-up may take long; a function is just left.
        checkpoint: The checkpoint an attempt restores, if Tune does not restore one itself.
        attempt: Number of lanes the trial has been in.
        calls: Number of Tune's calls in this attempt.
        held: Calls that failed because of the lane, to be made again.
        answers: The broker's own futures that Tune was given as answers.
        refusal: The error because of which the trial will not run again.
        stopping: Whether Tune has told the trial to stop.
        over: Whether the brain has concluded the trial.
        lost: Number of lanes that died before Tune had the last answer of a trial that was over.
    """

    number: int
    trial: Any
    lane: ActorLane | None = None
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
    lost: int = 0

    @property
    def key(self) -> tuple[int, int]:
        return self.number, self.attempt


@dataclass(frozen=True, slots=True)
class Held:
    """A failed call of Tune, to be made again or refused in the end."""

    method: str
    error: Exception
    again: Callable[[], None]
    refuse: Callable[[Exception], None]
