"""How the end of an attempt by an error is told."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cotune.errors import InputError, NoReport
from cotune.errors import MetricError as Ours
from cotune.session import TrialStopped
from cotune.sharing.inside.ending import Ending, ended_by, forget, own_stop
from cotune.trial import Outcome


class MetricError(Exception):
    """A user's class with the name of one of cotune's."""


@pytest.mark.parametrize(
    ("error", "name", "detail", "final"),
    [
        (ValueError("no"), "TrialFailed", "ValueError: no", False),
        (MetricError("no"), "TrialFailed", "MetricError: no", False),
        (Ours("no"), "MetricError", "no", True),
        (NoReport("no"), "NoReport", "no", True),
        (SystemExit(3), "TrialFailed", "SystemExit: sys.exit(3) was called", False),
        (AssertionError(), "TrialFailed", "AssertionError", False),
    ],
)
def test_errors_of_cotune_keep_their_names(error: BaseException, name: str, detail: str, final: bool) -> None:
    assert ended_by(error, is_memory=False, needed=None) == Ending(Outcome.FAILED, None, name, detail, final)


def test_of_memory_that_ran_out_it_is_told_how_much_was_needed() -> None:
    assert ended_by(MemoryError("all " * 500), is_memory=True, needed=7) == Ending(
        Outcome.OUT_OF_MEMORY, 7, "TrialFailed", ("all " * 500)[:500]
    )


def test_a_stop_that_a_trainable_raises_by_itself_is_an_error_of_its_own() -> None:
    stopped = TrialStopped()
    error = own_stop(stopped)
    assert isinstance(error, InputError)
    assert error.__cause__ is stopped


def test_what_an_error_and_its_causes_refer_to_is_released() -> None:
    def fails(held: object) -> None:
        try:
            raise KeyError
        except KeyError as cause:
            raise ValueError("held by its frames") from cause

    with pytest.raises(ValueError, match="held by its frames") as caught:
        fails(object())
    error = caught.value
    forget(error)
    assert error.__traceback__ is None
    assert error.__cause__ is not None
    assert error.__cause__.__traceback__ is None


def test_an_error_that_lets_nothing_be_set_is_released_too() -> None:
    @dataclass(frozen=True)
    class Diverged(Exception):
        step: int

    with pytest.raises(Diverged) as caught:
        raise Diverged(3)
    forget(caught.value)
    assert caught.value.__traceback__ is None
