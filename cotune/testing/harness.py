"""Test tools for bodies: a trainable that its config controls, and a wrapper that waits for a body's events."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from cotune.demand import MIB
from cotune.engines.base import Engine, Happened
from cotune.packer import (
    CloseLane,
    Instruction,
    LaneLost,
    LaneReady,
    OpenLane,
    PauseTrial,
    StartTrial,
    TrialEnded,
    TrialPaused,
)
from cotune.trial import Report, TrialSpec

PATIENCE = 60.0

E = TypeVar("E")


def behave(config: dict[str, Any]) -> None:
    """A trainable that does what its config says; bodies that simulate trials imitate it.

    `reports`: number of reports; `hold`: bytes kept all the time; `peak`: bytes allocated and freed before every
    report; `raises`: message of the error to raise at the end; `dies`: kill the process at the end; `hangs`: never
    reach another boundary; `checkpoints`: save one before every report; `asks`: number of questions to ask first,
    the sum of the answers being reported too; `splits`: number of micro-batches in every batch; `bursts`: number of
    micro-batches at once above which memory runs out.
    """
    import cotune
    from cotune.session import current

    held = bytearray(config.get("hold", 0))
    held[:: os.sysconf("SC_PAGESIZE")] = b"x" * len(held[:: os.sysconf("SC_PAGESIZE")])
    session = current()
    if "asks" in config and session is not None:
        answers = [int(session.ask(str(number).encode())) for number in range(config["asks"])]
        cotune.report({"loss": float(sum(answers))})
    start = 0
    saved = cotune.restore()
    if saved is not None:
        start = int((saved / "done").read_text())
    for number in range(start, config.get("reports", 1)):
        if config.get("checkpoints"):
            with cotune.checkpoint() as path:
                (path / "done").write_text(str(number))
        if session is not None and "splits" in config:
            loan = session.micro_batches(config["splits"])
            if loan.concurrency > config.get("bursts", loan.concurrency):
                loan.ran_out()
        scratch = b"x" * config.get("peak", 0)
        del scratch
        cotune.report({"loss": float(number)}, step=number)
    if "raises" in config:
        raise RuntimeError(config["raises"])
    if config.get("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    while config.get("hangs"):
        time.sleep(3600)


class EngineUnderTest:
    """An engine, with helpers that wait for its events.

    Args:
        engine: The engine, made with the trainable `behave` and the metric `loss`.
        folder: Folder of the trials.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.heard: list[Happened] = []
        self._folder = folder
        self._attempts: dict[int, int] = {}
        # Reports of each trial, as a driver stores them.
        self._stored: Counter[int] = Counter()
        self._lanes: set[int] = set()

    def __enter__(self) -> EngineUnderTest:
        self.devices = self.engine.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.close()

    def begin_anew(self, folder: Path) -> None:
        """Prepares a started engine for another test, for bodies that take seconds to start.

        Args:
            folder: Folder of that test's trials.
        """
        for lane in sorted(self._lanes):
            self.engine.execute(CloseLane(lane, kill=True))
        while self._lanes:
            self.wait(LaneLost)
        self.heard.clear()
        self._attempts.clear()
        self._stored.clear()
        self._folder = folder

    def open(self, lane: int = 1, quota: int = 1024 * MIB) -> LaneReady:
        self._lanes.add(lane)
        self.engine.execute(OpenLane(lane, self.devices[0].device, quota))
        return self.wait(LaneReady, lambda event: event.lane == lane)

    def execute(self, instruction: Instruction) -> None:
        self.engine.execute(instruction)

    def pause(self, trial: int = 0) -> TrialPaused:
        self.execute(PauseTrial(trial))
        return self.wait(TrialPaused)

    def begin(self, trial: int, lane: int = 1, **config: Any) -> None:
        attempt = self._attempts.get(trial, 0)
        self._attempts[trial] = attempt + 1
        folder, stored = self._folder / str(trial), self._stored[trial]
        spec = TrialSpec(trial, attempt, config, seed=trial, folder=folder, reports=stored)
        self.engine.execute(StartTrial(trial, lane), spec)

    def wait(self, kind: type[E], that: Callable[[E], bool] = lambda _: True) -> E:
        """Waits for the next item of a kind and returns it; gives verdicts on all reports that arrive meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for position, item in enumerate(self.heard):
                if isinstance(item, kind) and that(item):
                    del self.heard[: position + 1]
                    return item
            arrived = self.engine.poll(0.5)
            for item in arrived:
                if isinstance(item, Report):
                    self._stored[item.trial] += 1
                    self.engine.verdict(item.trial, item.attempt)
                elif isinstance(item, LaneLost):
                    self._lanes.discard(item.lane)
            self.heard += arrived
        raise AssertionError(f"no {kind.__name__} within {PATIENCE} s; heard {self.heard}")

    def listen(self, seconds: float) -> list[Happened]:
        """Everything the engine says within some seconds; reports get no verdict."""
        deadline = time.monotonic() + seconds
        heard: list[Happened] = []
        while (left := deadline - time.monotonic()) > 0:
            heard += self.engine.poll(left)
        return heard

    def collect(self, trial: int) -> tuple[list[Report], TrialEnded]:
        """A trial's reports up to its end, and its `TrialEnded`."""
        reports: list[Report] = []
        while True:
            item: Report | TrialEnded = self.wait((Report, TrialEnded), lambda item: item.trial == trial)  # type: ignore[arg-type]
            if isinstance(item, TrialEnded):
                return reports, item
            reports.append(item)
