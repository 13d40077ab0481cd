"""A trial's own torch random generators and flags, in a process that several trials share."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any


def _torch_flags(torch: Any) -> list[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Getters and setters of torch's process-wide flags that change numerics."""
    backends = torch.backends

    def behind(name: str, get: Callable[[], Any]) -> Callable[[], Any]:
        # The C function is four times faster than torch's Python wrapper, and even more so with cold caches.
        return getattr(torch._C, name, None) or get

    def attribute(owner: Any, name: str, getter: str = "") -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        return behind(getter, lambda: getattr(owner, name)), lambda value: setattr(owner, name, value)

    def attention(kind: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        name = f"{kind}_sdp_enabled"
        return behind(f"_get_{name}", getattr(backends.cuda, name)), getattr(backends.cuda, f"enable_{kind}_sdp")

    def old(get: Callable[[], Any], put: Callable[[Any], Any]) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        """An older flag, which torch refuses to read once a trial has set its replacement; that is swapped too."""

        def told() -> Any:
            try:
                return get()
            except RuntimeError:
                return None

        return told, lambda value: None if value is None else put(value)

    def newer(getter: str, setter: str) -> list[tuple[Callable[[], Any], Callable[[Any], Any]]]:
        """A flag that not every torch has; a torch without CUDA may refuse a value that was read there."""
        if not (hasattr(torch._C, getter) and hasattr(torch._C, setter)):
            return []

        def put(value: Any) -> None:
            with contextlib.suppress(RuntimeError):
                getattr(torch._C, setter)(value)

        return [(getattr(torch._C, getter), put)]

    accumulation = []
    if hasattr(torch._C, "_get_cublas_allow_fp16_accumulation"):
        name = "allow_fp16_accumulation"
        accumulation = [attribute(backends.cuda.matmul, name, f"_get_cublas_{name}")]
    precision = [
        old(
            behind("_get_float32_matmul_precision", torch.get_float32_matmul_precision),
            torch.set_float32_matmul_precision,
        ),
        old(*attribute(backends.cudnn, "allow_tf32", "_get_cudnn_allow_tf32")),
    ]
    if hasattr(backends, "fp32_precision"):
        # After the old flags, whose setters write these too; what others follow before those.
        units = [("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")]
        units += [("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")]
        precision += [_fp32_precision(torch, *unit) for unit in units]
    reduced = "_get_cublas_allow_{}_reduced_precision_reduction"
    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        *precision,
        attribute(backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", reduced.format("fp16")),
        attribute(backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", reduced.format("bf16")),
        *accumulation,
        attribute(backends.cudnn, "benchmark", "_get_cudnn_benchmark"),
        attribute(backends.cudnn, "deterministic", "_get_cudnn_deterministic"),
        attribute(backends.cudnn, "enabled", "_get_cudnn_enabled"),
        attribute(backends.mkldnn, "enabled", "_get_mkldnn_enabled"),
        *map(attention, ("flash", "mem_efficient", "math", "cudnn")),
        (
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda value: torch.set_anomaly_enabled(*value),
        ),
        (backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled),
        (
            getattr(backends.opt_einsum, "_get_enabled", lambda: backends.opt_einsum.enabled),
            attribute(backends.opt_einsum, "enabled")[1],
        ),
        (torch._C._get_qengine, torch._C._set_qengine),
        *newer("_get_nnpack_enabled", "_set_nnpack_enabled"),
        *newer("_get_linalg_preferred_backend", "_set_linalg_preferred_backend"),
        *newer("_get_blas_preferred_backend", "_set_blas_preferred_backend"),
        *newer("_get_sdp_priority_order", "_set_sdp_priority_order"),
        *newer("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit"),
        (torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy),
        (torch._C._check_sparse_tensor_invariants, torch._C._set_check_sparse_tensor_invariants),
        attribute(torch.distributions.Distribution, "_validate_args"),
        (
            torch.__future__.get_overwrite_module_params_on_conversion,
            torch.__future__.set_overwrite_module_params_on_conversion,
        ),
        attribute(
            torch.utils.deterministic, "fill_uninitialized_memory", "_get_deterministic_fill_uninitialized_memory"
        ),
        *(
            [attribute(backends.mkldnn, "deterministic", "_get_mkldnn_deterministic")]
            if hasattr(backends.mkldnn, "deterministic")
            else []
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
}
_own_hooks: list[tuple[Any, str, Any]] = []
_flags: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = []
_flag_defaults: list[Any] = []


def _copied(hooks: Any) -> Any:
    # Ten times faster than copy.copy(), at every start of a trial. Values that are no dict are flags.
    return hooks.copy() if isinstance(hooks, dict) else hooks


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
