"""The process-wide state that is swapped when the turn changes, so that a trial computes the same bits shared as alone.

Grad mode, autocast, default device and thread counts are per thread. Everything else that numerics, file names or
errors depend on is process-wide: random generators, torch's flags, the working directory, the environment, warning
filters, multiprocessing's start method, settings of the interpreter.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from cotune.paths import working_directory
from cotune.script.named import Named
from cotune.script.settings import filters_changed
from cotune.sharing.inside.cupy_pool import CupyRandom
from cotune.sharing.inside.interpreter import current_umask, put_settings, settings_now
from cotune.sharing.inside.library_state import LibraryState
from cotune.sharing.inside.main_module import MainModule
from cotune.sharing.inside.numpy_random import NumpyRandom
from cotune.sharing.inside.python_random import PythonRandom
from cotune.sharing.inside.script_classes import ScriptClasses
from cotune.sharing.inside.spawned import send_script_along
from cotune.sharing.inside.torch_state import TorchRandom, TorchState, flags_now, put_flags


class Context:
    """One trial's version of the process-wide state, which starts from its seed and `home`.

    Args:
        seed: Seeds torch, numpy and random.
        home: The state that every trial starts with.
        inherits: Whether it takes over the classes of shared objects (`ScriptClasses`).
    """

    def __init__(self, seed: int, home: Home, *, inherits: bool = False) -> None:
        self._seed = seed
        self._python = PythonRandom(seed)
        self._numpy = NumpyRandom(seed)
        self._torch: TorchState | None = None
        self._cupy: CupyRandom | None = None
        self._home = home
        self._own = home.in_place
        self._path = home.path
        self._filters: Any = list(home.filters)
        self._first_filters = self._filters
        self._main: MainModule | None = None
        self._libraries = LibraryState()
        self._classes = ScriptClasses(inherits=inherits)
        # Per trial, which may redirect them.
        self._streams = home.streams()

    def adopt(self, functions: Sequence[FunctionType], named: Mapping[str, Named]) -> None:
        """Puts the names that the trainable brought from its script into the main module.

        Args:
            functions: Functions of the script that came with it.
            named: What annotations of its classes name.
        """
        self._main = MainModule(functions, self._classes.now(), named)
        self._main.enter()
        send_script_along()

    def share(self) -> None:
        """Notes that an object made by this trial, which has the turn, is for later trials, too."""
        self._classes.share()

    def close(self, handlers: Collection[logging.Handler] = ()) -> None:
        """Releases what is kept for this trial; called while it has the turn.

        Args:
            handlers: Handlers that were added to the root logger and stay open for later trials.
        """
        for handler in [handler for handler in logging.root.handlers if handler not in self._home.handlers]:
            logging.root.removeHandler(handler)
            if handler not in handlers:
                with contextlib.suppress(Exception):
                    handler.close()
        if self._main is not None:
            self._main.leave()

    def enter(self) -> None:
        """Puts this trial's state in place."""
        global _left
        self._python.apply()
        self._numpy.apply()
        self.torch_loaded()
        # As a rule it is known what the previous holder has left, and need not be read again.
        left, _left = _left or _InPlace.now(), None
        if self._torch is not None:
            self._torch.apply()
        self.cupy_loaded()
        self._own.put_back(left)
        if sys.path != self._path:
            _set_path(self._path)
        if warnings.filters is not self._filters:
            _set_filters(self._filters)
        self._libraries.enter()
        self._classes.enter()
        sys.stdout, sys.stderr = self._streams
        if self._main is not None:
            self._main.enter()

    def leave(self) -> None:
        """Notes this trial's state before another trial's is put in place."""
        global _left
        self._python.capture()
        self._numpy.capture()
        self.torch_loaded()
        home = self._home.in_place
        mask = os.umask(home.mask)
        left = _InPlace.now(home.mask)
        if self._torch is not None:
            self._torch.capture()
        if self._cupy is not None:
            self._cupy.capture()
        self._own = left._replace(directory=left.directory or self._own.directory, mask=mask)
        path: Any = sys.path
        if path != self._path and isinstance(path, (list, tuple)):
            self._path = list(path)
        # The list itself: a trial inside `catch_warnings` gets the list from before back at its end.
        self._filters = warnings.filters
        self._libraries.leave()
        self._classes.leave()
        self._streams = _streams()
        _left = left

    def torch_loaded(self) -> None:
        """Starts to keep torch's state, once torch is loaded."""
        torch = sys.modules.get("torch")
        if self._torch is None and torch is not None and hasattr(torch, "default_generator"):
            self._torch = TorchState(torch, self._seed)

    def cupy_loaded(self) -> None:
        """Puts this trial's CuPy generators in place, if CuPy is loaded."""
        cupy = sys.modules.get("cupy")
        if self._cupy is None and cupy is not None and hasattr(cupy, "random"):
            self._cupy = CupyRandom(cupy, self._seed)
        if self._cupy is not None:
            self._cupy.apply()

    @property
    def catches_warnings(self) -> bool:
        """Whether this trial, which has the turn, is within `catch_warnings`, which uses a list of its own."""
        return warnings.filters is not self._first_filters

    @contextlib.contextmanager
    def no_draws(self, seed: int | None = None) -> Iterator[None]:
        """Puts the random generators back in place at the end, as if nothing had been drawn meanwhile.

        Blocks may be nested: what builds a shared object imports modules.

        Args:
            seed: Seeds them first; None to leave them as they are.
        """
        own, had = self._seed, (self._torch is None, self._cupy is None)
        kept = self._generators(own)
        for generator in kept:
            generator.capture()
        if seed is not None:
            # Should torch or CuPy be imported meanwhile, this is its seed until the end.
            self._seed = seed
            for generator in self._generators(seed):
                generator.apply()
        try:
            yield
        finally:
            self._seed = own
            if had != (self._torch is None, self._cupy is None):
                # What has come meanwhile begins with the trial's seed.
                kept = [*self._generators(own), *kept]
            for generator in kept:
                generator.apply()

    def _generators(self, seed: int) -> list[PythonRandom | NumpyRandom | TorchRandom | CupyRandom]:
        """Generators of those that are loaded, which start from a seed."""
        made: list[PythonRandom | NumpyRandom | TorchRandom | CupyRandom] = [PythonRandom(seed), NumpyRandom(seed)]
        if self._torch is not None:
            made.append(TorchRandom(sys.modules["torch"], seed))
        if self._cupy is not None:
            made.append(CupyRandom(sys.modules["cupy"], seed))
        return made

    def seed_torch(self) -> None:
        """Seeds torch after this trial has imported it."""
        self.torch_loaded()
        if self._torch is not None:
            self._torch.apply()


