"""Loggers that a script has set up print in its trials."""

import logging
import sys
from types import ModuleType

import pytest

import cotune
from cotune.script.script_logging import levels, loggers_of_script, set_up


class Shouting(logging.Formatter):
    def format(self, record):
        return super().format(record).upper()


@pytest.fixture
def logger(monkeypatch):
    monkeypatch.setattr(logging.root.manager, "loggerDict", {})
    return logging.getLogger("app of ours.part")


def handler(stream, form="%(name)s says %(message)s", of=logging.Formatter):
    made = logging.StreamHandler(stream)
    made.setFormatter(of(form))
    return made


def test_what_a_logger_of_the_script_says_is_in_the_trials_log(logger, tmp_path):
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler(sys.stdout))
    logger.addHandler(handler(sys.stderr, of=Shouting))
    logger.handlers[1].setLevel(logging.WARNING)

    def train(config):
        import logging

        logging.getLogger("app of ours.part").info("hello")
        logging.getLogger("app of ours.part").warning("beware")
        return 0.0

    options = {"metric": "loss", "storage": tmp_path, "devices": ["cpu:0@1GiB"], "dashboard": False}
    results = cotune.run(train, {"x": cotune.uniform(0, 1)}, trials=2, lanes=1, **options)
    said = ["app of ours.part says hello", "app of ours.part says beware", "APP OF OURS.PART SAYS BEWARE"]
    assert [(trial.folder / "log.txt").read_text().splitlines() for trial in results] == [said] * 2


@pytest.mark.parametrize("name", ["app of ours", "app of ours.part"])
def test_loggers_of_installed_modules_are_left_to_them(logger, monkeypatch, name):
    logger.addHandler(handler(sys.stdout))
    monkeypatch.setitem(sys.modules, name, module := ModuleType(name))
    module.__file__ = "/lib/site-packages/app/__init__.py"
    assert loggers_of_script() == {}
    module.__file__ = "/src/app/__init__.py"
    assert [*loggers_of_script()] == ["app of ours.part"]


def test_a_module_that_sets_up_its_logger_as_it_is_imported_prints_once(logger, monkeypatch, capsys):
    logger.addHandler(handler(sys.stdout))
    told = loggers_of_script()
    logger.handlers.clear()
    monkeypatch.setattr(sys, "__stdout__", sys.stdout)
    set_up(told)
    logger.warning("before")
    logger.addHandler(handler(sys.stdout, "%(message)s"))
    logger.warning("after")
    assert capsys.readouterr().out.splitlines() == ["app of ours.part says before", "after"]


def test_another_thread_may_import_what_makes_loggers_meanwhile(logger, grown_at_collections):
    logger.addHandler(handler(sys.stdout))
    for number in range(100):
        logging.getLogger(f"other of ours.{number}")
    with grown_at_collections(logging.root.manager.loggerDict, logging.getLogger("came")):
        assert list(loggers_of_script()) == [logger.name]


def test_a_logger_that_a_module_has_set_up_is_left_as_it_is(logger):
    logger.addHandler(handler(sys.stdout))
    told = loggers_of_script()
    assert list(told) == [logger.name]
    theirs = logging.NullHandler()
    logger.handlers[:] = [theirs]
    set_up(told)
    assert logger.handlers == [theirs]


def test_handlers_of_other_kinds_do_not_travel(logger, tmp_path):
    logger.addHandler(logging.FileHandler(tmp_path / "log"))
    logger.addHandler(logging.NullHandler())
    assert loggers_of_script() == {}
    logger.handlers[0].close()


def test_another_thread_may_make_loggers_while_their_levels_are_read(monkeypatch):
    class Odd:
        @property
        def __class__(self):
            """Runs where other objects let another thread have its turn."""
            logging.getLogger(f"came of ours.{len(loggers)}")
            return Odd

    loggers = {}
    # Only here: pytest looks through them itself at the end of a test.
    with monkeypatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
        patch.setattr(logging.root.manager, "loggerDict", loggers)
        logging.getLogger("first of ours").setLevel(logging.DEBUG)
        loggers["odd"] = Odd()
        assert levels()["first of ours"] == logging.DEBUG
