"""Packing by trial and error."""

from __future__ import annotations

from cotune.packer.policies.fifo import Fifo


class Gandiva(Fifo):
    """First come, first served; packed as long as that raises total throughput (Gandiva, OSDI'18, section 4.2).

    Optimises throughput by trial and error: more lanes are tried and kept if the sum of normalised speeds beats
    running in turns, that is, if it grows at all. Assumes nothing about trials. We differ in that the brain packs a
    width and not a pair: a lane is taken back from the device, not from a trial. Migration and growing are left out.
    `makespan` does the same with a first guess and asks for a gain of 5%, since measured speeds scatter.
    """

    name = "gandiva"
    gain = 1.0
    guesses = False
