"""CUDA graphs of torch.compile where several trials share a process."""

import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from cotune import session
from cotune.sharing.inside.graph_trees import give_graph_trees, keep_graphs_apart


@pytest.fixture
def backend_of(monkeypatch):
    """Makes a backend as `torch.compile` does, in a trial."""
    kind = torch._TorchCompileInductorWrapper
    for name in ("__init__", "__eq__"):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    early = kind("reduce-overhead", None, False)
    keep_graphs_apart(torch)

    def make(trial, mode="reduce-overhead", attempt=0):
        if trial is None:
            return early
        session.bind(SimpleNamespace(trial=trial, attempt=attempt))
        try:
            return kind(mode, None, False)
        finally:
            session.bind(None)

    return make


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_what_a_trial_has_compiled_with_cuda_graphs_serves_no_other(backend_of, mode):
    assert backend_of(1, mode) == backend_of(1, mode)
    assert backend_of(1, mode) != backend_of(2, mode)
    # Another attempt is made by another thread.
    assert backend_of(1, mode) != backend_of(1, mode, attempt=1)


def test_nor_does_what_a_thread_of_the_trial_has_compiled(backend_of):
    made = []

    def compiled(trial):
        thread = threading.Thread(
            target=lambda: made.append(torch._TorchCompileInductorWrapper("max-autotune", None, 0))
        )
        # As a thread that a trial has started carries it (`session.mark_threads`).
        vars(thread)["_cotune_session"] = SimpleNamespace(trial=trial, attempt=0)
        thread.start()
        thread.join()
        return made[-1]

    assert compiled(1) == compiled(1) == backend_of(1, "max-autotune")
    assert compiled(1) != compiled(2)


def test_what_was_compiled_without_cuda_graphs_serves_lane_mates_too(backend_of):
    assert backend_of(1, "default") == backend_of(2, "default")
    assert backend_of(1, "default") != backend_of(1)
    with sys.modules["torch._inductor.config"].patch({"triton.cudagraphs": True}):
        assert backend_of(1, "default") != backend_of(2, "default")


def test_a_backend_that_was_made_before_any_trial_is_one_of_its_own(backend_of):
    assert backend_of(None) == backend_of(None)
    assert backend_of(None) != backend_of(1)


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
