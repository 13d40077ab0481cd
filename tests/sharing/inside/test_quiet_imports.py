"""What a trial imports runs within a block that puts its random generators back."""

import importlib
import importlib.util
import pickle
import sys
import traceback
from contextlib import contextmanager

import pytest

from cotune.sharing.inside.quiet_imports import quiet_imports


@pytest.fixture
def entered(monkeypatch, tmp_path):
    """What ran within `quiet()`: a list of `in` and `out`, to which modules of the test add their names."""
    seen = []

    @contextmanager
    def quiet():
        seen.append("in")
        try:
            yield
        finally:
            seen.append("out")

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "seen_by_quiet_imports", seen, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    quiet_imports(quiet)
    yield seen
    for name in [name for name in sys.modules if name.startswith("quiet_")]:
        del sys.modules[name]


def module(folder, name, text=""):
    (folder / f"{name}.py").write_text(f"import sys\nsys.seen_by_quiet_imports.append({name!r})\n{text}\n")


def test_the_imports_that_an_import_causes_run_within_its_own(entered, tmp_path):
    module(tmp_path, "quiet_inner")
    module(tmp_path, "quiet_outer", "import quiet_inner")
    importlib.import_module("quiet_outer")
    assert entered == ["in", "quiet_outer", "quiet_inner", "out"]
    importlib.import_module("quiet_outer")
    assert len(entered) == 4, "it is loaded"
    pickle.dumps(sys.modules["quiet_outer"].__loader__)
    importlib.reload(sys.modules["quiet_inner"])
    assert entered[4:] == ["in", "quiet_inner", "out"]


def test_a_package_is_imported_with_its_modules(entered, tmp_path):
    (tmp_path / "quiet_package").mkdir()
    (tmp_path / "quiet_package" / "__init__.py").touch()
    module(tmp_path / "quiet_package", "part")
    assert importlib.import_module("quiet_package.part").__name__ == "quiet_package.part"
    assert entered == ["in", "out", "in", "part", "out"]


def test_a_module_that_raises_or_is_not_there_raises_as_ever(entered, tmp_path):
    module(tmp_path, "quiet_broken", "raise ValueError(3)")
    for _ in range(2):
        with pytest.raises(ValueError, match="3"):
            importlib.import_module("quiet_broken")
    assert entered == 2 * ["in", "quiet_broken", "out"]
    with pytest.raises(ModuleNotFoundError, match="quiet_missing"):
        importlib.import_module("quiet_missing")
    assert importlib.util.find_spec("quiet_missing") is None


def test_a_warning_of_an_import_is_told_of_the_line_that_imports(entered, tmp_path):
    module(tmp_path, "quiet_old", "import warnings; warnings.warn('old', DeprecationWarning, stacklevel=2)")
    with pytest.warns(DeprecationWarning, match="old") as told:
        import quiet_old  # noqa: F401
    assert [warning.filename for warning in told] == [__file__]


def test_the_traceback_of_an_import_that_fails_has_no_frames_of_the_block(entered, tmp_path):
    module(tmp_path, "quiet_broken", "raise ValueError('broken')")
    with pytest.raises(ValueError, match="broken") as raised:
        import quiet_broken  # noqa: F401
    assert [frame.name for frame in traceback.extract_tb(raised.tb)][1:] == ["<module>"]
