"""An actor per trial, on a measured fraction of a GPU: for trainables that cannot run in lanes.

Uses only Ray's public API: each trial's process measures its own peak and reports it with its results; the next trial
asks for the fraction that these measurements predict. The first trial asks for a whole GPU.
"""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune

from cotune.packer.prediction import Prediction
from cotune.ray_tune.features import features
from cotune.ray_tune.forks import end_forks_on_sigterm
from cotune.sharing.cuda import CONTEXT_GUESS
from cotune.sharing.inside.ray_session import let_gpus_be_shared
from cotune.sharing.raised import out_of_memory

SHARE = "cotune_gpu_share"
LEAST = 0.01
_DUPLICATE = "__duplicate__"


class Fractions:
    """Decides what fraction of a GPU each trial asks for."""

    def __init__(self) -> None:
        self._shares = Prediction(floor=LEAST)
        self._numbers: dict[str, int] = {}

    def prepare(self, trial: Any) -> None:
        """Makes a trial, before it is queued, ask for the fraction it is expected to need, and measure its peak."""
        request = trial.placement_group_factory
        # A trial that asks for several GPUs gets them: a fraction of one would not do.
        if len(request.bundles) > 1 or not 0 < request.required_resources.get("GPU", 0) <= 1:
            return
        if trial.is_finished():
            # Of a restored experiment: its old failure says nothing that its measurements would not.
            return
        trainable = trial.get_trainable_cls()
        if not hasattr(trainable, "measures_for_cotune"):
            tune.register_trainable(trial.trainable_name, measuring(trainable))
        if _ran_out_of_memory(trial):
            self._observe(trial, 2 * request.required_resources["GPU"])
        share = self._shares.estimate(features(trial.config))
        fraction = 1.0 if share is None else min(1.0, math.ceil(share * 100) / 100)
        trial.update_resources(tune.PlacementGroupFactory([request.bundles[0] | {"GPU": fraction}]))

    def learn(self, trial: Any, result: Mapping[str, Any]) -> None:
        """Notes what a trial was measured to need."""
        if result.get(SHARE):
            self._observe(trial, float(result[SHARE]))

    def _observe(self, trial: Any, share: float) -> None:
        number = self._numbers.setdefault(trial.trial_id, len(self._numbers))
        self._shares.observe(number, features(trial.config), min(share, 1.0))


def _ran_out_of_memory(trial: Any) -> bool:
    """Whether the last failure of a trial was out of memory."""
    if not trial.num_failures or not trial.error_file or not Path(trial.error_file).exists():
        return False
    last = Path(trial.error_file).read_text(encoding="utf-8", errors="replace").rpartition("Failure #")[2]
    return out_of_memory(RuntimeError(last))[0] or "MemoryError" in last


def measuring(trainable: Any) -> Any:
    """A subclass of a Trainable that also reports the largest share of its GPU that it has used."""

    class Measuring(trainable):  # type: ignore[misc]
        measures_for_cotune = True

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            let_gpus_be_shared()
            end_forks_on_sigterm()
            super().__init__(*args, **kwargs)

        def step(self) -> dict[str, Any]:
            result: dict[str, Any] = super().step()
            if _DUPLICATE not in result:
                result[SHARE] = used_share()
            return result

    Measuring.__name__ = Measuring._name = getattr(trainable, "_name", trainable.__name__)
    return Measuring


def used_share() -> float:
    """Peak memory of this process, as a share of its GPU's, or of the machine's if it has no GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        total = torch.cuda.get_device_properties(0).total_memory
        return float((torch.cuda.max_memory_reserved(0) + CONTEXT_GUESS) / total)
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        total = int(meminfo.readline().split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / total
