"""The line of waiting trials, in the order of a policy, and the predictions that order rests on."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Mapping

from cotune.packer.fitting import needed
from cotune.packer.policies import Policy, Waiting
from cotune.packer.prediction import KindModel
from cotune.packer.state import Device, Trial

SORT_AT_ONCE = 16

_Key = tuple[float, ...]


class Line:
    """Waiting trials, first in line first.

    Args:
        policy: Orders trials of the same priority.
        devices: Where they may run.
    """

    def __init__(self, policy: Policy, devices: Mapping[str, Device]) -> None:
        self._policy = policy
        self._devices = devices
        self._entries: list[tuple[_Key, int, int, Trial]] = []
        self._sizes: list[tuple[int, int]] = []
        self._keys: dict[int, tuple[_Key, int]] = {}
        self._models: dict[str, KindModel] = {}
        self._version = 0
        self._outdated: deque[Trial] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[int, Trial]]:
        """Those that wait now, with their sizes, whatever joins or leaves meanwhile."""
        for _, _, size, trial in list(self._entries):
            yield size, trial

    @property
    def smallest(self) -> int:
        """The size of the smallest trial."""
        return self._sizes[0][0]

    def first(self, count: int) -> list[Trial]:
        return [entry[3] for entry in self._entries[:count]]

    def join(self, trial: Trial) -> None:
        self.appraise(trial)
        key, size = self._keys[trial.id] = self._key(trial), trial.size
        insort(self._entries, (key, trial.arrival, size, trial))
        insort(self._sizes, (size, trial.arrival))

    def leave(self, trial: Trial) -> None:
        """Takes the trial out, if it is in."""
        if trial.id in self._keys:
            key, size = self._keys.pop(trial.id)
            del self._entries[bisect_left(self._entries, (key, trial.arrival), key=lambda entry: entry[:2])]
            del self._sizes[bisect_left(self._sizes, (size, trial.arrival))]

    def sort(self, version: int) -> Iterator[Trial]:
        """Brings the order up to date, a part of a long line at a time, when what it rests on has changed.

        Args:
            version: Of the devices; that of the predictions comes on top.

        Yields:
            Trials that were looked at anew.
        """
        version += sum(model.version for model in self._models.values())
        if version != self._version:
            self._version = version
            self._outdated = deque(entry[3] for entry in self._entries)
        for _ in range(min(len(self._outdated), SORT_AT_ONCE)):
            trial = self._outdated.popleft()
            if trial.id in self._keys:
                self.leave(trial)
                self.join(trial)
                yield trial

    def model(self, trial: Trial) -> KindModel:
        """What is known of trials of its kind."""
        model = self._models.get(trial.kind)
        if model is None:
            model = self._models[trial.kind] = KindModel()
        return model

    def appraise(self, trial: Trial) -> None:
        """Notes what is expected of the trial as of now."""
        known = trial.demand or self.model(trial).demand(trial.features)
        trial.expected = expected = needed(trial, known) if known else None
        trial.oversized = expected is not None and all(
            device.context + device.shared + expected.peak > device.full for device in self._devices.values()
        )

    def _key(self, trial: Trial) -> _Key:
        seconds = self.model(trial).seconds(trial.features) if self._policy.uses_predictions else None
        waiting = Waiting(trial.id, trial.arrival, seconds, trial.expected.peak if trial.expected else None)
        return (-trial.priority, *self._policy.key(waiting))
