"""Gavel's files as a workload."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from_gavel = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "_gavel.py"))["from_gavel"]


def test_gavels_files(tmp_path: Path) -> None:
    trace, pairs = tmp_path / "trace.tsv", tmp_path / "pairs.csv"
    columns = "gpu,job_a,job_b,iso_a_steps_s,iso_b_steps_s,co_a_steps_s,co_b_steps_s\n"
    pairs.write_text(columns + "v100,A,A,10,10,6.3,6.3\nv100,B,B,10,10,10,10\nk80,A,A,1,1,1,1\nv100,A,B,10,10,0,0\n")
    rows = ["A\tcmd\tdir\t-n\t1\t600\t1\t1\t-1.0\t0", "B\tcmd\tdir\t-n\t1\t100\t1\t1\t-1.0\t5"]
    trace.write_text("\n".join([*rows, "A\tcmd\tdir\t-n\t1\t600\t4\t1\t-1.0\t0"]))
    a, b = from_gavel(trace, pairs).jobs
    assert (a.seconds, b.seconds, b.arrival) == (pytest.approx(60.0), pytest.approx(10.0), 5.0)
    assert a.busy > 0.9
    assert b.busy < 0.05
