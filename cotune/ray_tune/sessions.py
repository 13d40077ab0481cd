"""Makes Ray's session, otherwise one per process, one per trial."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from typing import Any

from cotune import session
from cotune.ray_tune import _private
from cotune.ray_tune.lane_trial import LaneTrial
from cotune.session import TrialStopped
from cotune.sharing.raised import clear_frames


def current_trial() -> LaneTrial | None:
    """The trial whose session is current in the calling thread; None if there is none."""
    trial = session.current()
    return trial if isinstance(trial, LaneTrial) else None


def _current_session() -> Any:
    """Ray's session of the calling thread's trial; None if there is none."""
    trial = current_trial()
    return trial.ray_session if trial is not None else None


class _Router:
    """Replaces Ray's session of the process; forwards to the session of the calling trial."""

    def __bool__(self) -> bool:
        return _current_session() is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(_current_session(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if (own := _current_session()) is not None:
            setattr(own, name, value)


class LaneRaySession(_private.ray_session._TrainSession):  # type: ignore[misc]
    """Ray's session of a function trainable; its thread belongs to a trial in a lane."""

    def reset(self, training_func: Callable[[], Any], *args: Any, **kwargs: Any) -> None:
        trial = current_trial()
        assert trial is not None
        self._trial = trial

        def run() -> Any:
            session.bind(trial)
            trial.host.prepare_thread()
            trial.follow()
            try:
                return training_func()
            except TrialStopped as stopped:
                clear_frames(stopped)
                # The train() call that waits for a result need not wait for a time-out.
                with contextlib.suppress(queue.Full):
                    self.result_queue.put_nowait(_private.last_result())
            finally:
                session.bind(None)

        super().reset(run, *args, **kwargs)
        trial.runner = self.training_thread
        self.training_thread.name = f"trial-{trial.trial}-function"

    def start(self) -> None:
        with self._trial.host.stacks.full():
            super().start()

    def report(self, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        if _private.RESULT_DUPLICATE not in metrics:
            self._trial.iteration_done()
        super().report(metrics, *args, **kwargs)


def route_sessions() -> None:
    """Gives every trial of this process a session of its own. Called once per process."""

    def init_session(*args: Any, **kwargs: Any) -> None:
        trial = current_trial()
        assert trial is not None
        trial.ray_session = LaneRaySession(*args, **kwargs)

    def shutdown_session() -> None:
        trial = current_trial()
        if trial is not None:
            trial.ray_session = None

    _private.ray_session._session = _Router()
    _private.function_trainable.init_session = init_session
    _private.function_trainable.shutdown_session = shutdown_session
