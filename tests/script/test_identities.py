"""Identities that stay when objects are pickled."""

from __future__ import annotations

import argparse
import os
import pickle
import random

import numpy as np
import pytest

from cotune.script import by_value

torch = pytest.importorskip("torch")


class AttrDict(dict):
    def __init__(self, **items):
        super().__init__(**items)
        self.__dict__ = self


class Guarded:
    """Its attributes cannot be set, and it answers for any that it has not."""

    def __init__(self):
        vars(self)["lr"] = 0.1

    def __setattr__(self, name, value):
        raise RuntimeError(name)

    def __getattr__(self, name):
        raise KeyError(name)


def sent(value):
    return pickle.loads(by_value.dumps(value))


@pytest.mark.parametrize("single", [os.environ, torch.default_generator, np.random.mtrand._rand, random._inst])
def test_an_object_of_which_a_process_has_one_is_that_of_the_process(single):
    assert sent([single])[0] is single


@pytest.mark.parametrize(
    ("seed", "draw"), [(random.seed, random.random), (random.seed, random.gauss), (np.random.seed, np.random.rand)]
)
def test_a_function_taken_from_a_module_draws_from_the_generator_that_is_seeded(seed, draw):
    there = sent({"draw": draw, "args": (0.0, 1.0) if draw == random.gauss else ()})
    seed(1)
    first = there["draw"](*there["args"])
    seed(1)
    assert draw(*there["args"]) == first


def test_what_a_module_compares_by_identity_is_that_of_the_process():
    @np.errstate(divide="ignore")
    def divides():
        return np.float64(1.0) / np.float64(0.0)

    assert sent(divides)() == np.inf


@pytest.mark.parametrize("first", [0, 1])
def test_attributes_and_the_dictionary_of_them_stay_one(first):
    args = argparse.Namespace(lr=0.1, itself=None)
    args.itself = args
    pair = sent([args, vars(args)] if first == 0 else [vars(args), args])
    there, known = pair[first], pair[1 - first]
    known["lr"] = 0.2
    assert there.lr == 0.2
    assert there.itself is there
    assert vars(there) is known


def test_a_dictionary_whose_items_are_its_attributes_stays_so():
    there = sent(AttrDict(lr=0.1))
    there.lr = 0.2
    assert there == {"lr": 0.2}


def test_an_object_that_lets_nobody_set_or_ask_is_sent_as_it_is():
    assert vars(sent(Guarded())) == {"lr": 0.1}


def test_a_parser_of_the_script_parses_what_it_does_there():
    parser = argparse.ArgumentParser("it", argument_default=argparse.SUPPRESS)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--secret", default=3, help=argparse.SUPPRESS)
    parser.add_subparsers().add_parser("fit").add_argument("--epochs", type=int)
    there = sent(parser)
    for line in [], ["--lr", "0.5"], ["fit"], ["fit", "--epochs", "2"]:
        assert vars(there.parse_args(line)) == vars(parser.parse_args(line))
    assert there.format_help() == parser.format_help()
