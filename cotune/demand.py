"""What a trial needs of a device, and how byte counts are parsed and formatted."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from cotune.errors import InputError

MIB = 1 << 20
GIB = 1 << 30

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {f"{_letter}IB": 1024**_power, f"{_letter}B": 1000**_power, _letter: 1024**_power}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True, slots=True)
class Demand:
    """What a trial needs, measured or predicted.

    The split is Salus's (MLSys'20, section 3.2): the persistent memory of a lane's trials adds up;
    their ephemeral memory is shared, since only one of them runs at a time.

    Attributes:
        persistent: Bytes held between iterations (model, optimizer, data).
        ephemeral: Peak bytes within an iteration, above `persistent`.
        busy: Share of the device's time the trial uses when alone, 0 to 1; None if not known.
    """

    persistent: int
    ephemeral: int
    busy: float | None = None

    @property
    def peak(self) -> int:
        return self.persistent + self.ephemeral

    def raised_to(self, peak: int) -> Demand:
        """This demand, with ephemeral memory added until its peak is at least `peak`."""
        missing = peak - self.peak
        return Demand(self.persistent, self.ephemeral + missing, self.busy) if missing > 0 else self


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the tensors of a trial would need, found without running it.

    Attributes:
        persistent: Bytes of tensors held between iterations.
        ephemeral: Peak bytes of tensors within an iteration, above `persistent`.
        flops: Floating-point operations per iteration.
    """

    persistent: int
    ephemeral: int
    flops: int

    @property
    def peak(self) -> int:
        return self.persistent + self.ephemeral


def format_bytes(count: float) -> str:
    """Formats a byte count for people: `6.1 GiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def parse_bytes(text: str) -> int:
    """Parses `4GiB`, `512 MB` or `1073741824`.

    Raises:
        InputError: The text is not a positive size.
    """
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match[2].upper()) if match else None
    size = float(match[1]) * factor if match and factor else 0.0
    if not 1 <= size < math.inf:
        raise InputError(f"{text!r} is not a size", hint="write a number and a unit, such as 4GiB or 512MiB")
    return int(size)
