"""CPUs of a node that others used when its lanes began, and use no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from cotune.ray_tune.slot import Slot

# Seen free so often in a row, a second apart: what trials start on Ray themselves comes and goes.
STEADY = 3


def grow(slot: Slot, spare: int, width: Callable[[int], int], bundle: Callable[[int], Mapping[str, float]]) -> bool:
    """Asks for CPUs of a device's node that have stayed free, and takes them when they are ours at the next look.

    Args:
        slot: Is up, and no GPU.
        spare: CPUs of its node that are free and wanted now.
        width: Lanes that pay on so many CPUs.
        bundle: What is to be reserved for so many more.

    Returns:
        Whether the device has more now.
    """
    if slot.asked_more is not None:
        (group, cores), slot.asked_more = slot.asked_more, None
        table = placement_group_table(group)
        if table.get("state") != "CREATED" or set(table["bundles_to_node_id"].values()) != {slot.place}:
            remove_placement_group(group)
            return False
        slot.more.append(group)
        slot.cores += cores
        return True
    slot.roomy = slot.roomy + 1 if spare > 0 and width(slot.cores + spare) > width(slot.cores) else 0
    if slot.roomy == STEADY:
        slot.roomy = 0
        slot.asked_more = placement_group([dict(bundle(spare))], strategy="STRICT_PACK"), spare
    return False
