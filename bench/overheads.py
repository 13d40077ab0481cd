"""What cotune costs around the training, beside Ray Tune in the same run.

python bench/overheads.py [--full] [--out overheads.json] [--no-check]

Every peer runs in a fresh process. `bench/README.md` says what each row means.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from _common import (
    Bystanders,
    PeerFailed,
    describe,
    has_ray,
    machine,
    median,
    percentile,
    ray_session,
    run_peer,
    serve_peer,
    write_json,
)

Config = dict[str, Any]
Found = dict[str, Any]
Report = Callable[[dict[str, Any]], Any]

COTUNE_TRIALS = 400
COTUNE_REPORTS = 30_000
RAY_REPORTS = 2_000
WARM_REPORTS = 200
STOPPED_AT = 2
BOUNDARY_STEPS = 2_000
BOUNDARY_ROUNDS = 41
TURN_STEPS = 15_000


# ---- what is tuned


def stamp(fd: int, what: str, at: float, trial: object = "") -> None:
    """Notes a moment of this process, on the clock that all processes share."""
    os.write(fd, f"{os.getpid()} {what} {at!r} {trial}\n".encode())


def open_trace(config: Config) -> int:
    return os.open(config["trace"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def trivial(config: Config, report: Report, name: Callable[[], object]) -> None:
    """A torch trial that does next to nothing, and says when it did."""
    first = time.monotonic()
    import torch

    fd = open_trace(config)
    stamp(fd, "first", first, name())
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(config["reports"]):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        report({"loss": loss.item()})
    last = time.monotonic()
    stamp(fd, "end", last)
    os.close(fd)


def reporter(config: Config, report: Report) -> None:
    """A trial that does nothing but report; several start together."""
    for _ in range(WARM_REPORTS):
        report({"loss": 1.0})
    fd = open_trace(config)
    stamp(fd, "ready", time.monotonic())
    while Path(config["trace"]).read_text().count("ready") < config["together"]:
        time.sleep(0.001)
    began = time.monotonic()
    for _ in range(config["reports"]):
        report({"loss": 1.0})
    ended = time.monotonic()
    stamp(fd, "first", began)
    stamp(fd, "end", ended)


def stepper(config: Config) -> None:
    """Optimizer steps with cotune's hook behind them, and without, in turns."""
    import torch
    from torch.optim import optimizer as home

    import cotune

    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    def step_us() -> float:
        count: int = config["steps"]
        began = time.perf_counter()
        for _ in range(count):
            optimizer.step()
        return (time.perf_counter() - began) / count * 1e6

    hooks: dict[int, Any] = home._global_optimizer_post_hooks
    step_us()
    with_hook, without, difference = [], [], []
    for _ in range(config["rounds"]):
        with_hook.append(step_us())
        kept = dict(hooks)
        hooks.clear()
        without.append(step_us())
        hooks.update(kept)
        difference.append(with_hook[-1] - without[-1])
    middle = config["rounds"] // 2
    found = {"with": sorted(with_hook)[middle], "without": sorted(without)[middle], "hooks": len(kept)}
    cotune.report({"loss": 0.0, "difference": sorted(difference)[middle], **found})


def noisy(config: Config) -> None:
    """A trial that uses every source of chance, and notes when its iterations began and ended."""
    import random
    from array import array

    import numpy as np
    import torch

    import cotune

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    stamps = array("d")
    # Runs just before cotune's hook, so that torch's own work is not counted as a turn change.
    optimizer.register_step_post_hook(lambda *_: stamps.append(time.monotonic()))
    total = 0.0
    for _ in range(config["steps"]):
        optimizer.zero_grad()
        loss = (model(torch.randn(4, 8)) * random.random() + float(np.random.standard_normal())).square().mean()
        loss.backward()
        optimizer.step()
        stamps.append(time.monotonic())
        total += loss.item()
    weights = float(sum(part.detach().double().sum() for part in model.parameters()))
    Path(f"{config['trace']}-{config['index']}").write_bytes(stamps.tobytes())
    cotune.report({"loss": total, "weights": weights})


# ---- reading the traces


@dataclass
class Traced:
    """One trial, as its trace has it: `end` is when it ended, or when it was decided to stop it."""

    process: int
    first: float
    end: float = math.nan
    stopped: bool = False