def note_left() -> None:
    """Notes what an ended trial has left in place, while nobody waits: the next one then need not read it."""
    global _left
    _left = _InPlace.now()


class _InPlace(NamedTuple):
    """State that takes long to read; the umask is -1 if not known, since reading it means setting it."""

    directory: str
    environment: dict[Any, Any]
    settings: list[Any]
    flags: list[Any]
    mask: int

    @classmethod
    def now(cls, mask: int = -1) -> _InPlace:
        return cls(working_directory(), dict(encoded_environment()), settings_now(), flags_now(), mask)

    def put_back(self, left: _InPlace) -> None:
        """Puts all of it in place of what is `left` there."""
        if left.directory != self.directory:
            with contextlib.suppress(OSError):
                os.chdir(self.directory)
        if left.environment != self.environment:
            set_environment(self.environment)
        if left.settings != self.settings:
            put_settings(self.settings)
        put_flags(self.flags, left.flags)
        if left.mask != self.mask:
            os.umask(self.mask)


_environ: Any = os.environ
# What is in place; None while a trial runs, which may change anything.
_left: _InPlace | None = None


class Home:
    """The process-wide state as the lane found it."""

    def __init__(self) -> None:
        found = _InPlace.now(current_umask())
        # The directory where the script was started may have been removed.
        self.in_place = found._replace(directory=found.directory or "/")
        self.path = list(sys.path)
        self.filters = list(warnings.filters)
        self.handlers = list(logging.root.handlers)
        streams = _streams()
        self.streams: Callable[[], tuple[Any, Any]] = lambda: streams


def _streams() -> tuple[Any, Any]:
    """`sys.stdout` and `sys.stderr`; None for one that a trial has deleted."""
    return getattr(sys, "stdout", None), getattr(sys, "stderr", None)


def encoded_environment() -> dict[Any, Any]:
    """`os.environ` in its encoded form: comparing it takes 1 us instead of 30, decoding it 50."""
    if os.environ is not _environ:
        _take_back_environment()
    data: dict[Any, Any] = _environ._data
    return data


def _take_back_environment() -> None:
    """Undoes a trial's assignment to `os.environ`, and takes over the content of the object assigned."""
    wanted, os.environ = os.environ, _environ
    with contextlib.suppress(Exception):
        set_environment({os.fsencode(key): os.fsencode(value) for key, value in wanted.items()})


def _set_path(wanted: list[str]) -> None:
    path: Any = sys.path
    if isinstance(path, list):
        path[:] = wanted
    else:
        sys.path = list(wanted)


def _set_filters(wanted: Any) -> None:
    is_other = warnings.filters != wanted
    warnings.filters = wanted
    if is_other:
        filters_changed()


def set_environment(wanted: dict[Any, Any]) -> None:
    """Makes this, encoded as `os.environ` has it, the process's environment, and its `TZ` the time zone."""
    is_elsewhere = encoded_environment().get(b"TZ") != wanted.get(b"TZ")
    for key in set(encoded_environment()) - set(wanted):
        del os.environ[os.fsdecode(key)]
    for key, value in wanted.items():
        if encoded_environment().get(key) != value:
            os.environ[os.fsdecode(key)] = os.fsdecode(value)
    if is_elsewhere:
        time.tzset()
