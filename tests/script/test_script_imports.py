"""What a script imports for what that does is imported in lanes, too."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import cotune

ROOT = Path(cotune.__file__).parents[1]
SHOW = "\nfrom cotune.script.script_imports import script_imports\nprint(script_imports()[1])\n"


@pytest.fixture
def own_imports(tmp_path):
    """The user's own modules that a script imports for what that does."""
    for name in ("plain", "patches", "starred", "taken", "loaded_by_a_function", "guarded", "tried", "cotune_setup"):
        (tmp_path / f"{name}.py").write_text("value = 1\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/plugin.py").write_text("")

    def of(script, how=(), show=SHOW, encoding="utf-8"):
        (tmp_path / "script.py").write_text(textwrap.dedent(script) + show, encoding=encoding)
        command = [sys.executable, *(how or ["script.py"])]
        done = subprocess.run(
            command, cwd=tmp_path, env={"PYTHONPATH": f"{ROOT}:{tmp_path}"}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return of


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("import patches", ["patches"]),
        ("import patches as p", ["patches"]),
        ("from starred import *", ["starred"]),
        ("from package import plugin", ["package", "package.plugin"]),
        ("import package.plugin", ["package.plugin"]),
        ("import package\nimport package.plugin\nprint(end=package.__name__[:0])", ["package.plugin"]),
        ("import package.plugin\nprint(end=package.plugin.__name__[:0])", []),
        ("try:\n    import tried\nexcept ImportError:\n    pass", ["tried"]),
        ("import plain\nprint(end='' if plain.value else '')", []),
        ("from taken import value\nprint(end='' if value else '')", []),
        ("def f():\n    import loaded_by_a_function\nf()", []),
        ("if __name__ == '__main__':\n    import guarded", []),
        ("import json, cotune", []),
        ("import cotune_setup", ["cotune_setup"]),
    ],
)
def test_modules_whose_names_a_script_does_not_use_are_imported_for_what_that_does(own_imports, script, found):
    assert own_imports(script) == str(found)


@pytest.mark.parametrize(("line", "encoding"), [("", "utf-8-sig"), ("# coding: latin-1\n", "latin-1")])
def test_a_script_may_be_encoded_in_any_way_that_python_reads(own_imports, line, encoding):
    assert own_imports(f"{line}import patches  # für später", encoding=encoding) == "['patches']"


def test_of_installed_modules_those_without_effect_are_left_out(own_imports):
    show = SHOW.replace("[1]", "[0]")
    assert own_imports("import numpy\nimport rich.table", show=show) == "['rich.table']"


def test_a_module_of_a_package_may_import_by_relative_names(own_imports, tmp_path):
    (tmp_path / "package/__main__.py").write_text("from . import plugin\n" + SHOW)
    assert own_imports("", ["-m", "package"]) == "['package', 'package.plugin']"


def test_a_script_without_a_file_is_no_harm(own_imports):
    assert own_imports("", ["-c", f"import patches{SHOW}"]) == "[]"
