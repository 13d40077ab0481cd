"""torch's process-wide flags that change numerics."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]

# Getters and setters in torch._C of process-wide flags that change numerics; not every torch has all of them. torch's
# wrappers in Python take four times as long. The older flags of precision come first: their setters write others, too.
_IN_C = {
    "_get_float32_matmul_precision": "_set_float32_matmul_precision",
    "_get_cudnn_allow_tf32": "_set_cudnn_allow_tf32",
    **{
        f"_get_{name}": f"_set_{name}"
        for name in (
            "cublas_allow_fp16_reduced_precision_reduction",
            "cublas_allow_bf16_reduced_precision_reduction",
            "cublas_allow_fp16_accumulation",
            "cpu_allow_fp16_reduced_precision_reduction",
            "math_sdp_allow_fp16_bf16_reduction",
            "cudnn_benchmark",
            "cudnn_deterministic",
            "cudnn_enabled",
            "cudnn_depthwise_kernel",
            "mkldnn_enabled",
            "mkldnn_deterministic",
            "nnpack_enabled",
            "qengine",
            "linalg_preferred_backend",
            "blas_preferred_backend",
            "sdp_priority_order",
            "deterministic_fill_uninitialized_memory",
        )
    },
    **{
        f"_get_{kind}_sdp_enabled": f"_set_sdp_use_{kind}"
        for kind in ("flash", "mem_efficient", "math", "cudnn", "fa3", "overrideable")
    },
    "_cuda_get_cudnn_benchmark_limit": "_cuda_set_cudnn_benchmark_limit",
    "_cuda_get_sync_debug_mode": "_cuda_set_sync_debug_mode",
    "_check_sparse_tensor_invariants": "_set_check_sparse_tensor_invariants",
}


@functools.cache
def torch_flags(torch: Any) -> dict[str, Setting]:
    """Getters and setters of torch's process-wide flags by name, in the order in which they can be set."""

    def told(get: Callable[[], Any]) -> Any:
        # torch refuses to read an older flag once a trial has set its replacement; that is swapped too.
        try:
            return get()
        except RuntimeError:
            return None

    return {name: (partial(told, get), put) for name, (get, put) in _flags(torch).items()}


def flag_values(torch: Any) -> list[Any]:
    """The values of torch's process-wide flags, in the order of `torch_flags`; None for one that cannot be read."""
    try:
        # Without a frame of Python for each, which takes a fifth longer.
        return list(map(operator.call, _getters(torch)))
    except RuntimeError:
        return [get() for get, _ in torch_flags(torch).values()]


@functools.cache
def _getters(torch: Any) -> list[Callable[[], Any]]:
    return [get for get, _ in _flags(torch).values()]


@functools.cache
def _flags(torch: Any) -> dict[str, Setting]:
    backends, future, c = torch.backends, torch.__future__, torch._C

    def in_c(getter: str, setter: str) -> Setting:
        put = getattr(c, setter)

        def set_to(value: Any) -> None:
            # A torch without CUDA may refuse a value that was read there.
            with contextlib.suppress(RuntimeError):
                if value is not None:
                    put(*value) if isinstance(value, tuple) else put(value)

        return getattr(c, getter), set_to

    def attribute(owner: Any, name: str) -> Setting:
        return partial(getattr, owner, name), partial(setattr, owner, name)

    units = []
    if hasattr(backends, "fp32_precision"):
        # After the old flags, whose setters write these too; what others follow before those.
        units = [("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")]
        units += [("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")]
    return {
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "deterministic": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        **{get: in_c(get, put) for get, put in _IN_C.items() if hasattr(c, get) and hasattr(c, put)},
        **{f"precision of {'.'.join(unit)}": _fp32_precision(torch, *unit) for unit in units},
        "anomalies": (
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda value: torch.set_anomaly_enabled(*value),
        ),
        "fast attention": (backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled),
        "einsum": attribute(backends.opt_einsum, "enabled"),
        "order of einsum": attribute(backends.opt_einsum, "strategy"),
        "sharing": (torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy),
        "checked distributions": attribute(torch.distributions.Distribution, "_validate_args"),
        **{
            f"{kind} on conversion": (
                getattr(future, f"get_{kind}_module_params_on_conversion"),
                getattr(future, f"set_{kind}_module_params_on_conversion"),
            )
            for kind in ("overwrite", "swap")
        },
    }


def _fp32_precision(torch: Any, backend: str, operation: str) -> Setting:
    get, put = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    return partial(get, backend, operation), partial(put, backend, operation)
