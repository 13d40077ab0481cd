"""Ray Tune on lanes: `tune.TuneConfig(scheduler=colocate(ASHAScheduler()))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cotune.errors import InputError

if TYPE_CHECKING:
    from cotune.ray_tune.scheduler import colocate

__all__ = ["colocate"]

SUPPORTED = "2.44 to 2.60"


def __getattr__(name: str) -> Any:
    # Imported on demand: lanes import this package too, and do not need the brain, which comes with `scheduler`.
    if name == "colocate":
        try:
            from cotune.ray_tune.scheduler import colocate
        except (ImportError, AttributeError) as error:
            if not _is_about_ray(error):
                raise
            import ray

            raise InputError(
                f"Ray {ray.__version__} is not one that colocate() knows: {error}", hint=f"use Ray {SUPPORTED}"
            ) from error
        return colocate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_about_ray(error: ImportError | AttributeError) -> bool:
    """Whether a part of Ray is missing, and not Ray as a whole or something that it needs."""
    if isinstance(error, AttributeError):
        owner = getattr(error.obj, "__module__", None) or getattr(error.obj, "__name__", "")
        return f"{owner}.".startswith("ray.")
    return str(error.name).startswith("ray.")
