"""The errors of trials that the packer has given up, as Tune is told them."""

from __future__ import annotations

from typing import Any, cast

import ray
from ray.exceptions import RayTaskError

from cotune import errors
from cotune.packer import ConcludeTrial

_HINTS = {
    **errors.HINTS,
    "LaneDied": "a native library of the trainable may crash; Ray's worker logs say more",
}


def refusal_of(trial: Any, end: ConcludeTrial) -> Exception:
    """The error of a trial of Tune's, which may keep Tune from trying it again."""
    if end.error == "TrialTooLarge":
        # A retry by Tune would fail in the same way, and without a limit Tune would retry for ever.
        trial.max_failures = max(0, trial.max_failures)
        metadata, allowed = trial.run_metadata, trial.max_failures
        metadata.num_failures = max(metadata.num_failures, allowed)
    error = errors.class_named(end.error)(f"trial {trial.trial_id}: {end.reason}", hint=_HINTS.get(end.error, ""))
    return cast(Exception, RayTaskError("train", str(error), error).as_instanceof_cause())


def behind(error: Exception, refusal: Exception) -> Exception:
    """The refusal of a trial, with the traceback of the call whose error led to it."""
    if not isinstance(error, RayTaskError) or not isinstance(refusal, RayTaskError):
        return refusal
    return cast(Exception, RayTaskError("train", f"{error}\n{refusal}", refusal.cause).as_instanceof_cause())


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def refuses(error: Exception) -> None:
    """A call that fails with an error."""
    raise error
