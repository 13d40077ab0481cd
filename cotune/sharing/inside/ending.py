"""How an attempt at a trial ended, as its lane tells the driver."""

from __future__ import annotations

import sys
from typing import NamedTuple

from cotune.errors import CotuneError, InputError, NoReport
from cotune.session import TrialStopped
from cotune.sharing.raised import causes, clear_frames, text_of, with_class
from cotune.trial import Outcome


class Ending(NamedTuple):
    """How an attempt ended.

    Attributes:
        outcome: The outcome.
        needed: Bytes the trial would have held, if it ran out of memory and that is known.
        error: Name of the error's class.
        detail: The error in a line.
        final: Whether another attempt is useless.
    """

    outcome: Outcome
    needed: int | None = None
    error: str = ""
    detail: str = ""
    final: bool = False


def ended_by(error: BaseException, is_memory: bool, needed: int | None) -> Ending:
    """The end of an attempt by an error.

    Args:
        error: The error.
        is_memory: Whether memory ran out.
        needed: As for `Ending`.
    """
    text = f"sys.exit({error.code!r}) was called" if isinstance(error, SystemExit) else text_of(error)
    is_ours, kind = isinstance(error, CotuneError), type(error).__name__
    # A user's class may have the name of one of ours.
    name = kind if is_ours else "TrialFailed"
    if is_memory:
        return Ending(Outcome.OUT_OF_MEMORY, needed, name, text[:500])
    detail = text if is_ours else with_class(kind, text[:2000])
    return Ending(Outcome.FAILED, None, name, detail, final=isinstance(error, (InputError, NoReport)))


def own_stop(stopped: TrialStopped) -> InputError:
    """The error of a trial whose trainable has raised `TrialStopped` itself."""
    error = InputError(
        "the trainable raised TrialStopped by itself",
        hint="return to end a trial, raise another exception to fail it",
    )
    error.__cause__ = stopped
    return error


def forget(error: BaseException) -> None:
    """Releases the frames, and so the tensors, that an exception and its causes keep alive."""
    clear_frames(error)
    for cause in causes(error):
        # A class may let nothing be set, such as a frozen dataclass.
        BaseException.with_traceback(cause, None)
    sys.last_value = None
