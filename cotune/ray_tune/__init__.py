"""Ray Tune on lanes: `tune.TuneConfig(scheduler=colocate(ASHAScheduler()))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotune.ray_tune.scheduler import colocate

__all__ = ["colocate"]


def __getattr__(name: str) -> Any:
    # Imported on demand: lanes import this package too, and do not need the brain, which comes with `scheduler`.
    if name == "colocate":
        from cotune.ray_tune.scheduler import colocate

        return colocate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
