"""The interface to a lane's memory, which measures it, caps it and gives it back; and the signs of out-of-memory."""

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

    Readings are exact for a trial as long as only one trial of the lane runs between two of them, as turns ensure.
    """

    torch_device: str

    @abstractmethod
    def start(self) -> int:
        """Measures the process as the bare lane; returns the bytes that it costs."""

    @abstractmethod
    def read(self) -> tuple[int, int]:
        """Bytes in use now, and their peak since the last `reset_peak()`."""

    @abstractmethod
    def held(self) -> int:
        """Bytes the process kept from others at the last reading: context, bytes in use, cache."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Starts a new peak from the bytes in use now."""

    def forget_peaks(self) -> None:  # noqa: B027 - where nobody but the lane counts them
        """Has trials that begin from now on see no peak from before."""

    @abstractmethod
    def set_quota(self, quota: int) -> int:
        """Caps the lane at `quota` bytes, context included; returns the cap that holds, higher if more is in use."""

    @abstractmethod
    def room(self) -> int:
        """Bytes left under the cap, as far as is known without asking the device."""

    def relax(self) -> None:  # noqa: B027 - where unwinding takes no memory
        """Lifts the cap, so that a trial that ran out of memory can unwind."""

    def is_short(self) -> bool:
        """Whether memory was refused since an attempt last ended, or next to none is left."""
        return False

    def uncap(self) -> None:  # noqa: B027 - not every cap keeps threads from starting
        """Lifts the cap for the start of a thread, which must not fail; that thread calls `cap()`."""

    def cap(self) -> None:  # noqa: B027
        """Puts the cap back, unless it is lifted for other reasons too."""

    def loading(self) -> contextlib.AbstractContextManager[object]:
        """Lifts the cap while a large library is loaded, which would crash if refused memory."""
        return contextlib.nullcontext()

    def is_recording(self) -> bool:
        """Whether work given to the device is only recorded, to run later, so that the device must be left alone."""
        return False

    def synchronize(self) -> None:  # noqa: B027 - nothing to wait for where nothing runs asynchronously
        """Waits for all work given to the device so far, and raises its errors."""

    @abstractmethod
    def trim(self, *, shared: bool) -> None:
        """Gives back what an ended trial no longer uses; with `shared`, other trials of the lane still run."""

    def shrink(self) -> None:  # noqa: B027
        """Gives back memory that only several micro-batches at once need."""

    def is_sound(self) -> bool:
        """Whether another trial can run in this process after one has failed."""
        return True

    def busy_seconds(self) -> float | None:
        """Device time used by this process so far, in seconds of a whole device; None if not known now."""
        return None


# Messages of C++ itself, in whichever exception a library turns them into.
_REFUSED_IN_CPP = (
    "bad_alloc",
    "bad allocation",
    "cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY",
    # LightGBM's.
    "[CUDA] out of memory",
    "OOM when allocating tensor",
)
_REFUSALS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "can't start new thread",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUSPARSE_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
    "CURAND_STATUS_ALLOCATION_FAILED",
    "unable to mmap",
)
# CPython's own, where memory for a frame of Python code was refused (its evaluation loop sets no MemoryError for that).
_REFUSED_FRAME = "error return without exception set"
# About a table of fixed size, which more memory does not make larger.
_TLS = "cannot allocate memory in static tls block"
# Messages that may mean a lack of memory, or something else.
_PERHAPS = (
    "unable to find an engine to execute this computation",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUSOLVER_STATUS_NOT_INITIALIZED",
    "CUSOLVER_STATUS_INTERNAL_ERROR",
    "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES",
    "CUFFT_INTERNAL_ERROR",
    # oneDNN, on the CPU.
    "could not create a primitive",
    "could not create a memory",
    "could not execute a primitive",
)
_TRIED = re.compile(r"tried to allocate\s+([0-9.]+\s*[KMGT]i?B)", re.IGNORECASE)
_BYTES = re.compile(r"([0-9][0-9,]*) bytes")


def text_of(error: BaseException) -> str:
    """The text of an exception; a substitute if `str()` of it raises."""
    try:
        return str(error)
    except Exception as another:
        return f"(its text could not be made: {type(another).__name__})"


def causes(error: BaseException, *, hidden: bool = False) -> Iterator[BaseException]:
    """An exception, its causes, its contexts (also `hidden` by a cause), and the members of groups; itself first."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        cause = todo.pop()
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            if hidden or cause.__cause__ is None:
                todo.append(cause.__context__)
            todo.append(cause.__cause__)
            todo += reversed(_grouped(cause))


def clear_frames(error: BaseException) -> None:
    """Releases the locals, and so the tensors, in the traceback frames of an exception and of all its causes."""
    for cause in causes(error, hidden=True):
        traceback.clear_frames(cause.__traceback__)


def _grouped(error: BaseException) -> Sequence[BaseException]:
    """The exceptions of a group."""
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def out_of_memory(error: BaseException, is_short: Callable[[], bool] = lambda: False) -> tuple[bool, int | None]:
    """Whether an exception or one of its causes says that memory ran out; and the bytes refused, if known.

    Args:
        error: The exception.
        is_short: Called where the text alone does not tell.
    """
    for cause in causes(error):
        text = text_of(cause)
        is_memory = isinstance(cause, MemoryError) or type(cause).__name__ in ("OutOfMemoryError", "_ArrayMemoryError")
        is_memory = is_memory or (isinstance(cause, SystemError) and text == _REFUSED_FRAME)
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
    # Before _BYTES: later numbers in CUDA's text, such as "0 bytes is reserved by PyTorch", are not the refused bytes.
    match = _TRIED.search(text)
    with contextlib.suppress(InputError):
        if match:
            return parse_bytes(match[1])
    exact = _BYTES.search(text)
    return int(exact[1].replace(",", "")) if exact else None
