"""The open lanes of this machine."""

from __future__ import annotations

from collections.abc import Iterator

from cotune.sharing.lane import LaneHandle


class LocalLanes:
    """Finds lanes by number, device or trial."""

    def __init__(self) -> None:
        self._lanes: dict[int, LaneHandle] = {}
        self._by_trial: dict[int, LaneHandle] = {}

    def __iter__(self) -> Iterator[LaneHandle]:
        return iter(self._lanes.values())

    def get(self, number: int) -> LaneHandle | None:
        return self._lanes.get(number)

    def of(self, trial: int) -> LaneHandle | None:
        return self._by_trial.get(trial)

    def on(self, device: str) -> list[LaneHandle]:
        return [lane for lane in self if lane.options.device == device]

    def add(self, lane: LaneHandle) -> None:
        self._lanes[lane.lane] = lane

    def starts(self, trial: int, lane: LaneHandle) -> None:
        self._by_trial[trial] = lane

    def ended(self, trial: int) -> None:
        """Frees the seat of a trial that is over."""
        lane = self._by_trial.pop(trial, None)
        if lane is not None:
            lane.ended(trial)

    def forget(self, lane: LaneHandle) -> None:
        """Closes a lane, and forgets it and its trials."""
        lane.close()
        del self._lanes[lane.lane]
        for trial in [trial for trial, other in self._by_trial.items() if other is lane]:
            del self._by_trial[trial]

    def close(self) -> None:
        for lane in self:
            lane.close()
        self._lanes.clear()
