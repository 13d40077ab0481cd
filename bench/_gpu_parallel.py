"""Three ways to compute in parallel on one GPU: processes in slices of time, processes under MPS, streams of a process.

As a program this is one worker: orders come as lines of JSON on its input, an answer follows each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import keep
from _gpu_models import SIZES, device_of, settle, training

Found = dict[str, Any]
WIDTHS = (1, 2, 4, 8, 16)
SECONDS = 1.0


def steps_a_second(step: Callable[[], None], device: str, begin: float, seconds: float) -> float:
    """Steps made from a moment on for so long, in steps a second; what was launched last is waited for."""
    while time.monotonic() < begin:
        pass
    count = 0
    while time.monotonic() < begin + seconds:
        step()
        count += 1
        if count % 16 == 0:
            # No more than that ahead of the device, as a loop that looks at its loss now and then.
            settle(device)
    settle(device)
    return count / (time.monotonic() - begin)


# ---- processes


def work() -> None:
    """A worker: prepares a model, then trains it when told to."""
    import torch

    torch.set_num_threads(1)
    step: Callable[[], None] = lambda: None  # noqa: E731
    device = "cpu"
    for line in sys.stdin:
        order = json.loads(line)
        if "model" in order:
            device = device_of(order["dry"])
            step = training(order["model"], order["dry"])
            for _ in range(5):
                step()
            settle(device)
            print(json.dumps("ready"), flush=True)
        else:
            print(json.dumps(steps_a_second(step, device, order["begin"], order["seconds"])), flush=True)


class Workers:
    """Worker processes, started at once."""

    def __init__(self, count: int, environ: dict[str, str]) -> None:
        self._all = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | environ,
            )
            for _ in range(count)
        ]

    def ask(self, count: int, order: Found) -> list[Any]:
        """Gives an order to the first of them, and all their answers."""
        for process in self._all[:count]:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        answers = []
        for process in self._all[:count]:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"a worker died with exit status {process.wait()}")
            answers.append(json.loads(line))
        return answers

    def close(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()


def processes(options: Found, environ: dict[str, str], widths: tuple[int, ...], seconds: float) -> Found:
    """Aggregate steps a second of as many processes as each width says, for each model."""
    workers = Workers(max(widths), environ)
    try:
        found: Found = {}
        for model in SIZES:
            workers.ask(max(widths), {"model": model, "dry": options["dry"]})
            found[model] = {}
            for width in widths:
                order = {"begin": time.monotonic() + 0.05, "seconds": seconds}
                found[model][width] = round(sum(workers.ask(width, order)), 2)
                keep(options, found)
        return found
    finally:
        workers.close()


# ---- streams


def streams(options: Found, widths: tuple[int, ...], seconds: float) -> Found:
    """The same with threads of this process, each on a stream of its own."""
    import torch

    torch.set_num_threads(1)
    dry = options["dry"]
    device = device_of(dry)
    found: Found = {}
    for model in SIZES:
        steps = [training(model, dry, seed) for seed in range(max(widths))]
        own = [None if dry else torch.cuda.Stream() for _ in steps]
        settle(device)
        _on_streams(steps, own, device, time.monotonic(), 0.5)
        found[model] = {}
        for width in widths:
            rates = _on_streams(steps[:width], own, device, time.monotonic() + 0.05, seconds)
            found[model][width] = round(sum(rates), 2)
            keep(options, found)
    return found


def _on_streams(
    steps: list[Callable[[], None]], own: list[Any], device: str, begin: float, seconds: float
) -> list[float]:
    import torch

    rates = [0.0] * len(steps)

    def run(number: int) -> None:
        with torch.cuda.stream(own[number]):
            rates[number] = steps_a_second(steps[number], device, begin, seconds)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(steps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rates


if __name__ == "__main__":
    work()
