"""What is expected of trials: from hints, from what was measured of them, and from what their siblings needed."""

from __future__ import annotations

from cotune.demand import Demand
from cotune.packer.fitting import Fitting
from cotune.packer.prediction import KindModel
from cotune.packer.trial import Trial

# Hints are believed until more than this part of them was too low.
HINTS_SHORT = 0.05
# Expected bytes over those of the first iterations: by less, what is expected is a guess that was too high.
FAR = 2.0
# The same over those with which a trial ran out of memory: with so much more it is tried again.
ENOUGH = 1.25


class Predictor:
    """Says what trials will need, and how long they will go on.

    Args:
        fitting: Knows how large a trial may be.
    """

    def __init__(self, fitting: Fitting) -> None:
        self._fitting = fitting
        self._models: dict[str, KindModel] = {}
        self._hints = self._short_hints = self._hint_version = 0
        self._trusts_hints = True

    @property
    def version(self) -> int:
        """Counts the changes to what is expected."""
        return self._hint_version + sum(model.version for model in self._models.values())

    def model(self, trial: Trial) -> KindModel:
        """What is known of trials of its kind."""
        model = self._models.get(trial.kind)
        if model is None:
            model = self._models[trial.kind] = KindModel()
        return model

    def is_known(self, kind: str) -> bool:
        """Whether trials of this kind need no probe any more."""
        return kind in self._models and self._models[kind].knows_demand

    def appraise(self, trial: Trial) -> None:
        """Notes what is expected of the trial as of now."""
        if trial.early:
            # Others may have shown more since it ran than it could guess.
            trial.later = self.later(trial)
            if trial.later > ENOUGH * trial.lacked:
                trial.floor = trial.lacked
        known = trial.grown(trial.demand) if trial.demand else self._predicted(trial)
        trial.expected = expected = trial.needing(known) if known else self.model(trial).assumed
        trial.believe(trial.demand)
        trial.oversized = expected is not None and expected.peak > self._fitting.largest_room

    def judge_hint(self, trial: Trial, peak: int) -> None:
        """Compares what was expected of a trial with what it needs, as it was measured, or with what was too little."""
        if trial.hint is not None:
            self._hints += 1
            self._short_hints += peak > trial.needing(trial.hint).peak
            trusts = self._short_hints <= max(2, HINTS_SHORT * self._hints)
            self._hint_version += trusts != self._trusts_hints
            self._trusts_hints = trusts

    def later(self, trial: Trial) -> int:
        """What it will come to need, having shown what it needs at first: it may validate, or save at its end.

        As its siblings did; until one of them has ended, as its owner expects, where that is far from what it shows.
        """
        model = self.model(trial)
        if not model.has_grown and trial.hint is not None and self._trusts_hints:
            later = trial.hint.peak if trial.hint.peak > FAR * trial.early else 0
        else:
            later = model.grown(trial.early)
        return min(later, self._fitting.largest_room)

    def seconds_left(self, trial: Trial) -> float | None:
        """How long it will run on, as far as that can be told."""
        whole = self.whole(trial)
        return None if whole is None else max(whole - trial.progress.alone_seconds, whole / 100)

    def whole(self, trial: Trial) -> float | None:
        """How long it takes from its beginning to its end, if it is not stopped, as far as that can be told."""
        model, steps, hint, made = self.model(trial), trial.max_steps, trial.seconds_hint, trial.progress
        if made.iterations > 1 and made.alone_seconds:
            known = steps or (model.steps(trial.features) if hint is None or model.is_sure_of_steps else None)
            if known:
                return made.first_seconds + made.pace * (known - made.first_iterations)
        return hint if hint is not None else model.seconds(trial.features, steps)

    def usual_pace(self, trial: Trial) -> float | None:
        """How long one of its iterations takes by its hyperparameters, where these tell to a factor of two."""
        return self.model(trial).pace(trial.features)

    def _predicted(self, trial: Trial) -> Demand | None:
        """Hints are believed until more than one in twenty was too low; then measured siblings are, once they do."""
        hint, model = trial.hint, self.model(trial)
        if hint is not None and hint.busy is None and model.busy is not None:
            hint = Demand(hint.persistent, hint.ephemeral, model.busy)
        if hint is not None and self._trusts_hints:
            return hint
        known = model.demand(trial.features)
        if hint is None or known is None or model.is_fitted:
            return known or hint
        return max(hint, known, key=lambda demand: demand.peak)
