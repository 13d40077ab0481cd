"""First come, first served."""

from __future__ import annotations

from cotune.packer.policies.base import Policy, Waiting


class Fifo(Policy):
    """In order of arrival; what does not fit is passed over (Salus, MLSys'20, section 4.2).

    Fair to the order of proposals, blind to their length: a long trial that arrives last runs alone at the end.
    """

    name = "fifo"

    def key(self, waiting: Waiting) -> tuple[float, ...]:
        return (waiting.arrival,)
