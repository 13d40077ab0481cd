"""A rehearsal: the first two iterations of a step class, with tensors that have a shape but no content.

It runs in a process of its own, forked from the zygote, which answers through a pipe and ends; only that process loads
this module. It runs the user's code, and must do no harm: the process may not start others, write files or use the
network, as far as Python's audit events show these; it may take little memory, and sees no GPU.
"""

from __future__ import annotations

import os
import pickle
import re
import resource
import signal
import sys
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from cotune.demand import MIB, Estimate
from cotune.errors import first_line
from cotune.sharing.cpu import reserved_in
from cotune.sharing.inside.boundary import on_optimizer_step
from cotune.sharing.wire import load_series

ITERATIONS = 2
# Bytes of real memory that a rehearsal may take; no lane's quota covers them.
ROOM = 512 * MIB

_FORBIDDEN = re.compile(
    r"os\.(chmod|chown|exec|fork|forkpty|kill|killpg|link|mkdir|posix_spawn|remove|removexattr|rename|rmdir|setxattr|"
    r"spawn|symlink|system|truncate|utime)|socket\.(bind|connect|getaddrinfo|sendmsg|sendto)|"
    r"subprocess\.Popen|sqlite3\.connect"
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def serve(answer: int, request: int, trainable: bytes | memoryview) -> NoReturn:
    """Rehearses one trial and ends.

    Args:
        answer: A pipe for an `Estimate`, or for the reason why there is none.
        request: A memory file with the config, pickled in the step class's series.
        trainable: The pickled step class.
    """
    try:
        _be_harmless()
        series = load_series(trainable, Path(f"/proc/self/fd/{request}").read_bytes())
        told: Estimate | str = rehearse(next(series), next(series))
    except BaseException as error:
        told = first_line(f"{type(error).__name__}: {error}", 300)
    os.write(answer, pickle.dumps(told))
    os._exit(0)


def rehearse(cls: type, config: Mapping[str, Any]) -> Estimate:
    """Estimates what the first two iterations need.

    Bytes of tensors are counted as in a lane: those held at boundaries, which are the steps of optimizers or else of
    the class; and the peak above them, set-up included.

    Args:
        cls: A step class with `rehearse(config)`, called instead of `setup(config)`.
        config: The trial's config.

    Raises:
        Exception: Any error of the class, such as a decision that depends on the content of a tensor.
    """
    meter = _Meter()
    on_optimizer_step(lambda *_: meter.optimized(), lambda: None)
    # A gradient scaler skips steps by a float that it reads, and 1.0 stands for an infinity there.
    scaler: Any = torch.amp.GradScaler
    scaler._maybe_opt_step = lambda _self, optimizer, _state, *args, **options: optimizer.step(*args, **options)
    trial: Any = cls()
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True), meter:
        warnings.simplefilter("ignore")
        try:
            trial.rehearse(config)
            while trial.step() is not None:
                meter.stepped()
        except _Enough:
            pass
    if not meter.iterations or not meter.peak:
        raise ValueError("it has trained nothing that torch knows of")
    return Estimate(meter.persistent, meter.peak - meter.persistent, meter.flops)


class _Enough(BaseException):
    """Raised at the last boundary; a BaseException, so that the class does not catch it by mistake."""


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of living storages, and floating-point operations between boundaries.

    Attributes:
        iterations: Number of boundaries so far.
        persistent: Most bytes held at a boundary.
        peak: Most bytes held at any time.
        flops: Floating-point operations of the last iteration.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.iterations = self.persistent = self.peak = self.flops = 0
        self._held = self._optimized = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            out = func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            # A float that is read from a tensor is taken for a metric, whose value does not matter. An integer or bool
            # may decide about sizes and branches.
            if func is not torch.ops.aten._local_scalar_dense.default or not args[0].dtype.is_floating_point:
                raise
            return 1.0
        for leaf in (out,) if isinstance(out, torch.Tensor) else tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._hold(leaf.untyped_storage())
        # FlopCounterMode, a second mode, would cost as much again at every operation.
        if count := flop_registry.get(func._overloadpacket):
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        return out

    def _hold(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._alive:
            size = storage.nbytes()
            self._alive.add(key)
            self._held += size
            self.peak = max(self.peak, self._held)
            weakref.finalize(storage, self._let_go, key, size).atexit = False

    def _let_go(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self._held -= size

    def optimized(self) -> None:
        """Called after every step of an optimizer: a boundary."""
        self._optimized += 1
        self._boundary()

    def stepped(self) -> None:
        """Called after every step of the class: a boundary if no optimizer has made a step."""
        if not self._optimized:
            self._boundary()

    def _boundary(self) -> None:
        self.iterations += 1
        self.persistent = max(self.persistent, self._held)
        if self.iterations == ITERATIONS:
            raise _Enough
        self.flops = 0


def _be_harmless() -> None:
    """Takes from this process what a rehearsal does not need; forbidden operations raise an `OSError`."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.dont_write_bytecode = True
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    reserved = reserved_in(Path("/proc/self/status").read_bytes())
    resource.setrlimit(resource.RLIMIT_DATA, (reserved + ROOM, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = args
        if not (isinstance(flags, int) and flags & _WRITES) or path == os.devnull:
            return
        event = f"writing {path}"
    elif not _FORBIDDEN.fullmatch(event):
        return
    raise PermissionError(f"{event} is not for a rehearsal")
