"""How far the simulator is off: a real sweep with kills, and the same sweep played back on a virtual clock.

python bench/simulated.py [--trials 48] [--epochs 27] [--out simulated.json]

`bench/README.md` says what each row means.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from _common import Bystanders, describe, machine, run_peer, serve_peer, write_json

TARGET = 0.15
Found = dict[str, Any]


def sweep(options: Found) -> Found:
    """Tunes the digits for real, then plays the run back on what the other entries had."""
    from _digits import BATCHES, DROPOUT, LR, WIDTHS, load_data, train

    import cotune
    from cotune.paths import RunFolder
    from cotune.simulation import Setting, from_run, simulate

    epochs = options["epochs"]

    def trial(config: Found) -> None:
        data = cotune.shared("digits", load_data)
        train(config, data, epochs, os.devnull, lambda value, step: cotune.report({"accuracy": value}, step=step))

    space = {
        "index": 0,
        "lr": cotune.loguniform(*LR),
        "width": cotune.choice(WIDTHS),
        "dropout": cotune.uniform(*DROPOUT),
        "batch": cotune.choice(BATCHES),
    }
    results = cotune.run(
        trial, space, metric="accuracy", mode="max", trials=options["trials"], devices=["cpu:0"],
        lanes=options["lanes"], sampler="random", pruner="asha", seed=0, name="run", storage=options["folder"],
        dashboard=False,
    )  # fmt: skip
    workload = from_run(RunFolder(Path(options["folder"]) / "run"))
    played = {
        lanes: simulate(replace(workload, lanes=lanes), Setting(policy="fifo")).figures.makespan
        for lanes in options["widths"]
    }
    states = [str(trial.state) for trial in results]
    return {"seconds": results.makespan, "simulated": played, "stopped": states.count("stopped")}


PEERS = {"sweep": sweep}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--out", help="write everything measured to this JSON file")
    parser.add_argument("--no-check", action="store_true", help="exit status 0 even if the target is missed")
    options = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    began, facts, widths, bystanders = time.monotonic(), machine(), (1, 2), Bystanders()
    measured: dict[int, Found] = {}
    for lanes in widths:
        print(f"  {options.trials} trials in {lanes} lane(s) ...", file=sys.stderr, flush=True)
        bystanders.look()
        how = {"trials": options.trials, "epochs": options.epochs, "lanes": lanes, "widths": widths}
        measured[lanes] = run_peer(__file__, "sweep", how, timeout=900)
    facts["others_cores"] = bystanders.cores()
    table = Table(title="A sweep and its simulation")
    for heading in ("run", "stopped early", "measured", "simulated", "off by", f"<= {TARGET:.0%}?"):
        table.add_column(heading)
    missed = False
    for lanes, found in measured.items():
        simulated, real = found["simulated"][str(lanes)], found["seconds"]
        off = simulated / real - 1
        missed |= abs(off) > TARGET
        verdict = "[bold red]NO[/]" if abs(off) > TARGET else "[green]yes[/]"
        figures = f"{real:.1f} s", f"{simulated:.1f} s", f"{off:+.0%}"
        table.add_row(f"{lanes} lane(s)", str(found["stopped"]), *figures, verdict)
    one, two = (measured[lanes] for lanes in widths)
    guess = one["simulated"]["2"] / one["seconds"]
    table.add_row("2 lanes, from 1", "", f"{two['seconds'] / one['seconds']:.2f}x", f"{guess:.2f}x", "", "")
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table)
    console.print(f"{describe(facts)}; {time.monotonic() - began:.0f} s in all", highlight=False)
    write_json(options.out, {"machine": facts, "measured": measured})
    return 1 if missed and not options.no_check else 0


if __name__ == "__main__":
    if not serve_peer(PEERS):
        sys.exit(main())
