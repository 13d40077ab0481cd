"""The messages between the driver and a lane, over an inherited socket pair.

A frame is a length, a kind and a payload. Reports and questions have their own layout; the rest is pickled, which is
safe here: both ends are processes of one run, and no other process can reach the socket.

Only verdicts take another way: each seat of a lane has an eventfd for them, on which its trial waits directly, so that
the lane's main thread need not wake up for every report.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from cotune.plain import is_plain
from cotune.trial import Question, Report, TrialSpec

if TYPE_CHECKING:
    from cotune.script.pickling import Series

# Whatever a trial puts in its place.
_dumps = pickle.dumps
_HEADER = struct.Struct("<IB")
_REPORT = struct.Struct("<IIqd")
_QUESTION = struct.Struct("<II")


# Values that a verdict adds to the eventfd of a seat.
GO_ON = 1
STOP = 2
REST = 4

# Exit status of a lane that found its device context broken, by one of its residents or by another MPS client.
FAULTED = 86


class Kind(IntEnum):
    # Lane to driver. None of these bytes occurs in UTF-8 text, which a trial may write to its lane's socket by mistake.
    READY = 0xF5
    REPORT = 0xF6
    PROGRESS = 0xF7
    HOLDS = 0xF8
    ENDED = 0xF9
    RESIZED = 0xFA
    ASK = 0xFB
    GRANTED = 0xFC
    PAUSED = 0xFD
    PARKED = 0xFE
    # Driver to lane.
    OPEN = 16
    START = 17
    STOP = 18
    RESIZE = 19
    EXIT = 20
    ANSWER = 21
    GRANT = 22
    TURN = 23
    PAUSE = 24
    RESUME = 25
    PARK = 26


FROM_LANES = frozenset(kind for kind in Kind if kind >= Kind.READY)
TO_LANES = frozenset(Kind) - FROM_LANES


def encode(kind: Kind, payload: bytes = b"") -> bytes:
    return _HEADER.pack(len(payload), kind) + payload


def decode(frame: bytes) -> tuple[int, bytes]:
    """Kind and payload of one whole frame, where frames do not travel on a stream."""
    return frame[4], frame[_HEADER.size :]


def encode_object(kind: Kind, value: Any) -> bytes:
    return encode(kind, _dumps(value, pickle.HIGHEST_PROTOCOL))


class _Joined(io.RawIOBase):
    """Reads several byte strings as one, without copying them together."""

    def __init__(self, *blobs: bytes | memoryview) -> None:
        self._left = [memoryview(blob) for blob in blobs]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while self._left and not self._left[0]:
            del self._left[0]
        if not self._left:
            return 0
        part = self._left[0][: len(buffer)]
        buffer[: len(part)] = part
        self._left[0] = self._left[0][len(part) :]
        return len(part)


def load_series(*blobs: bytes | memoryview) -> Iterator[Any]:
    """Loads blobs pickled by one `Series`: its first, then others that refer to it."""
    unpickler = pickle.Unpickler(io.BufferedReader(_Joined(*blobs)))
    for _ in blobs:
        yield unpickler.load()


def sendable(spec: TrialSpec, series: Series | None) -> TrialSpec:
    """The same trial, its config pickled in the trainable's series if it may hold what only cloudpickle can send.

    A config that cannot be loaded then fails only its own trial, in the lane that loads it.

    Args:
        spec: The trial.
        series: The trainable's series; None if every config is plain or pickled already.

    Raises:
        NotPicklable: The config holds something that cannot leave this process.
    """
    if series is None or is_plain(spec.config):
        # Sending a plain config as it is makes every trial's start ten times faster.
        return spec
    return replace(spec, config={}, packed=series.then(spec.config, f"the config of trial {spec.trial}"))


def encode_question(kind: Kind, trial: int, attempt: int, payload: bytes) -> bytes:
    """Encodes a trial's question (`ASK`) or the answer to it (`ANSWER`)."""
    return encode(kind, _QUESTION.pack(trial, attempt) + payload)


def decode_question(payload: bytes) -> Question:
    trial, attempt = _QUESTION.unpack_from(payload)
    return Question(trial, attempt, payload[_QUESTION.size :])


def encode_report(trial: int, attempt: int, step: int, value: float, line: bytes) -> bytes:
    return encode(Kind.REPORT, _REPORT.pack(trial, attempt, step, value) + line)


def decode_report(payload: bytes) -> Report:
    trial, attempt, step, value = _REPORT.unpack_from(payload)
    return Report(trial, attempt, step, value, payload[_REPORT.size :])


class Frames:
    """Cuts the bytes of a stream socket into frames.

    Args:
        sock: The socket.
        kinds: The kinds that may arrive.

    Attributes:
        expected: Size in bytes of the incomplete frame; 0 if not known.
        is_broken: Whether something other than a frame has arrived, as when a trial writes to a descriptor number that
            it has closed before.
    """

    def __init__(self, sock: socket.socket, kinds: Collection[int]) -> None:
        self._sock = sock
        self._kinds = kinds
        self._chunk = memoryview(bytearray(1 << 16))
        self._rest = bytearray()
        self.expected = 0
        self.is_broken = False

    def receive(self) -> list[tuple[int, bytes]] | None:
        """Reads once and returns the complete frames; None at the end of the stream, or once the stream is broken."""
        if self.is_broken:
            return None
        try:
            count = self._sock.recv_into(self._chunk)
        except ConnectionError:
            # The other end has closed without reading everything we sent.
            return None
        if not count:
            return None
        if len(self._rest) + count < self.expected:
            # A large frame is assembled once it is complete, not at every piece.
            self._rest += self._chunk[:count]
            return []
        data = bytes(self._rest + self._chunk[:count]) if self._rest else bytes(self._chunk[:count])
        frames = []
        start, size = 0, len(data)
        while size - start >= _HEADER.size:
            length, kind = _HEADER.unpack_from(data, start)
            if kind not in self._kinds:
                self.is_broken = True
                break
            end = start + _HEADER.size + length
            if end > size:
                self.expected = end - start
                break
            frames.append((kind, data[start + _HEADER.size : end]))
            start = end
        self._rest = bytearray(data[start:])
        if len(self._rest) < _HEADER.size:
            self.expected = 0
        return frames
