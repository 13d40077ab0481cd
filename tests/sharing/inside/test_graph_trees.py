"""What torch up to 2.12 keeps for the one thread that has imported it."""

import sys
import threading
from types import SimpleNamespace

import torch

from cotune.sharing.inside.graph_trees import give_graph_trees


def test_any_thread_gets_the_tables_of_cuda_graphs_also_for_its_backward(monkeypatch):
    local, found = threading.local(), []
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", SimpleNamespace(local=local))

    def run():
        give_graph_trees()
        tables = local.tree_manager_containers, local.tree_manager_locks
        assert tables == (
            torch._C._get_obj_in_tls("tree_manager_containers"),
            torch._C._get_obj_in_tls("tree_manager_locks"),
        )
        tables[0][0] = "tree"
        give_graph_trees()
        found.append((local.tree_manager_containers, bool(local.tree_manager_locks[0].acquire(blocking=False))))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [({0: "tree"}, True)]


def test_where_nothing_was_compiled_nothing_is_made(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._inductor.cudagraph_trees", raising=False)
    give_graph_trees()
    assert "torch._inductor.cudagraph_trees" not in sys.modules
