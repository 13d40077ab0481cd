"""A trial's own torch random generators and flags, in a process that several trials share."""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

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
    "_check_sparse_tensor_invariants": "_set_check_sparse_tensor_invariants",
}


def _torch_flags(torch: Any) -> list[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Getters and setters of torch's process-wide flags that change numerics."""
    backends, future, c = torch.backends, torch.__future__, torch._C

    def in_c(getter: str, setter: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        get, put = getattr(c, getter), getattr(c, setter)

        def told() -> Any:
            # torch refuses to read an older flag once a trial has set its replacement; that is swapped too.
            try:
                return get()
            except RuntimeError:
                return None

        def set_to(value: Any) -> None:
            # A torch without CUDA may refuse a value that was read there.
            with contextlib.suppress(RuntimeError):
                if value is not None:
                    put(*value) if isinstance(value, tuple) else put(value)

        return told, set_to

    def attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)

    units = []
    if hasattr(backends, "fp32_precision"):
        # After the old flags, whose setters write these too; what others follow before those.
        units = [("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")]
        units += [("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")]
    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        *(in_c(*pair) for pair in _IN_C.items() if all(hasattr(c, name) for name in pair)),
        *(_fp32_precision(torch, *unit) for unit in units),
        (
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda value: torch.set_anomaly_enabled(*value),
        ),
        (backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled),
        attribute(backends.opt_einsum, "enabled"),
        attribute(backends.opt_einsum, "strategy"),
        (torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy),
        attribute(torch.distributions.Distribution, "_validate_args"),
        *(
            tuple(getattr(future, f"{act}_{kind}_module_params_on_conversion") for act in ("get", "set"))
            for kind in ("overwrite", "swap")
        ),
    ]


def _fp32_precision(torch: Any, backend: str, operation: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    get, put = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    return partial(get, backend, operation), partial(put, backend, operation)


class TorchState:
    """One trial's random generators, flags and global hooks of torch, which must be loaded."""

    def __init__(self, torch: Any, seed: int) -> None:
        self._torch = torch
        self._seed = seed
        # None until captured: the generators start from the seed.
        self._cpu: Any = None
        self._cuda: list[Any] | None = None
        self._flags: list[Any] = list(_defaults(torch))
        self._hooks = [(module, name, _copied(hooks)) for module, name, hooks in _own_hooks]

    def apply(self, left: TorchState | None) -> None:
        self.apply_random()
        for module, name, hooks in self._hooks:
            setattr(module, name, hooks)
        now = left._flags if left is not None else [get() for get, _ in _flags]
        if now == self._flags:
            return
        # Each flag is read again, since setting one may have changed another.
        for (get, put), value in zip(_flags, self._flags, strict=True):
            if get() != value:
                put(value)

    def apply_random(self) -> None:
        """Puts the generators in place."""
        torch = self._torch
        if self._cpu is None:
            torch.default_generator.manual_seed(self._seed)
        else:
            torch.default_generator.set_state(self._cpu)
        if torch.cuda.is_initialized():
            for n, generator in enumerate(torch.cuda.default_generators):
                if self._cuda is None:
                    generator.manual_seed(self._seed)
                else:
                    generator.set_state(self._cuda[n])

    def capture_random(self) -> None:
        """Notes the generators' states."""
        torch = self._torch
        self._cpu = torch.default_generator.get_state()
        if torch.cuda.is_initialized():
            self._cuda = [generator.get_state() for generator in torch.cuda.default_generators]

    def capture(self) -> None:
        self.capture_random()
        self._flags = [get() for get, _ in _flags]
        self._hooks = [(module, name, getattr(module, name)) for module, name, _ in self._hooks]


# Global hooks of modules and optimizers, and what contexts of torch note of themselves: module, name, and the value
# before any trial. Each trial has its own tables, since the turn may change while torch iterates over one.
_GLOBAL = {
    "torch.optim.optimizer": "_global_",
    "torch.nn.modules.module": "_global_",
    # `cached()`
    "torch.nn.utils.parametrize": "_cache",
    "torch.autograd.graph": "_allow_mutation_on_saved_tensors_enabled",
    # `set_checkpoint_early_stop()`
    "torch.utils.checkpoint": "_enable_checkpoint_early_stop",
    # `set_printoptions()`
    "torch._tensor_str": "PRINT_OPTS",
}
_own_hooks: list[tuple[Any, str, Any]] = []
_flags: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = []
_flag_defaults: list[Any] = []


def settings(torch: Any) -> dict[Any, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Getters and setters of all flags, also of those that are a thread's own; empty until torch's state is kept."""
    if not _flags:
        return {}
    of_threads = {
        "grad": (torch.is_grad_enabled, torch.set_grad_enabled),
        "threads": (torch.get_num_threads, torch.set_num_threads),
    }
    if hasattr(torch, "get_default_device"):
        of_threads["device"] = (torch.get_default_device, torch.set_default_device)
    return dict(enumerate(_flags)) | of_threads


def first_settings() -> dict[Any, Any]:
    """What these were before any trial, as far as that is known."""
    return dict(enumerate(_flag_defaults)) | {"grad": True}


def _copied(hooks: Any) -> Any:
    # Ten times faster than copy.copy(), at every start of a trial.
    return hooks.copy() if isinstance(hooks, dict) else copy.copy(hooks)


def _defaults(torch: Any) -> list[Any]:
    if not _flags:
        _flags.extend(_torch_flags(torch))
        _flag_defaults.extend(get() for get, _ in _flags)
        # By import_module: in torch.optim the name `optimizer` may stand for something else.
        for name, prefix in _GLOBAL.items():
            module = importlib.import_module(name)
            names = [name for name in vars(module) if name.startswith(prefix)]
            _own_hooks.extend((module, name, _copied(getattr(module, name))) for name in names)
    return _flag_defaults
