"""Ordering policies, by name."""

from __future__ import annotations

from cotune.errors import InputError
from cotune.packer.policies.base import Candidate, Policy, Waiting
from cotune.packer.policies.fifo import Fifo
from cotune.packer.policies.makespan import Makespan

__all__ = ["POLICIES", "Candidate", "Fifo", "Makespan", "Policy", "Waiting", "make_policy"]

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Makespan, Fifo)}


def make_policy(policy: str | Policy | None) -> Policy:
    """The policy of that name, or the object itself; `makespan` for None.

    Raises:
        InputError: No policy has that name.
    """
    if isinstance(policy, Policy):
        return policy
    name = policy or "makespan"
    if not isinstance(name, str) or name not in POLICIES:
        raise InputError(f"policy={policy!r} is not a policy", hint=f"choose one of {', '.join(POLICIES)}")
    return POLICIES[name]()
