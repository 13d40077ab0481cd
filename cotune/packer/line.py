"""The line of waiting trials, in the order of a policy, and the predictions that order rests on."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from cotune.demand import Demand
from cotune.packer.fitting import needed
from cotune.packer.policies import Policy, Waiting
from cotune.packer.prediction import KindModel
from cotune.packer.state import Trial

_Entry = tuple[tuple[float, ...], int, Trial]


class Line:
    """Waiting trials, first in line first.

    Args:
        policy: Orders trials of the same priority.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._entries: list[_Entry] = []
        self._keys: dict[int, tuple[float, ...]] = {}
        self._models: dict[str, KindModel] = {}
        self._version = -1

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Trial]:
        """Those that wait now, whatever joins or leaves meanwhile."""
        return iter([trial for _, _, trial in self._entries])

    def first(self, count: int) -> list[Trial]:
        return [trial for _, _, trial in self._entries[:count]]

    def join(self, trial: Trial) -> None:
        key = self._keys[trial.id] = self._key(trial)
        insort(self._entries, (key, trial.arrival, trial))

    def leave(self, trial: Trial) -> None:
        """Takes the trial out, if it is in."""
        key = self._keys.pop(trial.id, None)
        if key is not None:
            del self._entries[bisect_left(self._entries, (key, trial.arrival), key=lambda entry: entry[:2])]

    def sort(self) -> None:
        """Brings the order up to date when the predictions behind it have changed."""
        version = sum(model.version for model in self._models.values())
        if version != self._version and self._policy.uses_predictions:
            self._version = version
            waiting = list(self)
            self._entries = []
            for trial in waiting:
                self.join(trial)

    def model(self, trial: Trial) -> KindModel:
        """What is known of trials of its kind."""
        model = self._models.get(trial.kind)
        if model is None:
            model = self._models[trial.kind] = KindModel()
        return model

    def expected(self, trial: Trial) -> Demand | None:
        """What to set aside for the trial; None if it must be probed."""
        known = trial.demand or self.model(trial).demand(trial.features)
        return needed(trial, known) if known else None

    def _key(self, trial: Trial) -> tuple[float, ...]:
        expected = self.expected(trial)
        seconds = self.model(trial).seconds(trial.features) if self._policy.uses_predictions else None
        waiting = Waiting(trial.id, trial.arrival, seconds, expected.peak if expected else None)
        return (-trial.priority, *self._policy.key(waiting))
