"""What can be tuned: a function of the config, or a class with `setup` and `step`."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any

from cotune import session
from cotune.errors import InputError

if sys.version_info >= (3, 14):
    import annotationlib

CHECKPOINT_EVERY = 5.0
# Methods that a step class may have, and the number of arguments each is called with.
_STEP_METHODS = {"setup": 1, "step": 0, "save": 1, "load": 1, "rehearse": 1, "cleanup": 0}
_OURS = os.path.dirname(__file__) + os.sep
# From Python 3.14 on annotations are computed when asked for, and may name what is there for type checkers only.
_LENIENT: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    _LENIENT["annotation_format"] = annotationlib.Format.FORWARDREF


def check_trainable(trainable: Any) -> str:
    """Checks that an object can be tuned, and returns its name.

    Raises:
        InputError: The object is neither callable with one argument nor a step class.
    """
    if isinstance(trainable, type):
        _check_step_class(trainable)
    else:
        _check_function(trainable)
    return name_of(trainable)


def _check_step_class(cls: type) -> None:
    hint = (
        "a step class has setup(self, config) and step(self) -> metrics, and may have save(self, path), "
        "load(self, path), rehearse(self, config) and cleanup(self), called at its end"
    )
    if not _has_steps(cls):
        raise InputError(f"class {cls.__name__} has no setup() and step()", hint=hint)
    if any(base.__module__.startswith("ray.tune.") for base in cls.__mro__):
        raise InputError(
            f"class {cls.__name__} is a Trainable of Ray Tune, which is built and saved in Ray's own way",
            hint="run it with Ray Tune and cotune.colocate(), or leave the base class out and name "
            "save_checkpoint save(self, path) and load_checkpoint load(self, path)",
        )
    if not takes(cls, 0):
        raise InputError(
            f"class {cls.__name__}{signature(cls)} cannot be made without arguments",
            hint="the config is passed to setup(self, config)",
        )
    for name, count in _STEP_METHODS.items():
        value = getattr(cls, name, None)
        if value is None:
            continue
        if not callable(value):
            raise InputError(f"{cls.__name__}.{name} is {value!r}, which is no method", hint=hint)
        static = inspect.getattr_static(cls, name, None)
        takes_self = hasattr(static, "__get__") and not isinstance(static, (staticmethod, classmethod))
        if not takes(value, count + takes_self):
            told = "no argument" if count == 0 else "one argument"
            raise InputError(f"{cls.__name__}.{name}{signature(value)} cannot be called with {told}", hint=hint)


def _check_function(function: Any) -> None:
    if not callable(function):
        raise InputError(f"trainable={function!r} cannot be called", hint=_instead_of(function))
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(run) for is_kind in kinds for run in (function, type(function).__call__)):
        raise InputError(
            f"{name_of(function)} is a coroutine or generator function: calling it would run nothing",
            hint="pass a plain function; it may call asyncio.run() itself",
        )
    if not takes(function, 1):
        raise InputError(
            f"{name_of(function)}{signature(function)} cannot be called with one argument",
            hint="it is called with the config, a dict: def train(config): ...",
        )


def _has_steps(cls: type) -> bool:
    """Whether a class has what a step class must have."""
    return all(callable(getattr(cls, name, None)) for name in ("setup", "step"))


def _instead_of(trainable: Any) -> str:
    """What to pass instead of an object that cannot be called."""
    cls = type(trainable)
    if _has_steps(cls):
        return f"pass the class itself, {cls.__name__}: every trial makes an object of it"
    if cls.__name__ == "Study":
        return "cotune.optimize(study, objective) runs an Optuna study"
    return "pass a function of the config"


class Calling:
    """A trainable of cotune's that calls the user's function or object.

    Attributes:
        callee: What it calls. Names of attributes travel, and by `func` torch's compiler would seem to be used.
    """

    callee: Any


def called_by(trainable: Any) -> Any:
    """The user's function or object behind partials and what cotune puts around it."""
    while isinstance(trainable, functools.partial | Calling):
        trainable = trainable.callee if isinstance(trainable, Calling) else trainable.func
    return trainable


def unwrapped(trainable: Any) -> Any:
    """The user's function or class behind partials, methods, decorators and instances."""
    trainable = called_by(trainable)
    if isinstance(trainable, types.MethodType):
        trainable = trainable.__func__
    if isinstance(trainable, types.FunctionType):
        return inspect.unwrap(trainable, stop=lambda inner: not isinstance(inner, types.FunctionType))
    return trainable if isinstance(trainable, type) else type(trainable)


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """What a function itself is called with: a decorator may supply arguments of the function behind it."""
    return inspect.signature(function, follow_wrapped=False, **_LENIENT)


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function takes `count` arguments; True if it has no signature."""
    try:
        signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def name_of(trainable: Any) -> str:
    """What a callable is called in messages: a lambda is named so."""
    inner = called_by(trainable)
    name = getattr(inner, "__name__", type(inner).__name__)
    return "lambda" if name == "<lambda>" else str(name)


def call(trainable: Callable[[Mapping[str, Any]], Any] | type, config: Mapping[str, Any]) -> Any:
    """Runs a trainable on a config, in a session or without one; returns its result."""
    return _run_steps(trainable, config) if isinstance(trainable, type) else trainable(config)


def trace_of(error: BaseException) -> str:
    """The traceback of an error that a trainable raised, from its first frame outside cotune on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def _run_steps(cls: type, config: Mapping[str, Any]) -> Any:
    """Drives a step class: one report per step, until `step()` returns None or `{"done": True, ...}`.

    A checkpoint is taken every 5 s and after the last step, where the class has `save`.
    """
    trial: Any = cls()
    own = session.current()
    try:
        trial.setup(config)
        if getattr(trial, "load", None) is not None and (saved := session.restore()) is not None:
            trial.load(saved)
        last, is_saved, is_done = time.monotonic(), True, False

        def save() -> None:
            nonlocal last, is_saved
            with session.checkpoint() as path:
                trial.save(path)
            last, is_saved = time.monotonic(), True

        while not is_done and (metrics := trial.step()) is not None:
            session.report(metrics)
            is_done, is_saved = bool(metrics.get("done")), getattr(trial, "save", None) is None
            if own is not None and is_done:
                own.met_stop_rule = True
            # Saved after the report, so that a restart from this checkpoint does not make the report again.
            is_over = own is not None and own.met_stop_rule
            if not is_saved and (is_over or time.monotonic() - last >= CHECKPOINT_EVERY):
                save()
            session.leave_if_over()
        if not is_saved:
            save()
    finally:
        try:
            if getattr(trial, "cleanup", None) is not None:
                trial.cleanup()
        except Exception:
            # Raised, it would hide why the trial ends, or fail one that has all its results.
            traceback.print_exc()
