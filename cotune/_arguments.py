"""Checks of the arguments of every public entry point: a wrong value is named before anything starts."""

from __future__ import annotations

import difflib
import dis
import importlib
import inspect
import math
import operator
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import numpy as np

from cotune.errors import InputError, RunError
from cotune.packer import PackerOptions, make_policy
from cotune.plain import real
from cotune.process_wide import IN_LANE
from cotune.results import SHORT
from cotune.search.spaces import apart
from cotune.trainable import takes, unwrapped
from cotune.used_code import globals_set_by

T = TypeVar("T")

# Every lane opens a file descriptor for each resident it may have.
MAX_RESIDENTS = 64
# Of the name of a file.
MOST_BYTES = 255
MAX_THREADS = 4096
# Names that every file system accepts for a folder and that need no quoting in a shell.
RUN_NAME = re.compile(r"\w[\w.+=@-]{0,127}")


def made_up(kind: str) -> str:
    """Generates a name for a run that was given none."""
    safe = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in kind).lstrip("-")
    # A file system counts bytes, of which a letter may have four.
    short = safe.encode()[:100].decode(errors="ignore") or "run"
    return f"{short}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def refuse_before_start(function: str, unknown: Iterable[str], instead: Mapping[str, str]) -> None:
    """Refuses what no argument can mend, and arguments that there are not.

    Args:
        function: The function of cotune that was called.
        unknown: Names of arguments that it does not take.
        instead: Hints by such names.

    Raises:
        RunError: This system, or this place in a program, is none for it.
        InputError: There is such an argument.
    """
    _refuse_other_systems()
    refuse_unknown(function, unknown, instead)
    _refuse_at_import(function)


def packer_options(
    lanes: Any, residents: Any, reuse: Any, policy: Any, iteration_timeout: Any, **more: Any
) -> PackerOptions:
    """The packer's options, from arguments that `run` and `optimize` both have.

    Raises:
        InputError: One of them is wrong.
    """
    return PackerOptions(
        width=checked_count("lanes", lanes),
        residents=_residents(residents, reuse),
        reuse=reuse,
        policy=make_policy(policy),
        iteration_timeout=checked_seconds("iteration_timeout", iteration_timeout),
        **more,
    )


def _refuse_other_systems() -> None:
    if not sys.platform.startswith("linux"):
        raise RunError(
            f"cotune runs on Linux, this is {sys.platform}", hint="use a Linux machine, a container or WSL 2"
        )


def refuse_unknown(function: str, unknown: Iterable[str], instead: Mapping[str, str]) -> None:
    """Refuses arguments that there are not; see `refuse_before_start`."""
    for name in unknown:
        known = inspect.signature(getattr(importlib.import_module("cotune"), function)).parameters
        near = difflib.get_close_matches(name, known, n=1)
        hint = instead.get(name, f"did you mean {near[0]}=?" if near else f"see help(cotune.{function})")
        raise InputError(f"cotune.{function}() takes no {name}=", hint=hint)


def checked_count(what: str, value: Any, least: int = 1, most: int = sys.maxsize) -> int | None:
    if value is None:
        return None
    if not _is_whole(value) or value < least:
        raise InputError(
            f"{what}={value!r} is not a whole number of {least} or more",
            hint=f"pass an int, such as {what}={max(least, 2)}",
        )
    if value > most:
        raise InputError(f"{what}={value} is too many", hint=f"pass {what}={most} or less")
    return int(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))


def _refuse_at_import(what: str) -> None:
    """Refuses to begin a run in every process that imports a module.

    Raises:
        RunError: This is a lane, and the call was reached by importing the trainable's module or one imported by it.
    """
    module = _module_that_calls() if os.environ.get(IN_LANE) else None
    if module is not None:
        raise RunError(
            f"{what}() was called while a lane imported the module {module!r}",
            hint="put the call under `if __name__ == '__main__':`, or into a function, or the trainable into a module "
            "of its own",
        )


def _module_that_calls() -> str | None:
    """The module whose import is in progress further down the stack; None if only a script's own code is there."""
    frame = inspect.currentframe()
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name == "<module>" and name not in ("", "__main__"):
            return name
        frame = frame.f_back
    return None


def checked_threads(threads: Any) -> int | None:
    return checked_count("threads", threads, most=MAX_THREADS)


def checked_flag(what: str, value: Any, *, or_none: bool = False) -> None:
    if not isinstance(value, bool) and not (or_none and value is None):
        choices = "True, False or None" if or_none else "True or False"
        raise InputError(f"{what}={value!r} is not a yes or no", hint=f"pass {what}={choices}")


def _residents(residents: Any, reuse: Any) -> int:
    """The number of trials that may share a lane."""
    checked_flag("reuse", reuse)
    wanted = checked_count("residents", residents, most=MAX_RESIDENTS) or 1
    if wanted > 1 and not reuse:
        raise InputError(
            f"residents={wanted} share a lane, and with reuse=False every trial has its own", hint="choose one of them"
        )
    return wanted


def checked_mps(mps: Any, lanes: int | None) -> bool | None:
    """Whether lanes are clients of an MPS daemon; False for a single lane, which gains nothing, unless asked for."""
    checked_flag("mps", mps, or_none=True)
    wanted: bool | None = mps
    return False if wanted is None and lanes == 1 else wanted


def checked_seconds(what: str, value: Any) -> float | None:
    """Seconds from a number or a timedelta."""
    if value is None:
        return None
    seconds = real(value.total_seconds() if isinstance(value, timedelta) else value)
    if not 0 < seconds < math.inf:
        told = "is not more than 0" if seconds <= 0 else "is not a time"
        raise InputError(f"{what}={value!r} {told}", hint=f"give seconds or a timedelta, such as {what}=3600")
    return seconds


