from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cotune.errors import SpaceError
from cotune.search.domains import (
    Choice,
    Float,
    Integer,
    choice,
    lograndint,
    loguniform,
    qloguniform,
    qrandint,
    quniform,
    randint,
    uniform,
)


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        (uniform(0, 1), Float(0.0, 1.0)),
        (loguniform(1e-5, 1e-1), Float(1e-5, 1e-1, log=True)),
        (quniform(0, 1, 0.25), Float(0.0, 1.0, step=0.25)),
        (quniform(0.05, 0.97, 0.1), Float(0.1, 0.9, step=0.1)),
        (qloguniform(0.1, 10, 0.1), Float(0.1, 10.0, log=True, step=0.1)),
        (randint(0, 10), Integer(0, 9)),
        (lograndint(1, 1000), Integer(1, 999, log=True)),
        (qrandint(8, 64, 8), Integer(8, 64, step=8)),
        (qrandint(5, 70, 8), Integer(8, 64, step=8)),
        (choice([1, 2]), Choice((1, 2))),
        (choice(range(3)), Choice((0, 1, 2))),
        (uniform(np.float64(0), np.int64(2)), Float(0.0, 2.0)),
        (randint(0, 1e3), Integer(0, 999)),
    ],
)
def test_helpers(domain: Any, expected: Any) -> None:
    assert domain == expected
    assert type(domain) is type(expected)


def test_bounds_end_on_the_last_step() -> None:
    assert Float(0, 1, step=0.3).high == 0.9
    assert Integer(0, 10, step=4).high == 8
    assert Float(0, 0.3, step=0.1).values() == [0.0, 0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda: uniform(1, 1), "low=1"),
        (lambda: uniform(2, 1), "high=1"),
        (lambda: Float(2, 1), "low=2.0"),
        (lambda: Integer(2, 1), "low=2"),
        (lambda: loguniform(0, 1), "low=0.0"),
        (lambda: loguniform(-1, 1), "low=-1.0"),
        (lambda: lograndint(0, 5), "low=0"),
        (lambda: uniform(math.nan, 1), "nan"),
        (lambda: uniform(0, 10**400), "is not a finite number"),
        (lambda: uniform(0, math.inf), "inf"),
        (lambda: uniform("a", 1), "'a' (str)"),  # type: ignore[arg-type]
        (lambda: uniform(True, 2), "True"),
        (lambda: uniform(-1.7e308, 1.7e308), "1.7e+308"),
        (lambda: quniform(0, 1, 0), "q=0.0"),
        (lambda: quniform(0, 1, -0.1), "q=-0.1"),
        (lambda: quniform(0.1, 0.2, 5), "q=5.0"),
        (lambda: quniform(0, 1e30, 0.001), "0.001"),
        (lambda: qloguniform(1e-300, 1e300, 1e-300), "1e-300"),
        (lambda: qrandint(0, 8, 0), "q=0"),
        (lambda: qrandint(1, 3, 8), "q=8"),
        (lambda: Float(0, 1, step=0), "step=0.0"),
        (lambda: Integer(0, 4, step=-1), "step=-1"),
        (lambda: randint(0, 2.5), "2.5"),  # type: ignore[arg-type]
        (lambda: randint(0, 2**60), str(2**60)),
        (lambda: choice([]), "[]"),
        (lambda: choice("adam"), "adam"),
        (lambda: choice({1, 2}), "set"),
        (lambda: choice(3), "3 (int)"),  # type: ignore[arg-type]
    ],
)
def test_wrong_domains_name_the_value_and_hint(make: Any, value: str) -> None:
    with pytest.raises(SpaceError) as caught:
        make()
    assert value in caught.value.message
    assert caught.value.hint
