"""Proxies for an Optuna objective in a lane: a trial and a study that ask the driver, where the real ones are.

objective ──trial.suggest_float(...)──▶ TrialProxy ──question──▶ driver: the real trial of the real study
          ◀──────── 0.12 ──────────────           ◀──answer───

Nothing is cached here: every answer is what the study knows at that moment.
"""

from __future__ import annotations

import inspect
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import Any, TypeVar, cast

import optuna

from cotune import session
from cotune.errors import RunError
from cotune.plain import SCALARS
from cotune.search.study_wire import METHOD, decode_error, encode, encode_error
from cotune.session import Session, TrialStopped
from cotune.trainable import Calling, trace_of

C = TypeVar("C", bound=type)


class StudyConnection:
    """The connection of a trial in a lane to its study.

    Args:
        session: The trial's session; None for that of whichever trial asks, where several have the same object.
    """

    def __init__(self, session: Session | None) -> None:
        self._session = session
        self._process = os.getpid()

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a process that the objective has forked: where it ends is not the end of the trial."""
        return os.getpid() != self._process

    @property
    def session(self) -> Session:
        """The trial's session.

        Raises:
            RunError: This is not the process the trial runs in.
        """
        if self.is_elsewhere:
            raise RunError(
                "the trial was used in a process that its objective has started",
                hint="ask the trial in the objective itself, and hand over what it answers",
            )
        return self._session or _current_session()

    def __deepcopy__(self, memo: Any) -> StudyConnection:
        return self

    def __reduce__(self) -> Any:
        if get_spawning_popen() is not None:
            raise _not_here()
        return connection_in_lane, ()

    def ask(self, target: str, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Returns an attribute of the real object, or the result of calling it; raises what the call raised."""
        return self._answer(target, name, args, kwargs)

    def attribute(self, target: str, name: str) -> Any:
        """Returns an attribute of the real object; a method of it is called there."""
        value = self._answer(target, name, None, {})
        return partial(self.ask, target, name) if value is METHOD else value

    def _answer(self, target: str, name: str, args: tuple[Any, ...] | None, kwargs: dict[str, Any]) -> Any:
        answer = self.session.ask(encode((target, name, args, kwargs)))
        is_value, value = pickle.loads(answer)
        if is_value:
            return value
        raise decode_error(value) or RunError(f"{target}.{name} failed with an error that cannot travel", hint="")


def _forwards(target: str) -> Callable[[C], C]:
    """Makes each public method and property of the Optuna base class ask the driver, unless the proxy defines it.

    So does any other attribute, such as those of a class derived from Optuna's.
    """

    def method(name: str) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: self._connection.ask(target, name, *args, **kwargs)

    def attribute(name: str) -> property:
        return property(lambda self: self._connection.ask(target, name))

    def other(self: Any, name: str) -> Any:
        if name.startswith("_") and name not in ("_trial_id", "_study_id"):
            raise AttributeError(f"{target}.{name} is not there in a lane: the {target} itself is in the driver")
        return self._connection.attribute(target, name)

    def decorate(cls: C) -> C:
        for name, member in inspect.getmembers_static(cls.__mro__[1]):
            if not name.startswith("_") and name not in vars(cls):
                setattr(cls, name, attribute(name) if isinstance(member, property) else method(name))
        cls.__getattr__ = other  # type: ignore[attr-defined]
        cls.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
        return cls

    return decorate


@_forwards("storage")
class StorageProxy(optuna.storages.BaseStorage):
    """The study's storage, seen from a lane, for data that Optuna itself keeps there: artifacts, scores."""

    def __init__(self, connection: StudyConnection) -> None:
        self._connection = connection

    def __reduce__(self) -> Any:
        return StorageProxy, (self._connection,)


@_forwards("study")
class StudyProxy(optuna.Study):
    """A study, seen from a lane: `trial.study`, or the study that an objective refers to."""

    def __init__(self, connection: StudyConnection) -> None:
        self._connection = connection
        self._storage: optuna.storages.BaseStorage = cast(Any, StorageProxy)(connection)

    def __reduce__(self) -> Any:
        return StudyProxy, (self._connection,)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            # Such as another sampler.
            self._connection.ask("study", "__setattr__", name, value)


@_forwards("trial")
class TrialProxy(optuna.Trial):
    """A trial, seen from a lane.

    Args:
        connection: The connection to its study.
        objectives: How many values the objective returns.
    """

    def __init__(self, connection: StudyConnection, objectives: int) -> None:
        self._connection = connection
        self._objectives = objectives
        self.study = StudyProxy(connection)
        self.storage = self.study._storage

    def __reduce__(self) -> Any:
        return TrialProxy, (self._connection, self._objectives)

    @property
    def number(self) -> int:
        return self._connection.session.trial

    def report(self, value: float, step: int) -> None:
        """Reports without waiting for the storage; invalid arguments are passed to Optuna, which refuses them."""
        try:
            number, where = float(value), int(step)
        except Exception:
            where = -1
        if self._objectives > 1 or not 0 <= where < 2**63:
            self._connection.ask("trial", "report", value, step)
        else:
            self._connection.session.observe(number, where)


def connection_in_lane() -> StudyConnection:
    """Makes the connection anew, for a pickled proxy.

    Raises:
        RunError: No trial runs here.
    """
    return StudyConnection(_current_session())


def _current_session() -> Session:
    current = session.current()
    if current is None:
        raise _not_here()
    return current


def _not_here() -> RunError:
    return RunError(
        "a study or a trial was sent to where no trial runs",
        hint="ask them in the objective itself, and hand over what they answer",
    )


def study_in_lane() -> StudyProxy:
    """Makes the proxy of the study for an objective that refers to it."""
    return StudyProxy(connection_in_lane())


def storage_in_lane() -> optuna.storages.BaseStorage:
    """Makes the proxy of the study's in-memory storage for an objective that refers to it."""
    return study_in_lane()._storage


class StudyObjective(Calling):
    """The trainable of a study: calls the objective with a trial, and tells the driver how it ended.

    Args:
        objective: The objective.
        objectives: How many values it returns.
        places: Modules in which the study is a global, and its names there. A lane has imported them anew.
    """

    def __init__(
        self, objective: Callable[[Any], Any], objectives: int, places: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.callee = objective
        self._objectives = objectives
        self._places = places

    def __call__(self, config: Any) -> None:
        current = session.current()
        assert current is not None
        connection = StudyConnection(current)
        for module, name in self._places:
            if module in sys.modules:
                # Residents share the module.
                setattr(sys.modules[module], name, StudyProxy(StudyConnection(None)))
        try:
            value = self.callee(TrialProxy(connection, self._objectives))
        except TrialStopped:
            raise
        except BaseException as error:
            if connection.is_elsewhere:
                raise
            if isinstance(error, optuna.TrialPruned):
                # The driver stops the trial instead of answering.
                connection.ask("end", "pruned", str(error))
                return
            connection.ask("end", "raised", (encode_error(error), trace_of(error)))
            raise
        if not connection.is_elsewhere:
            connection.ask("end", "returned", _told(value))


class Shown:
    """The repr of a value that no study can keep."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _told(value: Any) -> Any:
    """A returned value in a form to send: numbers of any library as floats, so that the driver need not import it."""
    if type(value) in SCALARS or isinstance(value, (str, bytes)):
        return value
    if isinstance(value, Sequence):
        items = [_told(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    try:
        return float(value)
    except Exception:
        return Shown(repr(value))
