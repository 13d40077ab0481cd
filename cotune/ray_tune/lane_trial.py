"""A Ray Tune trial inside a lane: its Trainable, its thread, its turn.

Tune's calls (`train`, `save`, `restore`, `stop`) wait in an inbox and are served by one thread, so that thread-local
state is the trial's own. A call has the turn of the lane while it runs. A function trainable has a second thread,
Ray's, which runs the user's function while a `train` call waits for its next report: to the lane the two threads are
one trial, and exactly one of them runs at a time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import InvalidStateError
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ray import cloudpickle

from cotune import session
from cotune.errors import InputError
from cotune.ray_tune import _private
from cotune.ray_tune.inbox import Call, Inbox, NotHere
from cotune.session import Session, TrialStopped
from cotune.sharing import wire
from cotune.sharing.inside.ending import Ending, own_stop
from cotune.sharing.inside.resident import ResidentTrial
from cotune.sharing.raised import clear_frames, text_of, with_class
from cotune.trainable import trace_of
from cotune.trial import Outcome, TrialSpec

if TYPE_CHECKING:
    from cotune.sharing.inside.host import Host

UNWIND_WITHIN = 5.0
# Tune decides by its calls, so a trial waits for no verdict.
NO_SEAT = -1
# Calls that need the state the trial has been trained to.
_SAVES = ("save", "export_model")
# Calls of Tune itself. What others call, such as a callback, may fail without harm to the trial, as in Ray.
_TUNES = ("train", "train_buffered", "restore", "reset", *_SAVES)

log = logging.getLogger(__name__)


class OutOfMemory(RuntimeError):
    """An attempt at a trial needed more memory than its lane may hold; the brain decides what follows."""


class LaneTrial(ResidentTrial):
    """One attempt at a Ray Tune trial.

    Args:
        host: The lane.
        number: The trial's number in the brain.
        seed: Seeds torch, numpy and random.
        folder: The trial's folder.
        make: Makes the Trainable; called by the trial's thread when it has its first turn.
        inbox: Tune's calls to it.
        reached: Iterations of the trial that Tune has results of.
    """

    def __init__(
        self, host: Host, number: int, seed: int, folder: Path, make: Callable[[], Any], inbox: Inbox, reached: int = 0
    ) -> None:
        super().__init__(host, NO_SEAT, TrialSpec(number, 0, {}, seed, folder))
        self.inbox = inbox
        self.ray_session: Any = None
        self.runner: threading.Thread | None = None
        self.has_launched = False
        self._make: Callable[[], Any] | None = make
        self._reached = reached
        self._trainable: Any = None
        self._abandoned = False
        self._finished = False
        self._call: Call | None = None

    # ---- the turn

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        self.host.turns.take(self)
        try:
            yield
        finally:
            self.host.turns.give_up(self)

    def left_threads(self, known: frozenset[threading.Thread], residents: Sequence[Session]) -> bool:
        runner = self.runner
        if self._abandoned or (runner is not None and runner.is_alive()):
            return True
        # Ray starts threads of its own as it needs them; they are not the trial's.
        self._threads.update(thread for thread in threading.enumerate() if _is_rays(thread))
        return super().left_threads(known, residents)

    # ---- boundaries

    def _boundary(self) -> None:
        if self._abandoned:
            # The meters belong to another trial by now.
            raise TrialStopped
        super()._boundary()

    def iteration_done(self) -> None:
        """Counts the report about to be made as an iteration, unless an optimizer step has made one."""
        self.leave_if_over()
        self._count_report()
        # The turn ends with the report in any case.
        turn_end, self._turn_end = self._turn_end, float("inf")
        self._boundary()
        self._turn_end = turn_end

    def follow(self) -> None:
        """Called by Ray's thread, before it runs the user's function: its delays are the trial's."""
        self._meter.follow()

    # ---- what the trainable may call of cotune

    def report(self, metrics: Mapping[str, Any], step: int | None) -> None:
        if self.ray_session is None:
            raise InputError("cotune.report() was called in a class Trainable", hint="return the metrics from step()")
        self.ray_session.report(dict(metrics))

    def checkpoint(self) -> NoReturn:
        raise InputError("cotune.checkpoint() is for cotune.run()", hint="pass ray.tune.report(..., checkpoint=...)")

    def restore(self) -> NoReturn:
        raise InputError("cotune.restore() is for cotune.run()", hint="call ray.tune.get_checkpoint()")

    def observe(self, value: float, step: int) -> NoReturn:
        raise InputError("an Optuna trial was used in one of Ray Tune", hint="give the study to cotune.optimize()")

    def runs_here(self) -> bool:
        return super().runs_here() or threading.current_thread() is self.runner

    def ask(self, payload: bytes) -> NoReturn:
        raise InputError("an Optuna trial was used in one of Ray Tune", hint="give the study to cotune.optimize()")

    # ---- the thread

    def run(self) -> None:
        """Serves the driver's calls until the trial is over; a lane in which this raises is useless."""
        session.bind(self)
        while not self._over and (call := self.inbox.take()) is not None:
            self._serve(call)
        self.inbox.close()

    def _serve(self, call: Call) -> None:
        self._call = call
        with self._turn():
            try:
                answer = self._perform(call)
            except BaseException as error:
                self._unwinds(error)
                self._settle(call, error=self._fails(error))
            else:
                self._settle(call, answer)

    def _settle(self, call: Call, answer: Any = None, error: BaseException | None = None) -> None:
        # The call of an abandoned trial is answered already.
        with contextlib.suppress(InvalidStateError):
            if error is not None:
                call.answer.set_exception(error)
            else:
                call.answer.set_result(answer)

    def _perform(self, call: Call) -> Any:
        if call.method == "stop":
            self._shut_down()
            self._end(Ending(Outcome.DONE if self._finished else Outcome.STOPPED))
            return None
        if self._make is not None:
            make, self._make = self._make, None
            self._threads = set(threading.enumerate())
            self.host.prepare_thread()
            self.leave_if_over()
            self._trainable = make()
            if call.method in _SAVES and not _private.is_function(self._trainable):
                self._catch_up()
        if call.method == "save" and _private.has_nothing_to_save(self._trainable):
            # The state to save was lost with another lane.
            return _private.no_result()
        answer = getattr(self._trainable, call.method)(*call.args, **call.kwargs)
        if call.method.startswith("train"):
            self.leave_if_over()
            last = answer[-1] if isinstance(answer, list) and answer else answer
            if isinstance(last, Mapping) and _private.RESULT_DUPLICATE in last:
                # The function has returned: its memory is freed before Tune gets to stopping the trial.
                self._shut_down()
                self._end(Ending(Outcome.DONE))
            else:
                self._finished = isinstance(last, Mapping) and bool(last.get(_private.DONE))
                if self.ray_session is None:
                    self.iteration_done()
        return answer

    def _catch_up(self) -> None:
        """Trains up to the iteration that Tune has seen: the state to save was lost with another lane."""
        while self._trainable.iteration < self._reached:
            result = self._trainable.train()
            self.leave_if_over()
            self.iteration_done()
            if result.get(_private.DONE):
                return
            # No report ends the turn here.
            self.host.turns.pass_on(self)

    # ---- the end

    def _fails(self, error: BaseException) -> BaseException:
        """Ends the attempt after a call raised, unless it was not one of Tune's; returns the error for the caller."""
        if isinstance(error, TrialStopped) and not self.is_stopping:
            # The trainable raised it by itself. Tune would take it for a call to make again, for ever.
            error = own_stop(error)
        if self.is_stopping:
            self._shut_down()
            self._end(Ending(Outcome.STOPPED))
            return NotHere("stopped")
        is_memory, needed = self._ran_out(error)
        text, is_sound = text_of(error)[:2000], self.host.survives(error)
        if is_sound:
            clear_frames(error)
        if isinstance(error, Exception) and is_sound and not is_memory and self._is_asked_by_others():
            # The cap may have been lifted to look into the error.
            self.host.memory.trim(others_run=True)
            return _encodable(error)
        self._shut_down()
        if self.host.survives(error):
            clear_frames(error)
        if is_memory:
            self._end(Ending(Outcome.OUT_OF_MEMORY, needed, "TrialFailed", text[:500]))
            return _led_to(OutOfMemory(text), error)
        words = with_class(type(error).__name__, text)
        self._end(Ending(Outcome.FAILED, None, "TrialFailed", words))
        return _encodable(error if isinstance(error, Exception) else _led_to(RuntimeError(words), error))

    def _is_asked_by_others(self) -> bool:
        """Whether the present call is not one of Tune's own, to a Trainable that is there."""
        return self._call is not None and self._call.method not in _TUNES and self._trainable is not None

    def _shut_down(self) -> None:
        """Lets the Trainable clean up, and its thread end."""
        trainable, self._trainable = self._trainable, None
        if trainable is not None:
            try:
                trainable.stop()
            except BaseException as error:
                if not self._over and not isinstance(error, (SystemExit, TrialStopped)):
                    log.warning("cleaning up after a trial raised %s: %s", type(error).__name__, text_of(error))
                clear_frames(error)
        self.ray_session = None
        if self.runner is not None and self.runner.is_alive():
            threading.Thread.join(self.runner, UNWIND_WITHIN)

    def abandon(self) -> bool:
        """Gives up on a thread that reaches no boundary; the lane takes no further trial after that.

        Called by another thread. The turn goes to the next resident; the thread that had it is stopped if it ever
        reaches a boundary.

        Returns:
            False if the trial does not have the turn: then its thread is not stuck, but waits for its turn.
        """
        with self._booking:
            if self._over or self.host.turns.holder is not self:
                return False
            self.is_stopping = self._over = self._abandoned = True
        self.context = None
        host = self.host
        host.trial_over(self, is_stuck=True)
        ending = Ending(Outcome.STOPPED, None, "TrialFailed", "abandoned", final=True)
        host.send(wire.encode_object(wire.Kind.ENDED, (self.trial, *ending)))
        self.inbox.close()
        host.turns.revoke(self)
        if self._call is not None:
            self._settle(self._call, error=NotHere("it did not come to an iteration boundary after it was killed"))
        return True


def _is_rays(thread: threading.Thread) -> bool:
    return thread.name.startswith(("ray_", "asyncio", "fsspec"))


def _led_to(told: Exception, error: BaseException) -> Exception:
    """An error to tell Tune instead of another, whose traceback Ray prints only if it is the cause."""
    told.__cause__ = error
    return told


def _encodable(error: Exception) -> Exception:
    """The error, or its traceback as one where Ray cannot tell the driver.

    The lane would die of characters that Ray cannot encode, and the whole experiment of what cannot be unpickled: Tune
    takes what Ray says then for a crash of its own.
    """
    text = trace_of(error)
    escaped = text.encode(errors="backslashreplace").decode()
    return error if escaped == text and _can_be_pickled(error) else RuntimeError(escaped)


def _can_be_pickled(error: Exception) -> bool:
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return False
    return True
