"""A trial's own torch random generators and flags, in a process that several trials share."""

from __future__ import annotations

import copy
import importlib
import sys
from typing import Any

from cotune.sharing.torch_flags import Setting, torch_flags


class TorchRandom:
    """The states of the global random generators of torch, which must be loaded.

    Attributes:
        torch: The module.
    """

    def __init__(self, torch: Any, seed: int) -> None:
        self.torch = torch
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Has the generators start from a seed when they are next put in place."""
        self._seed = seed
        self._cpu: Any = None
        self._cuda: list[Any] | None = None

    def apply(self) -> None:
        torch = self.torch
        if self._cpu is None:
            torch.default_generator.manual_seed(self._seed)
        else:
            torch.default_generator.set_state(self._cpu)
        if torch.cuda.is_initialized():
            for n, generator in enumerate(torch.cuda.default_generators):
                if self._cuda is None:
                    generator.manual_seed(self._seed)
                else:
                    generator.set_state(self._cuda[n])

    def capture(self) -> None:
        torch = self.torch
        self._cpu = torch.default_generator.get_state()
        if torch.cuda.is_initialized():
            self._cuda = [generator.get_state() for generator in torch.cuda.default_generators]


class TorchState:
    """One trial's random generators, flags and global hooks of torch, which must be loaded.

    Attributes:
        random: Its generators.
    """

    def __init__(self, torch: Any, seed: int) -> None:
        self.random = TorchRandom(torch, seed)
        self._flags: list[Any] = list(_defaults(torch))
        self._hooks = [(module, name, _copied(hooks)) for module, name, hooks in _own_hooks]

    def apply(self, now: list[Any] | None) -> None:
        """Puts this state in place.

        Args:
            now: The flags in place, as `flags_now` tells them, if that is known.
        """
        self.random.apply()
        for module, name, hooks in self._hooks:
            setattr(module, name, hooks)
        if (flags_now() if now is None else now) == self._flags:
            return
        # Each flag is read again, since setting one may have changed another.
        for (get, put), value in zip(_flags, self._flags, strict=True):
            if get() != value:
                put(value)

    def capture(self, flags: list[Any]) -> None:
        """Notes the state in place; `flags` as `flags_now` tells them."""
        self.random.capture()
        self._flags = flags
        self._hooks = [(module, name, getattr(module, name)) for module, name, _ in self._hooks]


# Global hooks of modules and optimizers, and what contexts of torch note of themselves: module, name, and the value
# before any trial. Each trial has its own tables, since the turn may change while torch iterates over one.
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
_own_hooks: list[tuple[Any, str, Any]] = []
_flags: list[Setting] = []
_flag_defaults: list[Any] = []


def flags() -> dict[str, Setting]:
    """Getters and setters of torch's flags; empty until torch's state is kept."""
    return torch_flags(sys.modules["torch"]) if _flags else {}


def flags_now() -> list[Any]:
    """The values of torch's flags; empty until torch's state is kept."""
    return [get() for get, _ in _flags]


def first_flags() -> dict[str, Any]:
    """What these were before any trial, as far as that is known."""
    return dict(zip(flags(), _flag_defaults, strict=True))


def _copied(hooks: Any) -> Any:
    # Ten times faster than copy.copy(), at every start of a trial.
    return hooks.copy() if isinstance(hooks, dict) else copy.copy(hooks)


def _defaults(torch: Any) -> list[Any]:
    if not _flags:
        _flags.extend(torch_flags(torch).values())
        _flag_defaults.extend(get() for get, _ in _flags)
        # By import_module: in torch.optim the name `optimizer` may stand for something else.
        for name, prefix in _GLOBAL.items():
            module = importlib.import_module(name)
            names = [name for name in vars(module) if name.startswith(prefix)]
            _own_hooks.extend((module, name, _copied(getattr(module, name))) for name in names)
    return _flag_defaults
