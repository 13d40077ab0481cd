"""Ray Tune on lanes: `tune.TuneConfig(scheduler=colocate(ASHAScheduler()))`."""