def read_trace(path: str) -> list[Traced]:
    trials: list[Traced] = []
    running: dict[str, Traced] = {}
    named: dict[str, Traced] = {}
    for line in Path(path).read_text().splitlines():
        process, what, at, *name = line.split()
        if what == "first":
            running[process] = Traced(int(process), float(at))
            trials.append(running[process])
            named.update(dict.fromkeys(name, running[process]))
        elif what == "stop":
            named[name[0]].end, named[name[0]].stopped = float(at), True
        elif what == "end":
            running[process].end = float(at)
    return trials


def gaps(trials: list[Traced], *, fresh: bool, stopped: bool) -> Found:
    """Milliseconds from a trial's last line, or the verdict that stops it, to the first line of what took its place.

    In a process that goes on that is the next trial there. Of fresh processes, two at a time, the third trial to
    start follows the first to end, and so on.
    """
    pairs: list[tuple[Traced, Traced]] = []
    if fresh:
        pairs = list(zip(sorted(trials, key=lambda t: t.end), sorted(trials, key=lambda t: t.first)[2:], strict=False))
    else:
        for process in {trial.process for trial in trials}:
            own = sorted((trial for trial in trials if trial.process == process), key=lambda t: t.first)
            pairs += list(pairwise(own))
    found = [(after.first - before.end) * 1e3 for before, after in pairs if before.stopped == stopped]
    if not found:
        return {"count": 0, "p50": None, "p99": None}
    return {"count": len(found), "p50": percentile(found, 0.5), "p99": percentile(found, 0.99)}


def rate(path: str) -> float:
    """Reports per second of all trials together, over the time that all of them took."""
    trials = read_trace(path)
    began, ended = min(t.first for t in trials), max(t.end for t in trials)
    return 1.0 / (ended - began) * len(trials)


def turn_changes(folder: str) -> list[float]:
    """Microseconds from a trial's last boundary before a turn change to the other's first line after it."""
    from bisect import bisect_right

    stamps = []
    for index in (0, 1):
        values = memoryview(Path(f"{folder}/trace-{index}").read_bytes()).cast("d")
        stamps.append((list(values[0::2]), list(values[1::2])))
    found = []
    for (boundaries, after), (_, others) in (stamps, stamps[::-1]):
        for boundary, resumed in zip(boundaries, after, strict=True):
            if resumed - boundary > 0.005:
                place = bisect_right(others, boundary)
                if place < len(others) and others[place] < resumed:
                    found.append((others[place] - boundary) * 1e6)
    return found


# ---- cotune


def _cotune(function: Callable[[Config], Any], space: Config, options: Found, **more: Any) -> tuple[Any, float]:
    """Runs a sweep on the CPU; gives its results and the seconds that `run()` took."""
    import cotune

    settings: Config = {"lanes": 2, "sampler": "random", "seed": 1} | more
    began = time.monotonic()
    results = cotune.run(
        function, space, metric="loss", devices=["cpu:0"], storage=options["folder"], dashboard=False, **settings
    )
    seconds = time.monotonic() - began
    if results.errors:
        raise RuntimeError(str(results.errors[0].error))
    return results, seconds


def _cotune_trivial(options: Found, **more: Any) -> tuple[list[Traced], float, float]:
    """Trivial trials: their traces, seconds from `run()` to the result, seconds from the first line to it."""
    import cotune

    trace = f"{options['folder']}/trace"
    space = {"lr": cotune.loguniform(1e-4, 1e-2), "reports": options["reports"], "trace": trace}
    _, seconds = _cotune(
        lambda config: trivial(config, cotune.report, cotune.trial_id), space, options, trials=options["trials"], **more
    )
    ended = time.monotonic()
    trials = read_trace(trace)
    return trials, seconds, ended - min(t.first for t in trials)


def cotune_trials(options: Found) -> Found:
    trials, total, after = _cotune_trivial(options)
    return {"total": total, "after_first": after, "trials": len(trials), **gaps(trials, fresh=False, stopped=False)}


def cotune_stops(options: Found) -> Found:
    from optuna.pruners import BasePruner

    class EverySecond(BasePruner):
        """Stops every second trial at its second report."""

        def prune(self, study: Any, trial: Any) -> bool:
            stops = trial.number % 2 == 1 and len(trial.intermediate_values) >= STOPPED_AT
            if stops:
                stamp(fd, "stop", time.monotonic(), trial.number)
            return bool(stops)

    fd = open_trace({"trace": f"{options['folder']}/trace"})
    trials, _, _ = _cotune_trivial(options, pruner=EverySecond())
    return gaps(trials, fresh=False, stopped=True)


