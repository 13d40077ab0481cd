"""Ordering policies, by name."""

from __future__ import annotations

import copy

from cotune.errors import InputError
from cotune.packer.policies.base import Policy, Waiting
from cotune.packer.policies.fair import Fair
from cotune.packer.policies.fifo import Fifo
from cotune.packer.policies.fluid import Fluid
from cotune.packer.policies.gandiva import Gandiva
from cotune.packer.policies.horus import Horus
from cotune.packer.policies.makespan import Makespan
from cotune.packer.policies.pack import Pack
from cotune.packer.policies.srtf import Srtf

__all__ = [
    "POLICIES",
    "Fair",
    "Fifo",
    "Fluid",
    "Gandiva",
    "Horus",
    "Makespan",
    "Pack",
    "Policy",
    "Srtf",
    "Waiting",
    "make_policy",
]

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (Makespan, Fifo, Srtf, Fair, Pack, Horus, Gandiva, Fluid)
}


def make_policy(policy: object) -> Policy:
    """The policy of that name, a copy of a built-in policy, or a user's own object itself; `makespan` for None.

    Raises:
        InputError: No policy has that name.
    """
    if isinstance(policy, Policy):
        # A built-in policy keeps the state of one run. A user's own object may be inspected from outside.
        return copy.deepcopy(policy) if type(policy) in POLICIES.values() else policy
    if policy is None:
        return Makespan()
    if isinstance(policy, type) and issubclass(policy, Policy):
        raise InputError(f"policy={policy!r} is a class", hint=f"pass an object of it: policy={policy.__name__}()")
    if not isinstance(policy, str) or policy not in POLICIES:
        raise InputError(f"policy={policy!r} is not a policy", hint=f"choose one of {', '.join(POLICIES)}")
    return POLICIES[policy]()
