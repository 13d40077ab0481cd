"""The interface to a lane's memory, which measures it, caps it and gives it back."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator


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

    def forget_peaks(self) -> None:
        """Starts a new peak, and has trials that begin from now on see none from before."""
        self.reset_peak()

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

    def uncap(self, spare: float = math.inf) -> None:  # noqa: B027 - not every cap keeps threads from starting
        """Lifts the cap for a start of a thread or process, which must not fail; what starts calls `cap()`.

        Args:
            spare: Bytes by which the cap is raised.
        """

    def cap(self) -> None:  # noqa: B027
        """Puts the cap back, unless it is lifted for other reasons too."""

    @contextlib.contextmanager
    def uncapped(self) -> Iterator[None]:
        """Lifts the cap for what the calling thread does in the block."""
        self.uncap()
        try:
            yield
        finally:
            self.cap()

    def loading(self) -> contextlib.AbstractContextManager[object]:
        """Lifts the cap while a large library is loaded, which would crash if refused memory."""
        return contextlib.nullcontext()

    def is_recording(self) -> bool:
        """Whether work given to the device is only recorded, to run later, so that the device must be left alone."""
        return False

    def is_profiled(self) -> bool:
        """Whether the calling thread has its work on the device profiled, and so that of all who share the device."""
        return False

    def synchronize(self) -> None:  # noqa: B027 - nothing to wait for where nothing runs asynchronously
        """Waits for all work given to the device so far, and raises its errors."""

    @abstractmethod
    def trim(self, *, others_run: bool) -> None:
        """Gives back what an ended trial no longer uses; with `others_run`, other trials of the lane still run."""

    def shrink(self) -> None:  # noqa: B027
        """Gives back memory that only several micro-batches at once need."""

    def is_sound(self) -> bool:
        """Whether another trial can run in this process after one has failed."""
        return True

    def busy_seconds(self) -> float | None:
        """Device time used by this process so far, in seconds of a whole device; None if not known now."""
        return None