def cotune_reports(options: Found) -> Found:
    import cotune

    trace, together = f"{options['folder']}/trace", options["together"]
    space = {"lr": cotune.uniform(0, 1), "reports": COTUNE_REPORTS, "trace": trace, "together": together}
    _cotune(lambda config: reporter(config, cotune.report), space, options, trials=together, lanes=together)
    return {"rate": rate(trace) * COTUNE_REPORTS}


def cotune_boundary(options: Found) -> Found:
    import cotune

    space = {"lr": cotune.uniform(0, 1), "steps": BOUNDARY_STEPS, "rounds": BOUNDARY_ROUNDS}
    results, _ = _cotune(stepper, space, options, trials=1, lanes=1)
    found: Found = results[0].metrics
    if found["hooks"] != 1:
        raise RuntimeError(f"{found['hooks']} global optimizer hooks, not cotune's one")
    return found


def cotune_turns(options: Found) -> Found:
    import cotune

    space = {"index": cotune.choice([0, 1]), "steps": TURN_STEPS, "trace": f"{options['folder']}/trace"}
    runs = {}
    for residents in (1, 2):
        results, _ = _cotune(noisy, space, options, sampler="grid", lanes=1, residents=residents)
        # The traces of the second run, the one with turns, replace those of the first.
        runs[residents] = sorted((trial.config["index"], sorted(trial.metrics.items())) for trial in results)
    changes = turn_changes(options["folder"])
    return {
        "identical": runs[1] == runs[2],
        "metrics": runs,
        "count": len(changes),
        "p50": percentile(changes, 0.5) if changes else None,
        "p99": percentile(changes, 0.99) if changes else None,
    }


# ---- Ray Tune


def _tune(function: Callable[[Config], Any], space: Config, options: Found, **more: Any) -> tuple[float, float]:
    """Runs a sweep, Ray's own start included; gives when it began and when it ended."""
    from ray import tune

    config = {"samples": 1, "concurrent": 2, "scheduler": None} | more
    began = time.monotonic()
    with ray_session(options["folder"]):
        results = tune.Tuner(
            function,
            param_space=space,
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                num_samples=config["samples"],
                max_concurrent_trials=config["concurrent"],
                reuse_actors=options.get("reuse", False),
                scheduler=config["scheduler"],
            ),
            run_config=tune.RunConfig(storage_path=f"{options['folder']}/results", verbose=0),
        ).fit()
        ended = time.monotonic()
        if results.num_errors:
            raise results.errors[0]
    return began, ended


def _ray_trivial(options: Found, scheduler: Any = None) -> tuple[list[Traced], float, float]:
    from ray import tune

    trace = f"{options['folder']}/trace"
    space = {"lr": tune.loguniform(1e-4, 1e-2), "reports": options["reports"], "trace": trace}
    began, ended = _tune(
        lambda config: trivial(config, tune.report, lambda: tune.get_context().get_trial_id()),
        space,
        options,
        samples=options["trials"],
        scheduler=scheduler,
    )
    trials = read_trace(trace)
    return trials, ended - began, ended - min(t.first for t in trials)


def ray_trials(options: Found) -> Found:
    trials, total, after = _ray_trivial(options)
    measured = gaps(trials, fresh=not options["reuse"], stopped=False)
    processes = len({trial.process for trial in trials})
    return {"total": total, "after_first": after, "trials": len(trials), "processes": processes, **measured}


def ray_stops(options: Found) -> Found:
    from ray.tune.schedulers import FIFOScheduler, TrialScheduler

    class EverySecond(FIFOScheduler):
        """Stops every second trial at its second report."""

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            odd = int(trial.trial_id.rpartition("_")[2]) % 2
            stops = odd and result["training_iteration"] >= STOPPED_AT
            if stops:
                stamp(fd, "stop", time.monotonic(), trial.trial_id)
            return str(TrialScheduler.STOP if stops else TrialScheduler.CONTINUE)

    fd = open_trace({"trace": f"{options['folder']}/trace"})
    scheduler: Any = EverySecond
    trials, _, _ = _ray_trivial(options, scheduler())
    return gaps(trials, fresh=not options["reuse"], stopped=True)


def ray_reports(options: Found) -> Found:
    from ray import tune

    trace, together = f"{options['folder']}/trace", options["together"]
    space = {"reports": RAY_REPORTS, "trace": trace, "together": together}
    _tune(lambda config: reporter(config, tune.report), space, options, samples=together, concurrent=together)
    return {"rate": rate(trace) * RAY_REPORTS}


