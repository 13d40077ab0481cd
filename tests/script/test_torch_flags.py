"""torch's process-wide flags, read and set."""

from __future__ import annotations

import subprocess
import sys

READS = """
import torch
from cotune.script.torch_flags import flag_values, torch_flags

before = dict(zip(torch_flags(torch), flag_values(torch), strict=True))
assert before == {name: get() for name, (get, _) in torch_flags(torch).items()}
# torch has stand-ins for modules with flags. A copy there would hide what is set in the module itself.
assert "enabled" not in vars(torch.backends.opt_einsum), vars(torch.backends.opt_einsum)
torch.backends.opt_einsum.m.enabled = not before["einsum"]
assert dict(zip(torch_flags(torch), flag_values(torch), strict=True)) == before | {"einsum": not before["einsum"]}
"""


def test_reading_flags_changes_none() -> None:
    subprocess.run([sys.executable, "-c", READS], check=True)
