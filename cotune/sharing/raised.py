"""What the exceptions of trials say, whether that memory ran out, and what they keep alive."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator

from cotune.demand import parse_bytes
from cotune.errors import InputError

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
_THREAD = "can't start new thread"
_REFUSALS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    _THREAD,
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


def with_class(kind: str, text: str) -> str:
    """What an exception of this class says, as Python prints it: without a text it is its class alone."""
    return f"{kind}: {text}" if text else kind


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
            todo += reversed(cause.exceptions if isinstance(cause, BaseExceptionGroup) else ())


def clear_frames(error: BaseException) -> None:
    """Releases the locals, and so the tensors, in the traceback frames of an exception and of all its causes."""
    for cause in causes(error, hidden=True):
        traceback.clear_frames(cause.__traceback__)


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


def says_no_thread(error: BaseException) -> bool:
    """Whether an exception or one of its causes says that a thread was refused, for want of memory or of processes."""
    return any(isinstance(cause, RuntimeError) and text_of(cause) == _THREAD for cause in causes(error))


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
