"""The lanes that are open on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from cotune.sharing.lane import LaneHandle


class LocalLanes:
    """Finds a lane by its number, its device, or a trial in it."""

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
        """It is over, and its seat free."""
        lane = self._by_trial.pop(trial, None)
        if lane is not None:
            lane.ended(trial)

    def forget(self, lane: LaneHandle) -> None:
        """Closes it, and knows it no more, nor the trials that were in it."""
        lane.close()
        del self._lanes[lane.lane]
        for trial in [trial for trial, other in self._by_trial.items() if other is lane]:
            del self._by_trial[trial]

    def close(self) -> None:
        for lane in self:
            lane.close()
        self._lanes.clear()
