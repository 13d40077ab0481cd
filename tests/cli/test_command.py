"""The `cotune` command itself."""

import pytest

import cotune
from cotune.cli import main


def test_alone_it_says_what_it_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    for word in ("usage: cotune", "doctor", "simulate", "--version"):
        assert word in out


def test_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["--version"])
    assert exit.value.code == 0
    assert capsys.readouterr().out == f"cotune {cotune.__version__}\n"
