"""A trial's own torch random generators and flags, in a process that several trials share."""

from __future__ import annotations

import copy
import importlib
from typing import Any, NamedTuple

from cotune.script.torch_flags import Setting, flag_values, torch_flags


class TorchRandom:
    """The states of the global random generators of torch, which must be loaded."""

    def __init__(self, torch: Any, seed: int) -> None:
        self._torch = torch
        self._seed = seed
        self._cpu: Any = None
        self._cuda: list[Any] | None = None

    def apply(self) -> None:
        torch = self._torch
        if self._cpu is None:
            torch.default_generator.manual_seed(self._seed)
        else:
            torch.default_generator.set_state(self._cpu)
        # There are none before CUDA is started.
        for n, generator in enumerate(torch.cuda.default_generators):
            if self._cuda is None:
                generator.manual_seed(self._seed)
            else:
                generator.set_state(self._cuda[n])

    def capture(self) -> None:
        torch = self._torch
        self._cpu = torch.default_generator.get_state()
        self._cuda = [generator.get_state() for generator in torch.cuda.default_generators] or None


class TorchState:
    """One trial's random generators and global hooks of torch, which must be loaded; for its flags see `put_flags`."""

    def __init__(self, torch: Any, seed: int) -> None:
        self._random = TorchRandom(torch, seed)
        # Each trial has its own tables, since the turn may change while torch iterates over one.
        self._hooks = [
            (names, {name: _copied(hooks) for name, hooks in kept.items()}) for names, kept in _first(torch).hooks
        ]

    def apply(self) -> None:
        self._random.apply()
        for names, hooks in self._hooks:
            names.update(hooks)

    def capture(self) -> None:
        self._random.capture()
        self._hooks = [(names, {name: names[name] for name in hooks}) for names, hooks in self._hooks]


# Global hooks of modules and optimizers, and what contexts of torch note of themselves: module, and how the names
# begin.
_GLOBAL = {
    "torch.optim.optimizer": "_global_",
    "torch.nn.modules.module": "_global_",
    # `cached()`
    "torch.nn.utils.parametrize": "_cache",
    "torch.autograd.graph": "_allow_mutation_on_saved_tensors_enabled",
    # `set_checkpoint_early_stop()`
    "torch.utils.checkpoint": "_enable_checkpoint_early_stop",
    # `set_printoptions()`
    "torch._tensor_str": "PRINT_OPTS",
}


class _First(NamedTuple):
    """torch's state before any trial.

    Attributes:
        torch: The module.
        flags: Its flags.
        hooks: The names of each module of `_GLOBAL`, and the values of those that count.
    """

    torch: Any
    flags: list[Any]
    hooks: list[tuple[dict[str, Any], dict[str, Any]]]


_noted: _First | None = None


def flags() -> dict[str, Setting]:
    """Getters and setters of torch's flags; empty until torch's state is kept."""
    return torch_flags(_noted.torch) if _noted is not None else {}


def flags_now() -> list[Any]:
    """The values of torch's flags; empty until torch's state is kept."""
    return flag_values(_noted.torch) if _noted is not None else []


def put_flags(wanted: list[Any], now: list[Any]) -> None:
    """Sets torch's flags, once its state is kept.

    Args:
        wanted: Their values, as `flags_now` has told them; without any, those from before any trial.
        now: The values in place.
    """
    if _noted is None or now == (wanted := wanted or _noted.flags):
        return
    # Each flag is read again, since setting one may have changed another.
    for (get, put), value in zip(flags().values(), wanted, strict=True):
        if get() != value:
            put(value)


def first_flags() -> dict[str, Any]:
    """What these were before any trial, as far as that is known."""
    return dict(zip(flags(), _noted.flags, strict=True)) if _noted is not None else {}


def _copied(hooks: Any) -> Any:
    # Ten times faster than copy.copy(), at every start of a trial.
    return hooks.copy() if isinstance(hooks, dict) else copy.copy(hooks)


def _first(torch: Any) -> _First:
    global _noted
    if _noted is None:
        hooks = []
        # By import_module: in torch.optim the name `optimizer` may stand for something else.
        for module, prefix in _GLOBAL.items():
            names = vars(importlib.import_module(module))
            hooks.append((names, {name: _copied(names[name]) for name in names if name.startswith(prefix)}))
        _noted = _First(torch, flag_values(torch), hooks)
    return _noted
