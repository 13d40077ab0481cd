"""Ray Tune on lanes: `tune.TuneConfig(scheduler=colocate(ASHAScheduler()))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotune.ray_tune.scheduler import colocate

__all__ = ["colocate"]


def __getattr__(name: str) -> Any:
    # Lanes import this package too, and have no use for the brain that comes with it.
    if name == "colocate":
        from cotune.ray_tune.scheduler import colocate

        return colocate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