def checked_timeout(value: Any) -> float | None:
    """Seconds from a timeout as Optuna takes it: infinity is None, and 0 or less is 0."""
    seconds = real(value.total_seconds() if isinstance(value, timedelta) else value)
    if value is None or seconds == math.inf:
        return None
    return 0.0 if seconds <= 0 else checked_seconds("timeout", value)


def checked_seed(seed: Any) -> int | None:
    if seed is None:
        return None
    if not _is_whole(seed) or not 0 <= seed < 2**32:
        raise InputError(f"seed={seed!r} is not an integer from 0 to 2**32 - 1", hint="pass seed=0, for example")
    return int(seed)


def checked_choice(what: str, value: T, names: Sequence[str]) -> T | str:
    """Refuses an unknown name, returns a known one in lower case; objects are checked later, when Optuna is loaded."""
    if not isinstance(value, str):
        return value
    if value.lower() not in names:
        listed = ", ".join(map(repr, names))
        raise InputError(f"{what}={value!r} is not a {what}", hint=f"known are {listed}; or pass an object of Optuna's")
    return value.lower()


def check_storage(storage: Any, elsewhere: str) -> None:
    """Refuses a storage that is not a folder; `elsewhere` is the hint on where a database goes."""
    is_path = isinstance(storage, (str, os.PathLike)) and str(storage) and "://" not in str(storage)
    if storage is not None and not is_path:
        raise InputError(f"storage={storage!r} is not a folder", hint=f"pass a path, or leave it out; {elsewhere}")


def checked_slowdown(value: Any) -> float:
    factor = real(value)
    if not factor >= 1:
        raise InputError(f"max_slowdown={value!r} is not a factor of 1 or more", hint="write 1.25 to allow a quarter")
    return factor


def checked_priority(priority: Any) -> Callable[[Mapping[str, Any]], float]:
    """A function that gives a config's priority, from a number or a function.

    Raises:
        InputError: It is neither; or, from the returned function, a config's priority is not a number.
    """
    return _of_config("priority", priority, _priority)


def checked_max_steps(max_steps: Any) -> Callable[[Mapping[str, Any]], int | None]:
    """A function that gives the iterations of a config's trial, None if unknown, from a number or a function.

    Raises:
        InputError: It is neither; or, from the returned function, a config's result is not a count.
    """
    return _of_config("max_steps", max_steps, _max_steps)


def _of_config(name: str, value: Any, checked: Callable[[Any, str], T]) -> Callable[[Mapping[str, Any]], T]:
    """Makes a function of the config from an argument that is one, or is the same for every config."""
    if not callable(value):
        same = checked(value, "")
        return lambda config: same

    def of(config: Mapping[str, Any]) -> T:
        try:
            found = value(apart(config))
        except Exception as error:
            raise InputError(
                f"{name}= raised {type(error).__name__} for {SHORT.repr(config)}: {error}",
                hint="it is called with a config",
            ) from error
        return checked(found, f" for {SHORT.repr(config)}")

    return of


def _priority(value: Any, where: str) -> float:
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            f"priority={repr(value)[:100]}{where} is not a number",
            hint="write priority=1, or a function of the config",
        )
    return number


def _max_steps(value: Any, where: str) -> int | None:
    try:
        steps = 0 if isinstance(value, bool) else operator.index(1 if value is None else value)
    except TypeError:
        steps = 0
    if not 1 <= steps < 2**63:
        raise InputError(
            f"max_steps={value!r}{where} is not a whole number from 1 to 2**63 - 1",
            hint="write how many optimizer steps (or reports, without an optimizer) a trial makes, or a function of "
            'the config: max_steps=lambda config: 100 * config["epochs"]',
        )
    return None if value is None else steps


def assigned_outside(function: Any) -> list[str]:
    """The global and enclosing variables that a function's own bytecode assigns."""
    inner = unwrapped(function)
    code = getattr(inner.__call__ if isinstance(inner, type) else inner, "__code__", None)
    if code is None:
        return []
    outer = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_DEREF"}
    return sorted(globals_set_by(code) | (outer & set(code.co_freevars)))


def checked_callbacks(callbacks: Any, *passed: str) -> Iterable[Callable[..., Any]]:
    """Callbacks that can be called with the arguments `passed`: the list itself, which may change later."""
    listed = tuple(callbacks or ()) if isinstance(callbacks, Iterator | None) else callbacks
    if not isinstance(listed, Iterable) or not all(map(callable, listed)):
        raise InputError(f"callbacks={callbacks!r} is not a list of functions", hint="write callbacks=[function]")
    for callback in listed:
        if not takes(callback, len(passed)):
            raise InputError(
                f"the callback {callback!r} cannot be called with {' and '.join(passed)}",
                hint=f"write def callback({', '.join(passed)}): ...",
            )
    return listed


def check_goal(metric: Any, mode: Any) -> None:
    if not isinstance(metric, str) or not metric:
        what = "metric= is missing" if metric == "" else f"metric={metric!r} is not a name"
        raise InputError(what, hint="name one of the metrics that the trainable reports")
    if not isinstance(mode, str) or mode not in ("min", "max"):
        raise InputError(f"mode={mode!r} is neither 'min' nor 'max'", hint="say which way is better")


def check_run_name(name: Any) -> None:
    if name is not None and not (
        isinstance(name, str) and RUN_NAME.fullmatch(name) and len(name.encode()) <= MOST_BYTES
    ):
        raise InputError(
            f"name={name!r} cannot name a folder",
            hint="use up to 128 letters, digits, . _ + = @ -, beginning with a letter or digit",
        )
