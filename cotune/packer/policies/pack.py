"""As many at once as memory holds."""

from __future__ import annotations

from cotune.packer.policies.fifo import Fifo


class Pack(Fifo):
    """In order of arrival, as many at once as fit (Salus, MLSys'20, section 4.2, PACK).

    Optimises the use of memory, and the makespan of trials too light to fill the device. Assumes that what fits also
    pays: the width is not searched for but is all that memory (and the limit of the device) allows, so trials that
    fill a device by themselves slow each other down. Salus opens a lane for each; so do we.
    """

    name = "pack"
    packs = True
