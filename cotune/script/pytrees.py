"""Classes of the script that JAX knows as pytrees are known to the JAX of another process, too.

It keeps a table per process, which decorators of flax and of JAX itself fill. A class that is not in it is a leaf.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_TABLE = "jax._src.tree_util"
_OF_DATACLASS = "register_dataclass.<locals>."


class Fields(NamedTuple):
    """What `jax.tree_util.register_dataclass` was told."""

    data: Sequence[str]
    meta: Sequence[str]


class Functions(NamedTuple):
    """What `jax.tree_util.register_pytree_node` was told."""

    flatten: Callable[..., Any]
    unflatten: Callable[..., Any]


def known(cls: type) -> Fields | Functions | None:
    """What JAX knows of a class; None if nothing.

    Raises:
        PicklingError: The class would have none of its fields elsewhere.
    """
    if type(cls).__module__.partition(".")[0] == "equinox":
        # Its metaclass tells JAX of the fields when it makes the class.
        raise pickle.PicklingError(f"put class {cls.__qualname__} into a module, as all subclasses of equinox.Module")
    table = getattr(sys.modules.get(_TABLE), "_registry", None)
    with contextlib.suppress(Exception):
        if table is not None and cls in table:
            flatten, unflatten = table[cls]
            if unflatten.__qualname__.startswith(_OF_DATACLASS):
                names = inspect.getclosurevars(unflatten).nonlocals
                return Fields(names["data_fields"], names["meta_fields"])
            return Functions(flatten, unflatten)
    return None


def tell(cls: Any, told: Fields | Functions) -> None:
    """Tells JAX what it knew of a class elsewhere, unless it knows the class."""
    if cls in importlib.import_module(_TABLE)._registry:
        return
    jax: Any = importlib.import_module("jax.tree_util")
    if isinstance(told, Functions):
        jax.register_pytree_node(cls, *told)
        return
    others = {one.name for one in dataclasses.fields(cls) if one.init}.difference(*told)
    jax.register_dataclass(cls, *told, drop_fields=sorted(others))
