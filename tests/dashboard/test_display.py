"""What is shown of a run."""

from __future__ import annotations

from cotune.dashboard.display import Display
from cotune.packer import Packer, PackerOptions
from cotune.paths import RunFolder
from cotune.record import Records
from cotune.record.events import EventLog


def test_a_note_that_quotes_control_characters_does_nothing_to_a_terminal(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    log = EventLog(folder.events)
    display = Display(None, "loss", 3, Records(folder, log, "", 0), Packer(PackerOptions()))
    display.note = "trial 3 failed: ValueError: \x1b[2J\r\x9b31m 日本 \udc80"
    assert display.snapshot().note == "trial 3 failed: ValueError: �[2J��31m 日本 �"
    log.close()