PEERS: dict[str, Callable[[Found], Found]] = {
    function.__name__: function
    for function in (
        cotune_trials,
        cotune_stops,
        cotune_reports,
        cotune_boundary,
        cotune_turns,
        ray_trials,
        ray_stops,
        ray_reports,
    )
}


# ---- the table


@dataclass
class Row:
    """A line of the table; `ok` is None where there is no budget.

    A budget is kept by the figure itself, or, on a machine that is slower than the one it was set on, by as many times
    Ray's figure of the same run as it was there.
    """

    what: str
    budget: str
    cotune: str
    fresh: str = "-"
    reuse: str = "-"
    ok: bool | None = None
    times: float | None = None
    needed: float | None = None

    @property
    def is_kept(self) -> bool | None:
        by_ratio = self.times is not None and self.needed is not None and self.times >= self.needed
        return None if self.ok is None else self.ok or by_ratio


def times(theirs: float | None, own: float | None) -> float | None:
    return theirs / own if theirs is not None and own else None


_IMPORT = """
import json, sys, time
began = time.perf_counter()
import {name}
seconds = time.perf_counter() - began
heavy = [name for name in ("torch", "ray", "optuna") if name in sys.modules]
print(json.dumps([seconds * 1e3, heavy]))
"""


def import_ms(name: str, rounds: int) -> tuple[float, list[str]]:
    """Median milliseconds to import a module in a fresh process, and which heavy ones came with it."""
    found = []
    for _ in range(rounds + 1):
        done = subprocess.run([sys.executable, "-c", _IMPORT.format(name=name)], capture_output=True, check=True)
        found.append(json.loads(done.stdout))
    # The first may have to compile, or to read from the disk.
    return median([seconds for seconds, _ in found[1:]]), found[-1][1]


