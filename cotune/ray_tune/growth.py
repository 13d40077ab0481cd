"""Takes CPUs of a node that were in use when its lanes began, and have become free."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from cotune.ray_tune.slot import Slot

# How often in a row, a second apart, CPUs must be seen free: tasks and actors that trials start on Ray come and go.
STEADY = 3


def grow(slot: Slot, spare: int, width: Callable[[int], int], bundle: Callable[[int], Mapping[str, float]]) -> bool:
    """Reserves CPUs of a device's node that have stayed free, and adds them if they are granted by the next look.

    Args:
        slot: A device that is up, and is not a GPU.
        spare: CPUs of its node that are free and wanted now.
        width: Gives the lanes that pay on so many CPUs.
        bundle: Gives the bundle that reserves so many more CPUs.

    Returns:
        Whether the device has more CPUs now.
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
