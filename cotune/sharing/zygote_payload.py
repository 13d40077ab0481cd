"""What a zygote starts with: a file in memory that the driver writes and the zygote reads."""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cotune.script.own_modules import OwnModule


class ZygotePayload(NamedTuple):
    """The content of the file, in this order; all parts but the trainable are preceded by their length.

    Attributes:
        path: `sys.path` as JSON, read before anything of cotune can be imported. (On the command line some paths would
            be longer than an argument may be.)
        modules: The modules to import.
        arguments: The script's `sys.argv`.
        own: The user's own modules, by name.
        script: What the script has set (`settings.of_script`).
        trainable: The pickled trainable.
    """

    path: bytes
    modules: Sequence[str]
    arguments: Sequence[str]
    own: Mapping[str, OwnModule]
    script: Mapping[str, bytes]
    trainable: bytes | memoryview

    def write(self) -> int:
        """Writes a new file; returns its descriptor."""
        arguments = [str(argument) for argument in self.arguments]
        rest = pickle.dumps((list(self.modules), arguments, dict(self.own), dict(self.script)))
        fd = os.memfd_create("cotune-payload", os.MFD_CLOEXEC)
        try:
            with open(fd, "wb", closefd=False) as file:
                for part in (self.path, rest):
                    file.write(len(part).to_bytes(8, "little") + part)
                file.write(self.trainable)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @classmethod
    def read(cls, fd: int) -> ZygotePayload:
        """Reads a file; the trainable stays where it is, and all forked processes read it from there."""
        view = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
        parts = []
        for _ in range(2):
            end = 8 + int.from_bytes(view[:8], "little")
            parts.append(view[8:end])
            view = view[end:]
        modules, arguments, own, script = pickle.loads(parts[1])
        return cls(bytes(parts[0]), modules, arguments, own, script, view)