class Bench:
    """Runs the peers one after another and keeps what they measured."""

    def __init__(self, full: bool) -> None:
        self.raw: Found = {}
        self.bystanders = Bystanders()
        self.fresh_trials = 100 if full else 12
        self._with_ray = has_ray()

    def peer(self, key: str, peer: str, **options: Any) -> Found:
        """What a peer measured; of Ray also that it is not there, or failed."""
        if peer.startswith("ray") and not self._with_ray:
            return {}
        print(f"  {key} ...", file=sys.stderr, flush=True)
        self.bystanders.look()
        try:
            self.raw[key] = run_peer(__file__, peer, options)
        except PeerFailed as error:
            print(f"  {error}", file=sys.stderr)
            self.raw[key] = {"failed": str(error)}
        found: Found = self.raw[key]
        return found

    def rows(self) -> Iterator[Row]:
        yield self._imports()
        yield self._boundary()
        yield from self._reports()
        yield from self._ends_and_stops()
        yield from self._turns()
        yield from self._sweeps()

    def _imports(self) -> Row:
        own, heavy = import_ms("cotune", 9)
        ray = import_ms("ray.tune", 3)[0] if self._with_ray else None
        self.raw["import"] = {"cotune": own, "heavy": heavy, "ray.tune": ray}
        what = f", with {', '.join(heavy)}" if heavy else ", light"
        theirs = _unit(ray, "ms")
        budget = "<= 150 ms, light"
        ok = own <= 150 and not heavy
        return Row("import", budget, f"{own:.0f} ms{what}", theirs, theirs, ok, times(ray, own), None)

    def _boundary(self) -> Row:
        found = self.peer("boundary", "cotune_boundary")
        cost = found.get("difference")
        whole = f" (step {found['without']:.1f} us)" if found.get("without") else ""
        return Row("boundary, nothing due", "<= 2 us", _unit(cost, "us", 2) + whole, ok=cost is not None and cost <= 2)

    def _reports(self) -> Iterator[Row]:
        one: float | None = None
        for together, least in ((1, 10_000), (2, 25_000)):
            own = self.peer(f"cotune reports, {together} lanes", "cotune_reports", together=together).get("rate")
            ray = self.peer(f"ray reports, {together} trials", "ray_reports", together=together).get("rate")
            what = "reports/s, one trial" if together == 1 else "reports/s, two lanes"
            # Ray's one trial made 492 reports a second where the budgets were set.
            one = one or ray
            ok = own is not None and own >= least
            yield Row(what, f">= {least:,}", _count(own), _count(ray), "same", ok, times(own, one), least / 492)

    def _ends_and_stops(self) -> Iterator[Row]:
        for what, peer, reports in (("end", "trials", 3), ("stop", "stops", 4)):
            own = self.peer(f"cotune {peer}", f"cotune_{peer}", trials=COTUNE_TRIALS, reports=reports)
            fresh = self.peer(
                f"ray {peer}, fresh", f"ray_{peer}", trials=self.fresh_trials, reports=reports, reuse=False
            )
            reuse = self.peer(f"ray {peer}, reuse", f"ray_{peer}", trials=100, reports=reports, reuse=True)
            # Ray's reused actors took 8 to 24 ms where the budgets were set.
            for share, most, needed in (("p50", 1.0, 8.0), ("p99", 10.0, 2.4)):
                value = own.get(share)
                yield Row(
                    f"{what} -> next first line, {share}",
                    f"<= {most:g} ms",
                    _unit(value, "ms", 2),
                    _unit(fresh.get(share), "ms"),
                    _unit(reuse.get(share), "ms", 1),
                    value is not None and value <= most,
                    times(reuse.get(share), value),
                    needed,
                )

    def _turns(self) -> Iterator[Row]:
        found = self.peer("turns", "cotune_turns")
        value = found.get("p50")
        text = _unit(value, "us") + (f" of {found['count']}, p99 {found['p99']:.0f} us" if value is not None else "")
        yield Row("turn change, p50", "<= 100 us", text, ok=value is not None and value <= 100)
        same = found.get("identical", False)
        yield Row("... metrics as when alone", "bit-identical", "yes" if same else "no", ok=bool(same))

    def _sweeps(self) -> Iterator[Row]:
        runs = [self.peer(f"cotune sweep {n}", "cotune_trials", trials=100, reports=3) for n in range(3)]
        fresh, reuse = self.raw.get("ray trials, fresh", {}), self.raw.get("ray trials, reuse", {})
        # Ray with reused actors took 7.8 s in all where the budgets were set.
        for key, what, most, needed in (
            ("total", "100 trials x 3, from run()", 3.5, 7.8 / 3.5),
            ("after_first", "... after the first line", 0.3, None),
        ):
            found = [run[key] for run in runs if key in run]
            value = median(found) if len(found) == len(runs) else None
            span = f" ({min(found):.2f}-{max(found):.2f})" if found else ""
            yield Row(
                what,
                f"<= {most} s",
                _unit(value, "s", 2) + span,
                _sweep(fresh, key),
                _sweep(reuse, key),
                value is not None and value <= most,
                times(reuse.get(key) if reuse.get("trials") == 100 else None, value),
                needed,
            )


def _unit(value: float | None, unit: str, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f} {unit}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _sweep(found: Found, key: str) -> str:
    if key not in found:
        return "failed" if found else "-"
    text = f"{found[key]:.1f} s"
    if found["trials"] != 100:
        text += f" for {found['trials']}"
    if key == "after_first":
        text += f", {found[key] / found['trials']:.2f} s a trial"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all 100 trials with Ray's fresh actors as well")
    parser.add_argument("--out", help="write everything measured to this JSON file")
    parser.add_argument("--no-check", action="store_true", help="exit status 0 even if a budget is missed")
    options = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    began = time.monotonic()
    facts = machine()
    bench = Bench(options.full)
    rows = list(bench.rows())
    facts["others_cores"] = bench.bystanders.cores()
    table = Table(title="Overheads, measured in this run")
    headings = ("what", "budget", "cotune", "Ray, fresh actors", "Ray, reuse_actors", "times (needed)", "ok?")
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        mark = "" if row.ok is None else "[green]yes[/]" if row.ok else "by times" if row.is_kept else "[bold red]NO[/]"
        ratio = "-" if row.times is None else f"{row.times:.1f}" + (f" ({row.needed:.1f})" if row.needed else "")
        table.add_row(row.what, row.budget, row.cotune, row.fresh, row.reuse, ratio, mark)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(f"{describe(facts)}; {time.monotonic() - began:.0f} s in all", highlight=False)
    write_json(options.out, {"machine": facts, "rows": [asdict(row) for row in rows], "measured": bench.raw})
    missed = [row.what for row in rows if row.is_kept is False]
    if missed:
        console.print(f"missed: {'; '.join(missed)}", highlight=False)
    return 1 if missed and not options.no_check else 0


if __name__ == "__main__":
    if not serve_peer(PEERS):
        sys.exit(main())
