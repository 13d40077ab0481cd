"""Faults of Ray Tune that show in lanes, where trials start and go on sooner: its methods are replaced once a process.

Each replacement calls the original, and holds for all experiments in the process.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotune.ray_tune import _private


@functools.cache
def mend() -> None:
    """Mends all that does not depend on the experiment."""
    _keep_checkpoints()
    _end_whole_brackets()
    _pause_while_saving()
    _keep_events()
    _keep_rows()


def _keep_checkpoints() -> None:
    """Makes Tune register a checkpoint only once that it saves twice, as it does with PBT.

    Otherwise the same directory is registered twice; `num_to_keep` deletes the older entry, and the directory with it.
    """
    register = _private.CheckpointManager.register_checkpoint

    @functools.wraps(register)
    def register_checkpoint(self: Any, checkpoint_result: Any) -> None:
        path = checkpoint_result.checkpoint.path
        self._checkpoint_results = [known for known in self._checkpoint_results if known.checkpoint.path != path]
        register(self, checkpoint_result)

    _private.CheckpointManager.register_checkpoint = register_checkpoint


class _Spared:
    """Checkpoints that Tune wants to delete, but from which a trial is still to go on."""

    def __init__(self, delete: Callable[[Any, str], None]) -> None:
        self._delete = delete
        self._found: dict[str, Any] = {}
        self.controllers: weakref.WeakSet[Any] = weakref.WeakSet()

    def delete(self, fs: Any, fs_path: str) -> None:
        """Replaces Ray's own: deletes the checkpoint now, or in a later call once no trial awaits it."""
        self._found[fs_path] = fs
        awaited, unsure = self._awaited()
        for path in [path for path in self._found if path not in awaited and not path.startswith(unsure)]:
            # What is gone already, as after a restore, is no fault of the trial whose checkpoint comes next.
            with contextlib.suppress(FileNotFoundError):
                self._delete(self._found.pop(path), path)

    def _awaited(self) -> tuple[set[str], tuple[str, ...]]:
        """Paths of awaited checkpoints, and folders of trials whose checkpoint PBT has asked for and not yet learnt."""
        paths, unsure = set(), []
        for controller in list(self.controllers):
            live = controller.get_live_trials()
            # Those of an interrupted experiment count as live for as long as its controller is there.
            found = [trial.checkpoint for trial in live if not trial.is_finished()]
            states = getattr(controller._scheduler_alg, "_trial_state", {})
            for trial in live:
                asked = getattr(states.get(trial), "last_checkpoint", None)
                if isinstance(asked, _private.ray_session._FutureTrainingResult):
                    answer = asked.resolve(block=False)
                    asked = answer and answer.checkpoint
                    if answer is None:
                        unsure.append(f"{trial.path}/")
                found.append(asked)
            paths |= {checkpoint.path for checkpoint in found if checkpoint is not None}
        return paths, tuple(unsure)


def keep_awaited_checkpoints(controller: Any) -> None:
    """Makes `num_to_keep` spare a checkpoint that PBT has given to another trial, which is still to go on from it.

    Otherwise later or better checkpoints of the first trial may replace it before, and the other trial fails. May be
    called more than once.
    """
    delete = _private.checkpoint_manager._delete_fs_path
    spared = getattr(delete, "__self__", None)
    if not isinstance(spared, _Spared):
        spared = _Spared(delete)
        _private.checkpoint_manager._delete_fs_path = spared.delete
    spared.controllers.add(controller)


def _end_whole_brackets() -> None:
    """Makes HyperBand, when it ends a bracket, also stop trials that are about to be paused.

    HyperBand stops paused trials only. If two trials reach the last rung at once, the first is still being saved when
    the second ends the bracket: the first is paused afterwards, and Tune waits for it for ever.
    """
    cleanup = _private.hyperband._Bracket.cleanup_full

    @functools.wraps(cleanup)
    def cleanup_full(self: Any, tune_controller: Any) -> None:
        cleanup(self, tune_controller)
        for trial in list(self.current_trials()):
            if trial.is_saving:
                tune_controller.stop_trial(trial)

    _private.hyperband._Bracket.cleanup_full = cleanup_full


def _pause_while_saving() -> None:
    """Makes Tune forget that it was to stop a trial once it is paused.

    PBT with `synch=True` pauses a trial to exploit another while the save for its last pause is still in flight. Tune
    then notes a stop for when that save is there, and forgets the save: the stop would follow the next one, which the
    trial makes after it has gone on, and it would end early without an error.
    """
    pause = _private.tune_controller.TuneController._schedule_trial_pause

    @functools.wraps(pause)
    def schedule_trial_pause(self: Any, trial: Any, should_checkpoint: bool = True) -> None:
        pause(self, trial, should_checkpoint)
        if not should_checkpoint:
            self._cached_trial_decisions.pop(trial.trial_id, None)

    _private.tune_controller.TuneController._schedule_trial_pause = schedule_trial_pause


def _keep_events() -> None:
    """Makes Tune's TensorBoard logger begin a file of its own whenever a trial goes on.

    Their names have the time in whole seconds. Trials go on sooner in lanes than with actors of their own, and the
    second file of the same second takes the place of the first.
    """
    start = _private.TBXLoggerCallback.log_trial_start

    @functools.wraps(start)
    def log_trial_start(self: Any, trial: Any) -> None:
        trial.init_local_path()
        begun = len(list(Path(trial.local_path).glob("events.out.tfevents.*")))
        writer = self._summary_writer_cls
        if begun:
            self._summary_writer_cls = functools.partial(writer, filename_suffix=f".{begun}")
        try:
            start(self, trial)
        finally:
            self._summary_writer_cls = writer

    _private.TBXLoggerCallback.log_trial_start = log_trial_start


def _keep_rows() -> None:
    """Makes Tune's loggers go on with their own file when a trial goes on, if it is there.

    They replace it with the copy that was uploaded last, and lose the rows since. Trials go on sooner in lanes than the
    next upload.
    """
    restore = _private.LoggerCallback._restore_from_remote

    @functools.wraps(restore)
    def restore_from_remote(self: Any, file_name: str, trial: Any) -> None:
        if not Path(trial.local_path, file_name).is_file():
            restore(self, file_name, trial)

    _private.LoggerCallback._restore_from_remote = restore_from_remote
