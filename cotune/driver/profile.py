"""The measured demands of a trainable's trials, kept from one run to the next.

<storage>/.profiles/<trainable>-<fingerprint>.json

A run begins with the measurements of earlier runs, so that its first trials need not start with a whole device. The
brain takes them as hints: measuring corrects them like any other prediction, and they are dropped once this run knows
better.

Estimates made before trials ran are kept beside the measurements: the relation of the two (`calibration.py`) turns the
next estimate into a hint, in this run and in later ones.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

from cotune.demand import MIB, Demand, Estimate
from cotune.driver.calibration import Calibration
from cotune.driver.fingerprint import digest, identity, stand_in
from cotune.packer.kind_model import KindModel
from cotune.packer.prediction import Prediction
from cotune.trainable import unwrapped

VERSION = 2
KEPT = 256
ENOUGH = 16
# Factor and bytes added to an estimate as long as estimates are not calibrated.
UNLEARNT_FACTOR = 1.5
UNLEARNT_ALLOWANCE = 256 * MIB


class _Sample(NamedTuple):
    """A trial, as the file keeps it."""

    features: Mapping[str, float]
    demand: Demand
    seconds: float | None
    estimate: Estimate | None


class _Width(NamedTuple):
    """The lanes that paid on a device of `capacity` bytes with `most` lanes at most."""

    capacity: int
    most: int
    lanes: int

    def is_like(self, other: _Width) -> bool:
        """Whether both are one kind of device; bytes may differ, as other programs' use differs from run to run."""
        return self.most == other.most and self.capacity < 2 * other.capacity < 4 * self.capacity


class _Kept(NamedTuple):
    """The content of a profile file."""

    samples: Sequence[_Sample] = ()
    widths: Sequence[_Width] = ()
    shared: int = 0


