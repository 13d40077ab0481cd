"""What is swapped when the turn changes, so that a trial computes the same bits in company as alone.

Threads keep grad mode, autocast, default device and thread counts apart by themselves. All else that numerics or
file names depend on is a process-wide: random generators, torch's flags, the working directory, the environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cotune.sharing.cupy_pool import CupyRandom
from cotune.sharing.main_module import MainModule

_MT_BYTES = 624 * 4 + 4


class _NumpyState:
    """The state of numpy's global generator.

    numpy needs 60 us each to give and take its state. The words of the Mersenne Twister are therefore moved raw, and
    only the cached half of a Gaussian pair goes through numpy. A generator of another kind takes the long way.
    """

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed % 2**32
        self._bits: Any = _plain_bits
        self._words = b""
        self._gauss: Any = None
        self._state: Any = None

    def apply(self) -> None:
        rand = _numpy_global()
        if rand._bit_generator is not self._bits:
            np.random.mtrand.set_bit_generator(self._bits)
        if self._seed is not None:
            rand.seed(self._seed)
            self._seed = None
        elif self._gauss is not None:
            ctypes.memmove(self._bits.ctypes.state_address, self._words, _MT_BYTES)
            _through_words(rand, lambda: rand.set_state(self._gauss))
        else:
            rand.set_state(self._state)

    def capture(self) -> None:
        rand = _numpy_global()
        self._bits = rand._bit_generator
        self._gauss = self._state = None
        if _moves_words and type(self._bits) is np.random.MT19937:
            self._words = ctypes.string_at(self._bits.ctypes.state_address, _MT_BYTES)
            self._gauss = _through_words(rand, lambda: rand.get_state(legacy=False))
        else:
            self._state = rand.get_state(legacy=False)


class _Wordless:
    """Stands in for a bit generator whose words are moved by other means."""

    @property
    def state(self) -> dict[str, Any]:
        return {"bit_generator": "MT19937", "state": {}}

    @state.setter
    def state(self, _: Any) -> None: ...


def _numpy_global() -> Any:
    return np.random.mtrand._rand


def _through_words(rand: Any, call: Callable[[], Any]) -> Any:
    """Calls something that takes the state of `rand`, for all of it but the words."""
    bits, rand._bit_generator = rand._bit_generator, _wordless
    try:
        return call()
    finally:
        rand._bit_generator = bits


def _can_move_words() -> bool:
    """Whether this numpy lets its words be moved: tried, since nothing documents it."""
    try:
        rand = np.random.RandomState(1)
        rand.standard_normal()
        before = rand.get_state(legacy=False)
        words = ctypes.string_at(rand._bit_generator.ctypes.state_address, _MT_BYTES)
        gauss = _through_words(rand, lambda: rand.get_state(legacy=False))
        rand.standard_normal(5)
        ctypes.memmove(rand._bit_generator.ctypes.state_address, words, _MT_BYTES)
        _through_words(rand, lambda: rand.set_state(gauss))
        after = rand.get_state(legacy=False)
        same_words = np.array_equal(before["state"]["key"], after["state"]["key"])
        return same_words and repr(_but_key(before)) == repr(_but_key(after))
    except Exception:
        return False


def _but_key(state: Any) -> Any:
    return state["state"]["pos"], state["has_gauss"], state["gauss"]


_wordless = _Wordless()
_plain_bits: Any = _numpy_global()._bit_generator
_moves_words = _can_move_words()


def _torch_flags(torch: Any) -> list[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Process-wide flags of torch that change numerics: how to read and how to set each."""
    backends = torch.backends

    def attribute(owner: Any, name: str, behind: str = "") -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        # The function behind a property is four times faster, where this torch has it under the same name.
        get = getattr(torch._C, behind, None) if behind else None
        return get or (lambda: getattr(owner, name)), lambda value: setattr(owner, name, value)

    def old(get: Callable[[], Any], put: Callable[[Any], Any]) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        """A flag that torch refuses to tell where a trial has set its successor, which is swapped too."""

        def told() -> Any:
            try:
                return get()
            except RuntimeError:
                return None

        return told, lambda value: None if value is None else put(value)

    accumulation = []
    if hasattr(torch._C, "_get_cublas_allow_fp16_accumulation"):
        accumulation = [attribute(backends.cuda.matmul, "allow_fp16_accumulation")]
    precision = [
        old(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        old(*attribute(backends.cudnn, "allow_tf32")),
    ]
    if hasattr(backends, "fp32_precision"):
        # After the old flags, which write to these too.
        units = [("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")]
        units += [("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")]
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
        (backends.cuda.flash_sdp_enabled, backends.cuda.enable_flash_sdp),
        (backends.cuda.mem_efficient_sdp_enabled, backends.cuda.enable_mem_efficient_sdp),
        (backends.cuda.math_sdp_enabled, backends.cuda.enable_math_sdp),
        (backends.cuda.cudnn_sdp_enabled, backends.cuda.enable_cudnn_sdp),
        (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    ]


def _fp32_precision(torch: Any, backend: str, operation: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    get, put = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    return partial(get, backend, operation), partial(put, backend, operation)


class _TorchState:
    """Random generators and flags of torch, once it is loaded."""

    def __init__(self, torch: Any, seed: int) -> None:
        self._torch = torch
        self._cpu = torch.Generator().manual_seed(seed).get_state()
        self._seed = seed
        self._cuda: list[Any] | None = None
        self._flags: list[Any] = list(_defaults(torch))

    def apply(self, left: _TorchState | None) -> None:
        torch = self._torch
        torch.default_generator.set_state(self._cpu)
        if torch.cuda.is_initialized():
            for n, generator in enumerate(torch.cuda.default_generators):
                if self._cuda is None:
                    generator.manual_seed(self._seed)
                else:
                    generator.set_state(self._cuda[n])
        now = left._flags if left is not None else [get() for get, _ in _flags]
        if now == self._flags:
            return
        # Each is read again, for setting one may have changed another.
        for (get, put), value in zip(_flags, self._flags, strict=True):
            if get() != value:
                put(value)

    def capture(self) -> None:
        torch = self._torch
        self._cpu = torch.default_generator.get_state()
        if torch.cuda.is_initialized():
            self._cuda = [generator.get_state() for generator in torch.cuda.default_generators]
        self._flags = [get() for get, _ in _flags]


_flags: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = []
_flag_defaults: list[Any] = []


def _defaults(torch: Any) -> list[Any]:
    if not _flags:
        _flags.extend(_torch_flags(torch))
        _flag_defaults.extend(get() for get, _ in _flags)
    return _flag_defaults


class Context:
    """One trial's own version of the process-wide state, fresh from its seed at first.

    Args:
        seed: Seeds torch, numpy and random.
        home: Working directory and environment a trial starts with.
        torch_seed: Seeds torch instead.
    """

    def __init__(self, seed: int, home: Home, torch_seed: int | None = None) -> None:
        self._seed = seed
        self._torch_seed = seed if torch_seed is None else torch_seed
        self._python: Any = None
        self._numpy = _NumpyState(seed)
        self._torch: _TorchState | None = None
        self._cupy: CupyRandom | None = None
        self._directory = home.directory
        self._environment = home.environment
        self._path = home.path
        self._main: MainModule | None = None

    def adopt(self, trainable: Any) -> None:
        """Has the main module show what this trial's trainable brought of it."""
        self._main = MainModule(trainable)
        self._main.enter()

    def close(self) -> None:
        """Lets go of what is kept for this trial alone."""
        if self._main is not None:
            self._main.leave()

    def enter(self) -> None:
        """Puts this trial's state in place."""
        global _left
        # What the trial before has left is known, and need not be read again.
        left, _left = _left, None
        if self._python is None:
            random.seed(self._seed)
        else:
            random.setstate(self._python)
        self._numpy.apply()
        self.torch_loaded()
        if self._torch is not None:
            self._torch.apply(left._torch if left is not None else None)
        self.cupy_loaded()
        if (left._directory if left is not None else _directory()) != self._directory:
            with contextlib.suppress(OSError):
                os.chdir(self._directory)
        if (left._environment if left is not None else _environment()) != self._environment:
            _set_environment(self._environment)
        if sys.path != self._path:
            sys.path[:] = self._path
        if self._main is not None:
            self._main.enter()

    def leave(self) -> None:
        """Notes this trial's state before another's is put in place."""
        global _left
        self._python = random.getstate()
        self._numpy.capture()
        self.torch_loaded()
        if self._torch is not None:
            self._torch.capture()
        if self._cupy is not None:
            self._cupy.leave()
        here = _directory()
        self._directory = here or self._directory
        if _environment() != self._environment:
            self._environment = dict(_environment())
        if sys.path != self._path:
            self._path = list(sys.path)
        _left = self if here is not None else None

    def torch_loaded(self) -> None:
        """Starts to keep torch's state, if torch is loaded."""
        torch = sys.modules.get("torch")
        if self._torch is None and torch is not None and hasattr(torch, "default_generator"):
            self._torch = _TorchState(torch, self._torch_seed)

    def cupy_loaded(self) -> None:
        """Puts this trial's generators of CuPy in place, if CuPy is loaded."""
        cupy = sys.modules.get("cupy")
        if self._cupy is None and cupy is not None and hasattr(cupy, "random"):
            self._cupy = CupyRandom(cupy, self._torch_seed)
        if self._cupy is not None:
            self._cupy.enter()

    def seed_torch(self) -> None:
        """Seeds a torch that this trial has just imported."""
        self.torch_loaded()
        if self._torch is not None:
            self._torch.apply(None)


# The context whose state is in place exactly as it was noted; None while a trial runs, which may change anything.
_left: Context | None = None


class Home:
    """Working directory, environment and import path as the lane found them."""

    def __init__(self) -> None:
        self.directory = os.getcwd()
        self.environment = dict(_environment())
        self.path = list(sys.path)


def _directory() -> str | None:
    """The working directory; None if a trial has removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _environment() -> dict[Any, Any]:
    # The encoded form behind os.environ: comparing it takes 1 us instead of 30.
    data: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
    return data


def _set_environment(wanted: dict[Any, Any]) -> None:
    for key in set(_environment()) - set(wanted):
        del os.environ[os.fsdecode(key)]
    for key, value in wanted.items():
        if _environment().get(key) != value:
            os.environ[os.fsdecode(key)] = os.fsdecode(value)
