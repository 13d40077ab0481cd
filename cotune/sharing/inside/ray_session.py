"""Makes functions written for Ray Tune run in a lane: `ray.tune.report` and the like reach the running trial.

Ray keeps its session in a module variable, which is replaced once a trial has imported that module; Ray itself is
never started. The names used are those of `ray.train._internal.session._TrainSession`, Ray 2.44 to 2.60.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from cotune import session
from cotune.sharing.inside.after_import import after_import


def serve_ray_tune(threads: int) -> None:
    """Makes Ray Tune's functions work in the trials of this process, each with `threads` threads."""

    def install(module: ModuleType) -> None:
        module._session = RaySession(threads)  # type: ignore[attr-defined]

    after_import("ray.train._internal.session", install)
    let_gpus_be_shared()


def let_gpus_be_shared() -> None:
    """Makes `ray.tune.utils.wait_for_gpu` return at once in the trials of this process.

    It waits until hardly any of a GPU's memory is in use, and raises an error if that does not come. Here a trial has
    neighbours, and begins once its memory is there.
    """

    def wait_for_gpu(*_args: Any, **_kwargs: Any) -> bool:
        return True

    def install(module: ModuleType) -> None:
        # Its code, since modules may have imported the function itself.
        module.wait_for_gpu.__code__ = wait_for_gpu.__code__

    after_import("ray.tune.utils.util", install)


class RaySession:
    """Ray's session, as far as Ray Tune's functions use it, on top of the calling trial's session."""

    # None tells Ray that this is Tune and not a worker of Ray Train.
    world_rank = world_size = local_rank = local_world_size = node_rank = None
    metadata = None

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None) -> None:
        """Reports, then saves the checkpoint, which includes the report it came with."""
        session.report(metrics)
        if checkpoint is not None:
            with checkpoint.as_directory() as saved, session.checkpoint() as path:
                shutil.copytree(saved, path, dirs_exist_ok=True)
        # Nothing that belongs to this report follows, so the trial may end here.
        session.leave_if_over()

    @property
    def loaded_checkpoint(self) -> Any:
        saved = session.restore()
        if saved is None:
            return None
        from ray import tune

        return tune.Checkpoint.from_directory(str(saved))

    @property
    def trial_resources(self) -> Any:
        """The trial's resources in Ray's form: the threads of its lane, and its GPU."""
        from ray import tune

        gpu = {"GPU": 1} if session.device().startswith("cuda") else {}
        return tune.PlacementGroupFactory([{"CPU": self._threads, **gpu}])

    @property
    def trial_id(self) -> str:
        return str(session.trial_id())

    @property
    def trial_name(self) -> str:
        return f"trial_{session.trial_id()}"

    @property
    def experiment_name(self) -> str:
        # <storage>/<run>/trials/<trial>
        folder = session.folder()
        return folder.parents[1].name if folder is not None else ""

    run_id = experiment_name

    @property
    def trial_dir(self) -> str:
        return str(session.folder() or "")
