"""CuPy inside a lane: its memory comes from the lane's allocator, its random generators are the trial's own.

CuPy's memory is then counted and capped with the lane's, and memory that one trial frees can be used by the next, with
torch or with CuPy.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from cotune.errors import InputError


def use_lane_allocator(cupy: ModuleType, torch: Any) -> None:
    """Makes CuPy take its device memory from torch's caching allocator."""

    def allocate(size: int, device: int) -> int:
        # The allocator reuses freed memory in the order of the stream for which it was allocated.
        stream = _common_stream(cupy, torch)
        return int(torch.cuda.caching_allocator_alloc(size, device, stream))

    def free(pointer: int, _device: int) -> None:
        torch.cuda.caching_allocator_delete(pointer)

    cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(allocate, free).malloc)


def _common_stream(cupy: Any, torch: Any) -> int:
    """The current stream of torch and CuPy.

    Raises:
        InputError: The two differ: memory would be reused while it is still in use.
    """
    ours, theirs = int(torch.cuda.current_stream().cuda_stream), int(cupy.cuda.get_current_stream().ptr)
    if ours != theirs:
        raise InputError(
            f"CuPy allocates on stream {theirs:#x}, while torch's current stream is {ours:#x}",
            hint="leave both on the default stream; or enter torch.cuda.stream(s) and "
            "cupy.cuda.ExternalStream(s.cuda_stream) together; CUPY_CUDA_PER_THREAD_DEFAULT_STREAM must not be set",
        )
    return ours


class CupyRandom:
    """A trial's own generators for `cupy.random`, seeded with the trial's seed.

    CuPy keeps one per device in a table of its module. Generators cannot be copied, so the table is swapped.
    """

    def __init__(self, cupy: Any, seed: int) -> None:
        self._module = cupy.random._generator
        self._make = partial(_Seeded, cupy.random.RandomState, seed)
        self._states: dict[int, Any] = self._make()

    def apply(self) -> None:
        self._module._random_states = self._states

    def capture(self) -> None:
        """Takes the generators away; what is drawn until they are back in place comes from others."""
        self._states, self._module._random_states = self._module._random_states, self._make()


class _Seeded(dict[int, Any]):
    """A table that makes missing generators, as CuPy does, but from a seed."""

    def __init__(self, make: Any, seed: int) -> None:
        super().__init__()
        self._make = make
        self._seed = seed

    def get(self, device: int, default: Any = None) -> Any:
        if device not in self:
            self[device] = self._make(self._seed)
        return self[device]
