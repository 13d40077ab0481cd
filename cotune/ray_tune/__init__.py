"""Ray Tune on lanes: `tune.TuneConfig(scheduler=colocate(ASHAScheduler()))`."""

from cotune.ray_tune.scheduler import colocate

__all__ = ["colocate"]
