"""CUDA graphs of torch.compile are each trial's own, as are the tables that torch keeps of them for each thread.

Up to torch 2.12 only the thread that imports the module gets the tables, and in any other one an assertion fails
(github.com/pytorch/pytorch/issues/123177).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import defaultdict
from typing import Any

from cotune import session

_CONTAINERS, _LOCKS = "tree_manager_containers", "tree_manager_locks"


def give_graph_trees() -> None:
    """Makes the tables for the calling thread, if it has none."""
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    local = getattr(trees, "local", None)
    if local is None or hasattr(local, _CONTAINERS):
        return
    torch: Any = sys.modules["torch"]
    setattr(local, _CONTAINERS, {})
    setattr(local, _LOCKS, defaultdict(threading.Lock))
    # From here threads of the backward pass take them.
    for name in (_CONTAINERS, _LOCKS):
        torch._C._stash_obj_in_tls(name, getattr(local, name))


def keep_graphs_apart(torch: Any) -> None:
    """Has code that was compiled with CUDA graphs serve only the attempt at a trial that compiled it.

    torch finds compiled code by the code object, which lane-mates share where it is a library's, such as that of
    `nn.Sequential`, and by comparing backends. To run graphs that another thread has recorded, and record them anew for
    other parameters, left torch's generator as if within a capture (torch 2.11, on an H200).
    """
    backend = getattr(torch, "_TorchCompileInductorWrapper", None)
    if backend is None:
        return
    make, equals = backend.__init__, backend.__eq__

    @functools.wraps(make)
    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        # Also in a thread that the trial has started.
        trial: Any = session.current()
        self._cotune_attempt = None if trial is None else (trial.trial, trial.attempt)

    @functools.wraps(equals)
    def is_same(self: Any, other: Any) -> Any:
        return equals(self, other) and (_attempt_of(self) == _attempt_of(other) or not _has_graphs(self))

    backend.__init__, backend.__eq__ = made, is_same


def _attempt_of(backend: Any) -> tuple[int, int] | None:
    # One that came with the script was not made here.
    attempt: tuple[int, int] | None = getattr(backend, "_cotune_attempt", None)
    return attempt


def _has_graphs(backend: Any) -> bool:
    own: bool | None = backend.config.get("triton.cudagraphs")
    config: Any = sys.modules.get("torch._inductor.config")
    return bool(config.triton.cudagraphs if own is None and config is not None else own)
