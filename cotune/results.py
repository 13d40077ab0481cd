"""The results of a run and of its trials."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from cotune.accuracy import LEAST_BYTES, LEAST_SECONDS, Accuracy, accuracy_lines
from cotune.demand import MIB, format_bytes
from cotune.errors import CotuneError, InputError, NoResult, first_line, printable
from cotune.paths import TrialFolder
from cotune.trial import TrialState

if TYPE_CHECKING:
    import pandas

SHORT = reprlib.Repr()
SHORT.maxdict, SHORT.maxstring, SHORT.maxother = 16, 80, 80
MEASURES = (
    *("persistent", "ephemeral", "expected", "slowdown", "seconds", "expected_seconds"),
    *("device", "lane", "start", "end", "attempts"),
)
# Columns of the dataframe.
_COLUMNS = {"trial", "state", "error", *MEASURES}


@dataclass(frozen=True, repr=False, eq=False)
class TrialResult:
    """The result of one trial.

    Attributes:
        id: The trial's number, from 0.
        config: What the trainable was called with. Lists, dicts and sets that the space holds are the same objects in
            the configs of all trials.
        state: `done`, `stopped` (by the pruner), `failed`, `interrupted` or `waiting` (did not begin); the last two can
            be resumed. (`running`, if `cotune.load` found the run still going on.)
        error: Why the trial failed.
        persistent: Measured bytes held between iterations; None if the trial ended before it was measured.
        ephemeral: Measured peak bytes within an iteration, above `persistent`.
        expected: Bytes set aside for the trial when it last started, margins included; None if nothing was known of
            similar trials, so that it started with a whole device.
        device: The device it last ran on.
        lane: The lane it last ran in.
        start: When it first ran, in seconds since the epoch.
        end: When it ended, in seconds since the epoch.
        attempts: How often it was started.
        folder: The folder with its log, its last traceback and its checkpoint.
        slowdown: Factor by which other trials slowed its iterations down, on average in its last attempt; None if it
            had no priority, or was not measured.
        seconds: How long its last attempt ran, without waits and turns of lane-mates.
        expected_seconds: How long it was expected to take when it started; None if nothing was known of similar
            trials, or if it had to start again.
    """

    id: int
    config: dict[str, Any]
    state: TrialState
    error: CotuneError | None = None
    persistent: int | None = None
    ephemeral: int | None = None
    expected: int | None = None
    device: str | None = None
    lane: int | None = None
    start: float | None = None
    end: float | None = None
    attempts: int = 0
    folder: Path = Path()
    slowdown: float | None = None
    seconds: float | None = None
    expected_seconds: float | None = None
    _lines: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        told = f"id={self.id}, config={SHORT.repr(self.config)}, metrics={SHORT.repr(self.metrics)}"
        failed = f", error={self.error!r}" if self.error else ""
        return f"TrialResult({told}, state={str(self.state)!r}{failed}, folder={str(self.folder)!r})"

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Every report, in order: its metrics, with `step` and `time`; metrics of these names as `metrics/...`."""
        reports = (json.loads(line) for line in self._lines)
        own = ("step", "time")
        return [{name: it[name] for name in own} | _apart(it["metrics"], own) for it in reports]

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The last value of every metric reported; empty if there is no report."""
        merged: dict[str, Any] = {}
        for line in self._lines:
            merged.update(json.loads(line)["metrics"])
        return merged

    def last(self, name: str) -> Any:
        """The last value of one metric; None if never reported. Reads a long history only as far back as needed."""
        metrics = (json.loads(line)["metrics"] for line in reversed(self._lines))
        return next((found[name] for found in metrics if name in found), None)

    @property
    def checkpoint(self) -> Path | None:
        """The directory of the trial's last checkpoint; None without one."""
        return TrialFolder(self.folder).latest_checkpoint()