class Profile:
    """Measurements of trials of one trainable on one kind of device.

    Args:
        path: The profile's file; None to keep nothing beyond this run.

    Attributes:
        knows_seconds: Whether earlier trials' seconds are known.
        shared: Bytes of objects that a lane's trials share.
    """

    def __init__(self, path: Path | None) -> None:
        self.knows_seconds = False
        self._path = path
        # No more than the file keeps: a run may have a million trials.
        self._samples: deque[_Sample] = deque(maxlen=KEPT)
        self._earlier = KindModel()
        self._whole = Prediction(floor=0.001, upper=False)
        self._count = 0
        self._measured = 0
        self._persistent = Calibration(1.0)
        self._peak = Calibration(1.0)
        self._seconds = Calibration()
        self._busy: float | None = None
        self._found: list[_Width] = []
        earlier = _read(path)
        self._widths = earlier.widths
        self.shared = earlier.shared
        # How many samples of the file are of such a trial.
        self._on_file = Counter(_trial_of(sample.features, sample.demand) for sample in earlier.samples)
        for sample in earlier.samples:
            self._take_in(*sample)

    @property
    def is_calibrated(self) -> bool:
        """Whether enough trials were measured to calibrate estimates."""
        return self._peak.is_learnt

    def recall(
        self,
        features: Mapping[str, float],
        demand: Demand,
        seconds: float | None,
        estimate: Estimate | None = None,
    ) -> None:
        """Takes in a trial of an earlier session of this run, unless the file has it: counted twice, few seem many."""
        trial = _trial_of(features, demand)
        if self._on_file[trial]:
            self._on_file[trial] -= 1
        else:
            self._take_in(features, demand, seconds, estimate)

    def _take_in(
        self, features: Mapping[str, float], demand: Demand, seconds: float | None, estimate: Estimate | None
    ) -> None:
        self._count += 1
        self._earlier.observe_demand(self._count, features, demand)
        if seconds is not None:
            self.knows_seconds = True
            self._whole.observe(self._count, features, seconds)
        if estimate is not None:
            # Trials of this session are numbered from 0 up, so these get negative numbers.
            self.compare(-self._count, estimate, demand, seconds)

    def compare(self, trial: int, estimate: Estimate, demand: Demand, seconds: float | None = None) -> None:
        """Calibrates by what an estimated trial was measured to need so far.

        Args:
            trial: The trial's number.
            estimate: The trial's estimate.
            demand: The measured demand.
            seconds: Seconds from its start to its end, if it has ended.
        """
        self._persistent.learn(trial, estimate.persistent, demand.persistent)
        self._peak.learn(trial, estimate.peak, demand.peak)
        self._busy = demand.busy if demand.busy is not None else self._busy
        if seconds is not None and estimate.flops:
            self._seconds.learn(trial, estimate.flops, seconds)

    def expect(
        self, features: Mapping[str, float], estimate: Estimate | None = None
    ) -> tuple[Demand | None, float | None]:
        """A trial's demand and seconds by earlier runs or its estimate, each None if they do not tell.

        Once this run has measured `ENOUGH` trials, earlier runs and FLOPs are ignored: a run knows best how many steps
        its trials make. A calibrated estimate decides the bytes even then, since no regression knows the model.
        """
        knows_best = self._measured >= ENOUGH
        demand = None if knows_best else self._earlier.demand(features)
        seconds = None if knows_best else self._whole.estimate(features)
        if estimate is not None:
            if self.is_calibrated or demand is None:
                demand = self._calibrated(estimate)
            if seconds is None and not knows_best:
                seconds = self._seconds.apply(estimate.flops)
        return demand, seconds

    def _calibrated(self, estimate: Estimate) -> Demand:
        persistent, peak = self._persistent.apply(estimate.persistent), self._peak.apply(estimate.peak)
        if persistent is None or peak is None:
            persistent = estimate.persistent * UNLEARNT_FACTOR + UNLEARNT_ALLOWANCE
            peak = estimate.peak * UNLEARNT_FACTOR + UNLEARNT_ALLOWANCE
        return Demand(int(min(persistent, peak)), int(max(0.0, peak - persistent)), self._busy)

    def learn(
        self,
        features: Mapping[str, float],
        demand: Demand,
        seconds: float | None,
        estimate: Estimate | None = None,
    ) -> None:
        """Notes a trial of this session that has ended, for `save`.

        Args:
            features: The regression's features of its config.
            demand: The measured demand.
            seconds: Seconds from its start to its end, if it was not stopped early.
            estimate: The trial's estimate, if it has one; calibrating by it is left to `compare`.
        """
        self._measured += 1
        self._samples.append(_Sample(dict(features), demand, seconds, estimate))

    def begin_with(self, capacity: int, most: int) -> int:
        """Lanes to begin with on a device of `capacity` bytes and `most` lanes at most.

        Half of the lanes that paid on a device like it: more are tried as usual, which shows if they no longer pay.
        """
        like = _Width(capacity, most, 0)
        return next((max(1, width.lanes // 2) for width in reversed(self._widths) if width.is_like(like)), 1)

    def learn_width(self, capacity: int, most: int, lanes: int) -> None:
        """Notes how many lanes have paid on a device."""
        self._found.append(_Width(capacity, most, lanes))

    def save(self) -> None:
        """Adds this session's trials to the file; a concurrent run may overwrite them, which does no harm."""
        if self._path is None or not self._samples:
            return
        kept = _read(self._path)
        rows = [
            [features, *astuple(demand), seconds, astuple(estimate) if estimate else None]
            for features, demand, seconds, estimate in [*kept.samples, *self._samples][-KEPT:]
        ]
        widths: list[_Width] = []
        for width in [*kept.widths, *self._found]:
            widths = [*(other for other in widths if not other.is_like(width)), width][-KEPT:]
        written = self._path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            content = {"version": VERSION, "trials": rows, "widths": widths, "shared": self.shared}
            try:
                written.write_text(json.dumps(content), encoding="utf-8")
                written.replace(self._path)
            finally:
                written.unlink(missing_ok=True)


def _trial_of(features: Mapping[str, float], demand: Demand) -> object:
    """What tells a trial from others, in its run's events as in the file; its seconds are rounded there."""
    return frozenset(features.items()), demand


def profile_path(storage: Path, trainable: Any, constants: Mapping[str, Any], hardware: str) -> Path:
    """The path of a trainable's profile.

    Args:
        storage: The folder for runs.
        trainable: The trainable, whose `identity` is part of the name: changed code begins a new profile.
        constants: The space's constants, which may determine memory as well.
        hardware: The kind of device.
    """
    given = [(name, stand_in(value)) for name, value in sorted(constants.items())]
    name = unwrapped(trainable).__name__.strip("<>")
    return storage / ".profiles" / f"{name}-{digest(VERSION, hardware, *identity(trainable), given)}.json"


def _read(path: Path | None) -> _Kept:
    """Reads a profile; empty if there is no file, or it is damaged or of another version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path else {}
        if content.get("version") != VERSION:
            return _Kept()
        samples = [
            _Sample(
                {str(key): _finite(value) for key, value in features.items()},
                Demand(int(persistent), int(ephemeral), None if busy is None else _finite(busy)),
                None if seconds is None else _finite(seconds),
                Estimate(*map(int, estimate)) if estimate else None,
            )
            for features, persistent, ephemeral, busy, seconds, estimate in content["trials"]
        ]
        widths = [_Width(*map(int, width)) for width in content.get("widths", [])]
        return _Kept(samples, widths, max(0, int(content.get("shared", 0))))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return _Kept()


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(value)
    return float(value)
