"""A body of simulated devices on a virtual clock: hours of trials in seconds, under the production brain."""

from cotune.engines.simulated.engine import SimulatedEngine
from cotune.engines.simulated.model import Costs, LastAct, Work

__all__ = ["Costs", "LastAct", "SimulatedEngine", "Work"]
