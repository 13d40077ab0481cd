"""What exceptions say of memory, and what they keep alive."""

import gc
import weakref

import numpy as np
import pytest

from cotune.demand import GIB, MIB
from cotune.sharing.raised import clear_frames, out_of_memory


def raised(error, cause=None, context=None):
    """An exception with the chain that raising it would have given it."""
    error.__cause__, error.__context__ = cause, context
    return error


class OutOfMemoryError(RuntimeError):
    """Named like those of torch and CuPy."""


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (MemoryError(), None),
        (MemoryError("bad allocation"), None),
        (np._core._exceptions._ArrayMemoryError((1024, 1024), np.dtype(np.float64)), 8 * MIB),
        (np._core._exceptions._ArrayMemoryError((), np.dtype(np.float64)), 8),
        (
            OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which "
                "1.20 GiB is free. 3.00 GiB allowed; Of the allocated memory 1.00 GiB is allocated by PyTorch"
            ),
            2 * GIB,
        ),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has"), 20 * MIB),
        (OutOfMemoryError("Out of memory allocating 1,073,741,824 bytes (allocated so far: 512 bytes)."), GIB),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
                "to allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)"
            ),
            4 * GIB,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), None),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), None),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), None),
        (RuntimeError("std::bad_alloc"), None),
        (RuntimeError("can't start new thread"), None),
        (OSError(12, "Cannot allocate memory"), None),
        (ImportError("/lib/_some.so: cannot make segment writable for relocation: Cannot allocate memory"), None),
        (type("CatBoostError", (Exception,), {})("cxxrt::bad_alloc"), None),
        (
            type("ResourceExhaustedError", (Exception,), {})(
                "Graph execution error:\nOOM when allocating tensor with shape[128,43264] and type float on CPU:0"
            ),
            None,
        ),
        (type("LightGBMError", (Exception,), {})("[CUDA] out of memory /src/cuda_utils.hu 41"), None),
        (
            type("CudaAPIError", (Exception,), {})("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
            None,
        ),
        (type("XGBoostError", (ValueError,), {})("[12:00:00] common.h: std::bad_alloc"), None),
        (RuntimeError("Caught MemoryError in DataLoader worker process 0.\nstd::bad_alloc"), None),
    ],
    ids=lambda value: str(value)[:40].replace("\n", " ") if isinstance(value, BaseException) else "",
)
def test_an_error_that_says_memory_ran_out_is_told_with_the_bytes_refused(error, refused):
    assert out_of_memory(error) == (True, refused)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("out of memory"),
        SystemError("<built-in function f> returned a result with an exception set"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 5x6)"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("tried to allocate a seat"),
        OSError(28, "No space left on device"),
        FileNotFoundError(2, "No such file or directory"),
        ImportError("/lib/libgomp.so.1: cannot allocate memory in static TLS block"),
        KeyError("memory"),
        SystemExit(1),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_an_unrelated_error_is_not_taken_for_one(error):
    assert out_of_memory(error) == (False, None)


def test_one_in_a_group_of_errors_counts_and_lets_go_of_what_it_keeps():
    def fails():
        ballast = Ballast()
        found.append(weakref.ref(ballast))
        raise RuntimeError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    class Ballast:
        pass

    found = []
    try:
        fails()
    except RuntimeError as refusal:
        inner = ExceptionGroup("of a task", [refusal])
    group = ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("of another kind"), inner])
    assert out_of_memory(group) == (True, GIB)
    clear_frames(group)
    gc.collect()
    assert found[0]() is None
    assert out_of_memory(ExceptionGroup("no memory", [ValueError("x")])) == (False, None)


def test_an_error_raised_from_one_counts():
    error = raised(ValueError("training failed"), cause=RuntimeError("CUDA out of memory. Tried to allocate 1.00 GiB."))
    assert out_of_memory(error) == (True, GIB)


def test_an_error_raised_while_one_was_handled_counts():
    error = raised(ValueError("cleaning up failed"), context=MemoryError())
    assert out_of_memory(error) == (True, None)


def test_one_far_down_the_chain_counts():
    error = raised(KeyError("a"), context=raised(ValueError("b"), cause=raised(TypeError("c"), context=MemoryError())))
    assert out_of_memory(error) == (True, None)


def test_the_first_in_the_chain_tells_the_bytes():
    inner = RuntimeError("CUDA out of memory. Tried to allocate 1.00 GiB.")
    outer = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert out_of_memory(raised(outer, cause=inner)) == (True, 2 * GIB)


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError("a"), ValueError("b")
    raised(first, context=second)
    raised(second, context=first)
    assert out_of_memory(first) == (False, None)
