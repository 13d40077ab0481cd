import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("import sys; sys.modules['ray.air.execution._internal.actor_manager'] = None", "actor_manager"),
        ("import ray.train._internal.session as at; del at._FutureTrainingResult", "_FutureTrainingResult"),
        (
            "from ray.tune.execution.tune_controller import TuneController as at; del at.get_live_trials",
            "get_live_trials",
        ),
        (
            "from ray.train._internal.checkpoint_manager import _CheckpointManager as at\n"
            "for name in [name for name, found in vars(at).items() if callable(found)]: setattr(at, name, print)",
            "_CheckpointManager()._checkpoint_results",
        ),
    ],
)
def test_an_unknown_ray_is_refused_with_what_it_lacks(change, told):
    code = "\nfrom cotune import colocate\nfrom ray.tune.schedulers import FIFOScheduler\ncolocate(FIFOScheduler())"
    done = subprocess.run(
        [sys.executable, "-c", change + code], capture_output=True, text=True, timeout=100, check=False
    )
    last = done.stderr.splitlines()[-2:]
    assert last[0].startswith("cotune.errors.InputError: Ray "), done.stderr
    assert told in last[0]
    assert last[1].startswith("  hint: use Ray 2.44 to ")
