"""Processes that trials on Ray fork."""

import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("ray")
from ray import tune

import cotune

# What is registered first runs first in the child: there SIGTERM comes while the fork is not over.
EARLY = """
import os, signal, sys

def handler(number, frame):
    print("handled", flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, handler)
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
from cotune.ray_tune.forks import end_forks_on_sigterm

end_forks_on_sigterm()
if "own" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: handler(*_))
if (child := os.fork()) == 0:
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


@pytest.mark.parametrize(("argument", "printed"), [("", f"{-signal.SIGTERM} set()"), ("own", "handled\n0 set()")])
def test_a_signal_that_comes_while_a_process_is_forked_ends_it_or_is_handled(argument: str, printed: str) -> None:
    found = subprocess.run([sys.executable, "-c", EARLY, argument], capture_output=True, text=True, check=True)
    assert (found.stdout.strip(), found.stderr) == (printed, "")


@pytest.mark.parametrize("isolation", ["lane", "process"])
def test_a_trial_may_end_a_process_just_after_it_was_forked(gpus, run_config, isolation) -> None:
    def train(config):
        endings = []
        for _ in range(200):
            if (child := os.fork()) == 0:
                while True:
                    signal.pause()
            os.kill(child, signal.SIGTERM)
            endings.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        tune.report({"killed": endings.count(-signal.SIGTERM)})

    results = tune.Tuner(
        tune.with_resources(train, {"gpu": 1}),
        tune_config=tune.TuneConfig(scheduler=cotune.colocate(gpus=1, isolation=isolation)),
        run_config=run_config(),
    ).fit()
    assert results[0].metrics["killed"] == 200
