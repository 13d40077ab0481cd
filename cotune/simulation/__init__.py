"""What a sweep would have cost: workloads, the loop that plays them, figures, lower bounds."""

from cotune.simulation.asha import AshaRule
from cotune.simulation.bounds import Bounds, lower_bounds
from cotune.simulation.generators import GENERATORS, make_workload
from cotune.simulation.play import Setting, simulate
from cotune.simulation.played import Figures, Played, Segment
from cotune.simulation.table import from_csv
from cotune.simulation.traces import from_run
from cotune.simulation.workload import Job, Workload

__all__ = [
    "GENERATORS",
    "AshaRule",
    "Bounds",
    "Figures",
    "Job",
    "Played",
    "Segment",
    "Setting",
    "Workload",
    "from_csv",
    "from_run",
    "lower_bounds",
    "make_workload",
    "simulate",
]
