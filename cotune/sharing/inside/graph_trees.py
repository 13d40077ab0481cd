"""A trial's thread has the tables that torch.compile's CUDA graphs keep for each thread.

Up to torch 2.12 only the thread that imports the module gets them, and in any other one an assertion fails
(github.com/pytorch/pytorch/issues/123177).
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from typing import Any

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
