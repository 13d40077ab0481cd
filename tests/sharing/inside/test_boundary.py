"""The hook behind every optimizer's step, put there before or after torch is imported."""

import importlib
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import cotune
from cotune.sharing.inside.boundary import on_optimizer_step

PRELUDE = """
import importlib.util, sys
from cotune.sharing.inside.boundary import on_optimizer_step
calls = []
def install():
    on_optimizer_step(lambda *_: calls.append("step"), lambda: calls.append("loaded"))
"""

# As much of torch as the hook needs: starting with the real one takes seconds.
FAKE_TORCH = {
    "torch/__init__.py": "import torch.optim\nready = True\n",
    "torch/nn/__init__.py": "",
    "torch/nn/functional.py": "",
    "torch/optim/__init__.py": "from torch.optim import optimizer\n",
    "torch/optim/optimizer.py": (
        "hooks = []\n"
        "def register_optimizer_step_post_hook(hook):\n"
        "    import torch\n"
        "    assert torch.ready\n"
        "    hooks.append(hook)\n"
        "def step():\n"
        "    for hook in hooks:\n"
        "        hook(None, (), {})\n"
    ),
}


def in_fresh_process(code, path=None):
    """Runs code in a process that has not imported torch; a failed assertion there fails here."""
    extra = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    done = subprocess.run(
        [sys.executable, "-c", extra + PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=Path(cotune.__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def fake_torch(tmp_path):
    for name, text in FAKE_TORCH.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def torch(monkeypatch):
    """Torch, with every hook that a test installs taken back."""
    torch = pytest.importorskip("torch")
    home = importlib.import_module("torch.optim.optimizer")
    monkeypatch.setattr(home, "_global_optimizer_post_hooks", home._global_optimizer_post_hooks.copy())
    return torch


def step(torch, name="SGD", **options):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = getattr(torch.optim, name)([parameter], lr=0.1, **options)
    parameter.sum().backward()
    optimizer.step()


def test_a_hook_installed_before_torch_is_imported_is_called_after_every_step():
    pytest.importorskip("torch")
    in_fresh_process("""
        install()
        assert calls == [] and "torch" not in sys.modules
        import torch
        from cotune.sharing.inside.dynamo import defer_dynamo
        assert calls == ["loaded"], calls
        defer_dynamo()
        for name in ("SGD", "Adam"):
            parameter = torch.nn.Parameter(torch.ones(2))
            optimizer = getattr(torch.optim, name)([parameter], lr=0.1)
            parameter.sum().backward()
            optimizer.step()
        assert calls == ["loaded", "step", "step"], calls
    """)


@pytest.mark.parametrize(
    ("name", "options"), [("SGD", {}), ("Adam", {}), ("AdamW", {"foreach": True}), ("RMSprop", {}), ("Adagrad", {})]
)
def test_a_hook_installed_after_torch_was_imported_is_called_after_every_step(torch, name, options):
    calls = []
    on_optimizer_step(lambda *_: calls.append("step"), lambda: calls.append("loaded"))
    assert calls == ["loaded"]
    step(torch, name, **options)
    assert calls == ["loaded", "step"]


def test_the_hook_sees_the_step_made(torch):
    parameter = torch.nn.Parameter(torch.ones(1))
    seen = []
    on_optimizer_step(lambda *_: seen.append(parameter.item()), lambda: None)
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    parameter.sum().backward()
    optimizer.step()
    assert seen == [0.5]


def test_what_the_hook_raises_comes_out_of_step(torch):
    class Stop(BaseException):
        pass

    def hook(*_):
        raise Stop

    on_optimizer_step(hook, lambda: None)
    with pytest.raises(Stop):
        step(torch)


def test_the_hook_runs_in_the_thread_that_made_the_step(torch):
    seen = []
    on_optimizer_step(lambda *_: seen.append(threading.current_thread().name), lambda: None)
    step(torch)
    thread = threading.Thread(target=step, args=[torch], name="other")
    thread.start()
    thread.join(timeout=20)
    assert seen == [threading.current_thread().name, "other"]


def test_the_hook_is_installed_when_all_of_torch_is_there(fake_torch):
    in_fresh_process(
        """
        install()
        import torch
        assert calls == ["loaded"], calls
        torch.optim.optimizer.step()
        assert calls == ["loaded", "step"], calls
        """,
        fake_torch,
    )


def test_looking_for_torch_without_importing_it_loses_no_hook(fake_torch):
    in_fresh_process(
        """
        install()
        assert importlib.util.find_spec("torch") is not None
        assert "torch" not in sys.modules
        import torch
        torch.optim.optimizer.step()
        assert calls == ["loaded", "step"], calls
        """,
        fake_torch,
    )


def test_importing_a_part_of_torch_first_is_as_good(fake_torch):
    in_fresh_process(
        """
        install()
        import torch.nn.functional
        assert calls == ["loaded"], calls
        """,
        fake_torch,
    )


def test_once_torch_is_imported_no_finder_is_left_behind(fake_torch):
    in_fresh_process(
        """
        before = list(sys.meta_path)
        install()
        import torch
        assert sys.meta_path == before
        assert torch.__spec__.name == "torch" and torch.__file__ == torch.__spec__.origin
        assert torch.__spec__.submodule_search_locations
        """,
        fake_torch,
    )


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


def test_a_torch_whose_import_failed_once_gets_the_hook_the_second_time(fake_torch):
    in_fresh_process(
        """
        import pathlib
        source = pathlib.Path(sys.path[0], "torch", "__init__.py")
        whole = source.read_text()
        source.write_text("raise ImportError('no libcudart')")
        install()
        try:
            import torch
        except ImportError:
            pass
        source.write_text(whole)
        import importlib
        importlib.invalidate_caches()
        sys.dont_write_bytecode = True
        import torch
        torch.optim.optimizer.step()
        assert calls == ["loaded", "step"], calls
        """,
        fake_torch,
    )