@dataclass(frozen=True, eq=False)
class Results(Sequence[TrialResult]):
    """All trials of a run.

    Attributes:
        trials: The trials, in the order they were proposed.
        metric: The metric that was tuned.
        mode: `min` or `max`.
        name: The run's name, for `resume=True`.
        folder: The run's folder.
        makespan: Seconds from the first trial's start to the last trial's end, in this session of the run.
        interrupted: Whether Ctrl-C or the time budget ended the run early.
    """

    trials: tuple[TrialResult, ...]
    metric: str
    mode: str
    name: str
    folder: Path
    makespan: float
    interrupted: bool = False

    @property
    def best(self) -> TrialResult:
        """The done trial whose last reported metric is best; if none is done, the best stopped one.

        Raises:
            NoResult: No trial that is done or stopped has reported the metric.
        """
        sign = 1.0 if self.mode == "min" else -1.0
        # A pruner may stop every trial of a short run: the best stopped trial is still an answer.
        for state in (TrialState.DONE, TrialState.STOPPED):
            ended = [(t.last(self.metric), t) for t in self.trials if t.state is state]
            found = [(sign * float(value), place) for place, (value, _) in enumerate(ended) if value is not None]
            if found:
                return ended[min(found)[1]][1]
        raise self._no_result()

    def _no_result(self) -> NoResult:
        failed = self.errors
        why = f"; {first_line(failed[0].error.message, 1000)}" if failed and failed[0].error else ""
        hint = "look at results.errors, and at log.txt and error.txt in each trial's folder"
        unfinished = {TrialState.WAITING, TrialState.INTERRUPTED} & {trial.state for trial in self.trials}
        if (unfinished or self.interrupted) and not failed:
            hint = f"none has come to its end: go on with name={self.name!r}, resume=True"
        return NoResult(f"none of the {len(self.trials)} trials of {self.name!r} has a result{why}", hint=hint)

    @property
    def errors(self) -> list[TrialResult]:
        """The trials that failed."""
        return [trial for trial in self.trials if trial.state is TrialState.FAILED]

    @property
    def set_aside(self) -> Accuracy | None:
        """Bytes set aside for trials when they last started, relative to their measured peaks.

        Trials that need less than 16 MiB are left out: what is set aside for them is an allowance, not a prediction.
        """
        pairs = ((t.expected, (t.persistent or 0) + (t.ephemeral or 0)) for t in self.trials)
        return Accuracy.of(pairs, LEAST_BYTES)

    @property
    def predicted_seconds(self) -> Accuracy | None:
        """Expected seconds of done trials, relative to the seconds they ran; trials under 1 s are left out."""
        pairs = ((t.expected_seconds, t.seconds) for t in self.trials if t.state is TrialState.DONE)
        return Accuracy.of(pairs, LEAST_SECONDS)

    def dataframe(self) -> pandas.DataFrame:
        """One row per trial: `config/...` columns, last metrics, state, measurements.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError("dataframe() needs pandas, which is not installed", hint="pip install pandas") from error
        rows = [
            {
                "trial": t.id,
                "state": str(t.state),
                **{_writable(name): _writable(value) for name, value in _apart(t.metrics, _COLUMNS).items()},
                **{_writable(f"config/{name}"): _writable(value) for name, value in flat(t.config)},
                **{name: getattr(t, name) for name in MEASURES},
                "error": None if t.error is None else _writable(str(t.error.message)),
            }
            for t in self.trials
        ]
        return pandas.DataFrame(rows)

    def __len__(self) -> int:
        return len(self.trials)

    @overload
    def __getitem__(self, index: SupportsIndex) -> TrialResult: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[TrialResult, ...]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> TrialResult | tuple[TrialResult, ...]:
        return self.trials[index]

    def __iter__(self) -> Iterator[TrialResult]:
        return iter(self.trials)

    def __repr__(self) -> str:
        counts = [
            f"{sum(1 for t in self.trials if t.state is state)} {state}"
            for state in TrialState
            if any(t.state is state for t in self.trials)
        ]
        lines = [
            f"Results {self.name!r}: {len(self.trials)} trial{'s' * (len(self.trials) != 1)} "
            f"({', '.join(counts) or 'none'}), "
            f"makespan {self.makespan:.1f} s"
        ]
        try:
            best = self.best
            lines.append(
                f"  best {self.metric}={best.last(self.metric):.6g} (trial {best.id}): {SHORT.repr(best.config)}"
            )
            if best.persistent is not None and best.ephemeral is not None:
                held, above = format_bytes(best.persistent), format_bytes(best.ephemeral)
                is_small = best.persistent + best.ephemeral < MIB
                lines.append(
                    "  it needed less than 1 MiB" if is_small else f"  it held {held} and peaked {above} above"
                )
        except NoResult as error:
            lines.append(f"  {error.message}")
        lines += [f"  {name}: {text}" for name, text in accuracy_lines(self.set_aside, self.predicted_seconds)]
        if self.interrupted:
            lines.append(f"  interrupted; go on with name={self.name!r}, resume=True")
        lines.append(f"  {self.folder}")
        return printable("\n".join(lines), keep="\n")


def flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a config with their flat names."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _writable(value: Any) -> Any:
    """A value, with escapes if it is text that UTF-8 cannot express, as a file's name may be: pandas refuses that."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "backslashreplace").decode()
    return value


def _apart(metrics: Mapping[str, Any], taken: Container[str]) -> dict[str, Any]:
    """The metrics, with the prefix `metrics/` where a name is taken."""
    return {f"metrics/{name}" if name in taken else name: value for name, value in metrics.items()}
