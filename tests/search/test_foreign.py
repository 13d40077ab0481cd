from __future__ import annotations

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from cotune.errors import SpaceError
from cotune.search.domains import (
    Choice,
    Float,
    Integer,
)
from cotune.search.spaces import Space


def test_optuna_distributions() -> None:
    tree = {
        "a": FloatDistribution(0, 1),
        "b": FloatDistribution(1e-3, 1, log=True),
        "c": FloatDistribution(0.05, 0.65, step=0.2),
        "d": IntDistribution(1, 9, step=2),
        "e": IntDistribution(1, 9, log=True),
        "f": CategoricalDistribution(("x", None)),
        "g": IntDistribution(3, 3),
    }
    assert Space(tree).distributions() == tree
    sampler = optuna.samplers.RandomSampler()
    assert Space({"a": tree["a"], "sampler": sampler}).constants == {"sampler": sampler}


@pytest.mark.ray
def test_ray_domains() -> None:
    from ray import tune

    space = Space(
        {
            "a": tune.uniform(0, 1),
            "b": tune.loguniform(1e-3, 1),
            "c": tune.quniform(0, 1, 0.25),
            "d": tune.qloguniform(0.1, 1, 0.1),
            "e": tune.randint(0, 10),
            "f": tune.lograndint(1, 10),
            "g": tune.qrandint(0, 10, 2),
            "h": tune.qlograndint(1, 10, 3),
            "i": tune.choice(["x", "y"]),
            "j": tune.grid_search([1, 2]),
            "k": tune.qrandint(0, 10, 1),
        }
    )
    assert space.domains == {
        "a": Float(0, 1),
        "b": Float(1e-3, 1, log=True),
        "c": Float(0, 1, step=0.25),
        "d": Float(0.1, 1, log=True, step=0.1),
        "e": Integer(0, 9),
        "f": Integer(1, 9, log=True),
        "g": Integer(0, 10, step=2),
        "h": Integer(3, 9, log=True, step=3),
        "i": Choice(("x", "y")),
        "j": Choice((1, 2)),
        "k": Integer(0, 9),
    }
    for wrong in (tune.randn(0, 1), tune.qrandn(0, 1, 0.5), tune.sample_from(lambda: 1)):
        with pytest.raises(SpaceError, match=r"^x/y: ") as caught:
            Space({"x": {"y": wrong}})
        assert caught.value.hint
