"""Predictions for trials: from hints, from what was measured of them, and from what their siblings needed."""

from __future__ import annotations

from cotune.demand import Demand
from cotune.packer.fitting import Fitting
from cotune.packer.kind_model import KindModel
from cotune.packer.prediction import Changes
from cotune.packer.trial import Trial, padded

# Hints are believed until more than this share of them (and more than two) was too low.
HINTS_SHORT = 0.05
# A hint counts as growth only if it exceeds the first iterations by this factor: a smaller hint was just too high.
FAR = 2.0
# If the predicted peak exceeds what a trial ran out of memory with by this factor, or just exceeds it and siblings have
# ended with no more, it replaces the guess in `floor`.
AMPLE = 1.25


class Predictor:
    """Predicts what trials will need, and how long they will go on.

    Args:
        fitting: Knows how large a trial may be.
    """

    def __init__(self, fitting: Fitting) -> None:
        self._fitting = fitting
        self._models: dict[str, KindModel] = {}
        self._changes = Changes()
        self._hints = self._short_hints = 0
        self._trusts_hints = True

    @property
    def version(self) -> int:
        """Counts changes to the predictions."""
        return self._changes.count

    def model(self, trial: Trial) -> KindModel:
        """The model of the trial's kind."""
        model = self._models.get(trial.kind)
        if model is None:
            model = self._models[trial.kind] = KindModel(self._changes)
        return model

    def is_known(self, kind: str) -> bool:
        """Whether trials of this kind no longer need a probe."""
        return kind in self._models and self._models[kind].knows_demand

    def appraise(self, trial: Trial) -> None:
        """Updates what is expected of the trial."""
        if trial.early:
            # Siblings may have shown more growth since it ran.
            trial.later = self.later(trial)
            has_ended = self.model(trial).growth.has_ended
            if trial.later > AMPLE * trial.lacked or (has_ended and padded(trial.later) >= trial.lacked):
                trial.floor = trial.lacked
        known = trial.grown(trial.demand) if trial.demand else self._predicted(trial)
        trial.expected = expected = trial.needing(known) if known else self.model(trial).assumed
        trial.believe(trial.demand)
        trial.oversized = expected is not None and expected.peak > self._fitting.largest_room

    def judge_hint(self, trial: Trial, peak: int) -> None:
        """Compares a trial's hint with its measured peak, or with a peak that it needs at least."""
        if trial.hint is not None:
            self._hints += 1
            self._short_hints += peak > trial.needing(trial.hint).peak
            trusts = self._short_hints <= max(2, HINTS_SHORT * self._hints)
            self._changes.count += trusts != self._trusts_hints
            self._trusts_hints = trusts

    def later(self, trial: Trial) -> int:
        """Peak bytes the trial will reach, given its first iterations: it may validate, or save at its end.

        Learnt from siblings; until one of them has shown its growth, the owner's hint, if far above what was measured.
        """
        growth = self.model(trial).growth
        if not growth.is_known and trial.hint is not None and self._trusts_hints:
            later = trial.hint.peak if trial.hint.peak > FAR * trial.early else 0
        else:
            later = growth.later(trial.early)
        return min(later, self._fitting.largest_room)

    def seconds_left(self, trial: Trial) -> float | None:
        """Predicted remaining time alone; None if unknown."""
        whole = self.whole(trial)
        return None if whole is None else max(whole - trial.progress.alone_seconds, whole / 100)

    def whole(self, trial: Trial) -> float | None:
        """Predicted time alone from beginning to end, if the trial is not stopped; None if unknown."""
        model, steps, hint, made = self.model(trial), trial.max_steps, trial.seconds_hint, trial.progress
        if made.iterations > 1 and made.alone_seconds:
            known = steps or (model.steps(trial.features) if hint is None or model.is_sure_of_steps else None)
            if known:
                found = made.first_seconds + made.pace * (known - made.first_iterations)
                # Siblings that have ended are the short ones at first: a trial may well be longer than all of these.
                if steps or hint is None or model.may_take(hint, found):
                    return found
        return hint if hint is not None else model.seconds(trial.features, steps)

    def usual_pace(self, trial: Trial) -> float | None:
        """Predicted seconds per iteration by its hyperparameters, if they predict it within a factor of two."""
        return self.model(trial).pace(trial.features)

    def _predicted(self, trial: Trial) -> Demand | None:
        """The hint, while hints are believed (see `HINTS_SHORT`); then measured siblings, once there are enough."""
        hint, model = trial.hint, self.model(trial)
        if hint is not None and hint.busy is None and model.busy is not None:
            hint = Demand(hint.persistent, hint.ephemeral, model.busy)
        if hint is not None and self._trusts_hints:
            return hint
        known = model.demand(trial.features)
        if hint is None or known is None or model.is_fitted:
            return known or hint
        return max(hint, known, key=lambda demand: demand.peak)
