"""What a lane's memory is: measured, capped, given back. One interface, a CPU and a CUDA form."""

from __future__ import annotations

import contextlib
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from cotune.demand import parse_bytes
from cotune.errors import InputError


class LaneMemory(ABC):
    """The memory of one lane process on its device.

    Exact for a trial as long as only one trial of the lane runs between two readings, which turns guarantee.
    """

    torch_device: str

    @abstractmethod
    def start(self) -> int:
        """Takes the process as it stands for the bare lane; gives the bytes that costs."""

    @abstractmethod
    def read(self) -> tuple[int, int]:
        """Bytes in use now, and their peak since the last `reset_peak()`."""

    @abstractmethod
    def held(self) -> int:
        """Bytes the process kept from others at the last reading: its context, what is in use, what is cached."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Starts a new peak from what is in use now."""

    @abstractmethod
    def set_quota(self, quota: int) -> int:
        """Caps the lane at `quota` bytes, context included; gives the cap that holds, higher if more is in use."""

    @abstractmethod
    def room(self) -> int:
        """Bytes that may still be taken under the cap, as far as they can be told without asking the device."""

    @abstractmethod
    def relax(self) -> None:
        """Lifts the cap, so that a trial that ran out of memory can unwind."""

    def is_short(self) -> bool:
        """Whether memory was refused since an attempt last ended, or next to none is left, whatever an error says."""
        return False

    def uncap(self) -> None:  # noqa: B027 - not every cap is in the way of a thread
        """Lifts the cap for the start of a thread, which must not fail; that thread calls `cap()`."""

    def cap(self) -> None:  # noqa: B027
        """Puts the cap back, unless it is lifted for other reasons too."""

    def loading(self) -> contextlib.AbstractContextManager[object]:
        """Lifts the cap while a large library is loaded, which would not survive a refusal."""
        return contextlib.nullcontext()

    def is_recording(self) -> bool:
        """Whether what is given to the device is only noted, to be run later, and the device must be left alone."""
        return False

    def synchronize(self) -> None:  # noqa: B027 - where nothing runs behind the trial's back, nothing is left to wait for
        """Waits for what was given to the device until now, and raises what goes wrong there."""

    @abstractmethod
    def trim(self, *, shared: bool) -> None:
        """Returns what an ended trial no longer uses; with `shared`, other trials of the lane still run."""

    def shrink(self) -> None:  # noqa: B027
        """Returns what several micro-batches at once have taken, and one at a time does not need."""

    @abstractmethod
    def is_sound(self) -> bool:
        """Whether another trial can run in this process, after one has failed."""

    @abstractmethod
    def busy_seconds(self) -> float | None:
        """Device time used by this process so far, in seconds of a whole device; None if it cannot be told now."""


# What C++ itself says, whatever exception a library makes of it.
_REFUSED_IN_CPP = ("bad_alloc", "bad allocation", "cudaErrorMemoryAllocation", "OOM when allocating tensor")
_REFUSALS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "can't start new thread",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
    "CURAND_STATUS_ALLOCATION_FAILED",
    "unable to mmap",
)
# Said of a table of fixed size, which more memory does not make larger.
_TLS = "cannot allocate memory in static tls block"
# What libraries say for want of memory, and for other reasons too.
_PERHAPS = (
    "unable to find an engine to execute this computation",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
)
_TRIED = re.compile(r"tried to allocate\s+([0-9.]+\s*[KMGT]i?B)", re.IGNORECASE)
_BYTES = re.compile(r"([0-9][0-9,]*) bytes")


def text_of(error: BaseException) -> str:
    """What an exception says of itself, which may be another exception."""
    try:
        return str(error)
    except Exception as another:
        return f"(its text could not be made: {type(another).__name__})"


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and those it came from, or is a group of, the last first."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        cause = todo.pop()
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            todo.append(cause.__cause__ or cause.__context__)
            todo += reversed(_grouped(cause))


def clear_frames(error: BaseException) -> None:
    """Lets go of the locals, and so the tensors, of the frames an exception and all behind it went through."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            todo += [one.__cause__, one.__context__, *_grouped(one)]


def _grouped(error: BaseException) -> Sequence[BaseException]:
    """The exceptions of a group."""
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def out_of_memory(error: BaseException, is_short: Callable[[], bool] = lambda: False) -> tuple[bool, int | None]:
    """Whether an exception, or one it came from, says that memory ran out; and the bytes that were refused.

    Args:
        error: The exception.
        is_short: Asked where the text alone does not tell.
    """
    for cause in causes(error):
        text = text_of(cause)
        is_memory = isinstance(cause, MemoryError) or type(cause).__name__ in ("OutOfMemoryError", "_ArrayMemoryError")
        refusals = _REFUSED_IN_CPP + _REFUSALS * isinstance(cause, (RuntimeError, OSError, ImportError))
        said = text.lower().replace(_TLS, "")
        if is_memory or any(refusal.lower() in said for refusal in refusals):
            return True, _refused(cause, text)
    texts = [text_of(cause).lower() for cause in causes(error) if isinstance(cause, RuntimeError)]
    return any(perhaps.lower() in text for text in texts for perhaps in _PERHAPS) and is_short(), None


def _refused(error: BaseException, text: str) -> int | None:
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    if shape is not None and dtype is not None:
        size = int(dtype.itemsize)
        for extent in shape:
            size *= int(extent)
        return size
    # First: what follows in CUDA's text, such as "0 bytes is reserved by PyTorch", is not what was refused.
    match = _TRIED.search(text)
    with contextlib.suppress(InputError):
        if match:
            return parse_bytes(match[1])
    exact = _BYTES.search(text)
    return int(exact[1].replace(",", "")) if exact else None
