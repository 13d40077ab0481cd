"""The hook behind every optimizer's step."""

import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import importlib.util, sys
from cotune.sharing.boundary import on_optimizer_step
calls = []
def install():
    on_optimizer_step(lambda: calls.append("step"), lambda: calls.append("loaded"))
def step(name="SGD", **options):
    import torch
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = getattr(torch.optim, name)([parameter], lr=0.1, **options)
    parameter.sum().backward()
    optimizer.step()
"""


def in_fresh_process(code):
    """Runs code in a process that has not imported torch; a failed assertion there fails here."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_hook_installed_before_torch_is_imported_is_called_after_every_step():
    in_fresh_process("""
        install()
        assert calls == [] and "torch" not in sys.modules
        step("SGD")
        assert calls == ["loaded", "step"], calls
        step("Adam")
        step("AdamW", foreach=True)
        assert calls == ["loaded", "step", "step", "step"], calls
    """)


def test_a_hook_installed_after_torch_was_imported_is_called_after_every_step():
    in_fresh_process("""
        import torch
        install()
        assert calls == ["loaded"]
        step("SGD")
        step("Adam")
        assert calls == ["loaded", "step", "step"], calls
    """)


def test_looking_for_torch_without_importing_it_loses_no_hook():
    in_fresh_process("""
        install()
        assert importlib.util.find_spec("torch") is not None
        assert "torch" not in sys.modules
        step()
        assert calls == ["loaded", "step"], calls
    """)


def test_importing_a_part_of_torch_first_is_as_good():
    in_fresh_process("""
        install()
        import torch.nn.functional
        assert calls == ["loaded"], calls
        step()
        assert calls == ["loaded", "step"], calls
    """)


def test_the_hook_leaves_no_finder_behind_and_torch_as_it_is():
    in_fresh_process("""
        before = list(sys.meta_path)
        install()
        import torch
        assert sys.meta_path == before
        assert torch.__spec__.name == "torch" and torch.__file__ == torch.__spec__.origin
        assert torch.__spec__.submodule_search_locations
    """)


def test_where_torch_is_missing_importing_it_fails_as_ever():
    in_fresh_process("""
        class Missing:
            def find_spec(self, name, path, target=None):
                if name == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")
        sys.meta_path.insert(0, Missing())
        install()
        for _ in range(2):
            try:
                import torch
            except ModuleNotFoundError as error:
                assert error.name == "torch"
            else:
                raise AssertionError("imported")
        assert calls == []
    """)


def test_what_the_hook_raises_comes_out_of_step():
    in_fresh_process("""
        class Stop(BaseException):
            pass
        def hook():
            raise Stop
        on_optimizer_step(hook, lambda: None)
        try:
            step()
        except Stop:
            pass
        else:
            raise AssertionError("not raised")
    """)


@pytest.mark.parametrize("where", ["main", "other"])
def test_the_hook_runs_in_the_thread_that_made_the_step(where):
    in_fresh_process(f"""
        import threading
        seen = []
        on_optimizer_step(lambda: seen.append(threading.current_thread().name), lambda: None)
        if "{where}" == "main":
            step()
            assert seen == ["MainThread"], seen
        else:
            thread = threading.Thread(target=step, name="other")
            thread.start()
            thread.join()
            assert seen == ["other"], seen
    """)
