"""Settings that modules make when they are imported.

Only the first trial of a lane that needs a module imports it, so what the module sets, such as torch's default dtype,
would be taken for a setting of that trial, and be undone at its end. In a process of its own it would hold from the
import on. So it holds for all trials that begin later in the lane.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

from cotune.script.compiler_settings import compiler_settings
from cotune.script.settings import OF_PYTHON, filters_changed, has_come, of_thread
from cotune.script.torch_flags import Setting
from cotune.sharing.inside import torch_state
from cotune.sharing.inside.context import encoded_environment, set_environment
from cotune.sharing.inside.interpreter import OF_LANE


class ImportSettings:
    """What modules have set in this process.

    Attributes:
        handlers: Handlers that they have added to the root logger.
    """

    def __init__(self) -> None:
        # Those of the compiler are of this thread, which has done the lane's imports, and no trial's has them.
        self._made: dict[Any, tuple[Callable[[Any], Any], Any]] = {
            name: (put, made) for name, (get, put) in compiler_settings().items() if (made := get())
        }
        self._filters: list[Any] = []
        self.handlers: list[logging.Handler] = []
        # None for what they have removed.
        self._environment: dict[bytes, bytes | None] = {}
        self._first: list[str] = []
        self._last: list[str] = []
        self._is_known = False

    @contextlib.contextmanager
    def known(self) -> Iterator[None]:
        """For imports of modules that the script has imported, too: it may have set something else since."""
        self._is_known = True
        try:
            yield
        finally:
            self._is_known = False

    @contextlib.contextmanager
    def noted(self, *, with_filters: bool = True) -> Iterator[None]:
        """For an import: notes what is set meanwhile.

        Args:
            with_filters: Whether filters of warnings that are added will stay.
        """
        before, filters, handlers = _values(), list(warnings.filters), list(logging.root.handlers)
        environment, path = dict(encoded_environment()), list(sys.path)
        try:
            yield
        finally:
            # If torch was loaded meanwhile, its own are those from before.
            before = torch_state.first_flags() | {"grad": True, "device": None} | before
            for name, (get, put) in _settings().items():
                value = get()
                if name not in before or value == before[name]:
                    continue
                if self._is_known and has_come(name):
                    put(before[name])
                    continue
                if isinstance(value, dict):
                    # The rest may be the trial's own.
                    known = self._made[name][1] if name in self._made else {}
                    value = known | {key: one for key, one in value.items() if before[name].get(key) != one}
                self._made[name] = put, value
            self.handlers += [one for one in logging.root.handlers if one not in handlers]
            if with_filters and warnings.filters != filters:
                self._filters = [one for one in warnings.filters if one not in filters] + self._filters
            if (now := encoded_environment()) != environment:
                named = {**environment, **now}
                self._environment |= {name: now.get(name) for name in named if now.get(name) != environment.get(name)}
            if sys.path != path:
                new = [entry for entry in sys.path if entry not in path]
                first = list(takewhile(lambda entry: entry not in path, sys.path))
                self._first = first + self._first
                self._last += new[len(first) :]

    def apply(self) -> None:
        """Sets all of it for a trial that begins."""
        for put, value in self._made.values():
            put(value)
        for handler in self.handlers:
            logging.root.addHandler(handler)
        if self._environment:
            wanted = encoded_environment() | self._environment
            set_environment({name: text for name, text in wanted.items() if text is not None})
        sys.path[:0] = [entry for entry in self._first if entry not in sys.path]
        sys.path += [entry for entry in self._last if entry not in sys.path]
        new = [one for one in self._filters if one not in warnings.filters]
        if new:
            warnings.filters[:0] = new  # type: ignore[index]
            filters_changed()


def _settings() -> dict[str, Setting]:
    found = OF_LANE | OF_PYTHON | torch_state.flags() | of_thread()
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads"):
        found["threads"] = torch.get_num_threads, torch.set_num_threads
    return found


def _values() -> dict[Any, Any]:
    return {name: get() for name, (get, _) in _settings().items()}
