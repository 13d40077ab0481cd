"""The same trials through Ray Tune and Optuna, as they are and with cotune's one-line change.

python bench/front_doors.py [--quick] [--out front_doors.json]

Every peer runs in a fresh process. `bench/README.md` says what each row means.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import Bystanders, PeerFailed, describe, has_ray, machine, ray_session, run_peer, serve_peer, write_json

Found = dict[str, Any]
Report = Callable[[float, int], None]
AT_ONCE = 2
RUNGS = (27, 9, 3, 1)
EPOCHS = RUNGS[0]
TRIVIAL, DIGITS = 100, 60
TOGETHER = 4
# How often the two are run that are close to each other.
ROUNDS = 3


# ---- what is tuned


def trivial(config: Found, report: Report) -> None:
    """A torch trial that does next to nothing."""
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for step in range(1, 4):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        report(loss.item(), step)


def digits(config: Found, report: Report) -> None:
    """A small CNN; outside of a lane `cotune.shared` keeps the data for the process."""
    from _digits import load_data, train

    import cotune

    train(config, cotune.shared("digits", load_data), EPOCHS, os.devnull, report)


def together(config: Found, report: Report) -> None:
    """Reports until all that should be resident are, then says what its process holds."""
    import torch

    torch.optim.SGD(torch.nn.Linear(4, 1).parameters(), lr=0.1)
    Path(config["folder"], f"here-{config['index']}").touch()
    step, deadline = 0, time.monotonic() + 120
    while len(list(Path(config["folder"]).glob("here-*"))) < TOGETHER and time.monotonic() < deadline:
        step += 1
        report(0.0, step)
        time.sleep(0.05)
    status = Path("/proc/self/smaps_rollup").read_text().splitlines()
    pss = next(int(line.split()[1]) for line in status if line.startswith("Pss:"))
    Path(config["folder"], f"pss-{config['index']}").write_text(f"{os.getpid()} {pss}")
    report(0.0, step + 1)


WORK: dict[str, Callable[[Found, Report], None]] = {"trivial": trivial, "digits": digits, "together": together}


def configs_of(options: Found) -> list[Found]:
    """The same configurations for every peer."""
    if options["work"] == "digits":
        from _digits import trial_list

        return trial_list(options["trials"], 0)
    return [{"index": n, "lr": 1e-3 * (n + 1), "folder": options["folder"]} for n in range(options["trials"])]


def epochs_of(index: int) -> int:
    """After which a trial of digits is stopped: as many stay at each rung as successive halving by 3 would keep.

    Which ones is settled beforehand: what ASHA stops depends on who reports first, and the work would not be the same.
    """
    return next(rung for rung in RUNGS if index % rung == 0)


# ---- the peers


def tune_sweep(options: Found) -> Found:
    from ray import tune
    from ray.tune.schedulers import FIFOScheduler, TrialScheduler

    class StopsWhereSaid(FIFOScheduler):  # type: ignore[misc]
        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
            is_over = result["training_iteration"] >= epochs_of(trial.config["trial"]["index"])
            return str(TrialScheduler.STOP if is_over else TrialScheduler.CONTINUE)

    work = WORK[options["work"]]
    sys.path.insert(0, str(Path(__file__).parent))

    def trainable(config: Found) -> None:
        work(config["trial"], lambda value, _: tune.report({"value": value}))

    scheduler: Any = StopsWhereSaid() if options["work"] == "digits" else FIFOScheduler()
    if options["door"] == "colocate":
        from cotune import colocate

        residents = options.get("residents", 1)
        scheduler = colocate(scheduler, lanes=options.get("lanes", AT_ONCE), max_residents=residents)
    with ray_session(options["folder"]):
        fit = tune.Tuner(
            tune.with_resources(trainable, {"cpu": options.get("cpus", 1)}),
            param_space={"trial": tune.grid_search(configs_of(options))},
            tune_config=tune.TuneConfig(
                metric="value",
                mode="max",
                scheduler=scheduler,
                max_concurrent_trials=options.get("at_once", AT_ONCE),
                reuse_actors=options["door"] == "reuse",
            ),
            run_config=tune.RunConfig(storage_path=f"{options['folder']}/results", verbose=0),
        ).fit
        began = time.monotonic()
        results = fit()
        seconds = time.monotonic() - began
        if results.num_errors:
            raise results.errors[0]
    reports = sum(int((result.metrics or {}).get("training_iteration", 0)) for result in results)
    return {"seconds": seconds, "trials": len(results), "reports": reports, "processes": processes(options)}


def optuna_sweep(options: Found) -> Found:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sys.path.insert(0, str(Path(__file__).parent))
    work, configs = WORK[options["work"]], configs_of(options)

    def objective(trial: optuna.Trial) -> float:
        last = [0.0]

        def report(value: float, step: int) -> None:
            last[0] = value
            trial.report(value, step)
            if trial.should_prune():
                raise optuna.TrialPruned

        work(configs[trial.number] | {"drawn": trial.suggest_float("lr", 1e-4, 1e-1, log=True)}, report)
        return last[0]

    class StopsWhereSaid(optuna.pruners.BasePruner):
        def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
            return (trial.last_step or 0) >= epochs_of(trial.number)

    pruner: Any = StopsWhereSaid() if options["work"] == "digits" else optuna.pruners.NopPruner()
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    began = time.monotonic()
    if options["door"] == "optimize":
        import cotune

        cotune.optimize(
            study, objective, n_trials=len(configs), devices=["cpu:0"], lanes=AT_ONCE, storage=options["folder"]
        )
    else:
        study.optimize(objective, n_trials=len(configs), n_jobs=AT_ONCE)
    seconds = time.monotonic() - began
    reports = sum(len(trial.intermediate_values) for trial in study.trials)
    return {"seconds": seconds, "trials": len(study.trials), "reports": reports}


def processes(options: Found) -> dict[str, int]:
    """Bytes that each process of a trial holds, shared pages by their share; of the work `together`."""
    told = [path.read_text().split() for path in Path(options["folder"]).glob("pss-*")]
    return {pid: int(kib) << 10 for pid, kib in told}


PEERS = {function.__name__: function for function in (tune_sweep, optuna_sweep)}


# ---- the table


@dataclass(frozen=True)
class Entry:
    """One run of a peer: a line of the table, or one of several."""

    name: str
    peer: str
    options: Found


def entries(quick: bool) -> list[Entry]:
    doors = (("Ray Tune, default", "fresh"), ("Ray Tune, reuse_actors", "reuse"), ("Ray Tune, colocate", "colocate"))
    found = []
    for work, count in (("trivial", TRIVIAL), ("digits", DIGITS)):
        for name, door in (*doors, *((1 if quick else ROUNDS) - 1) * doors[1:]):
            trials = 12 if quick and door == "fresh" else count
            found.append(Entry(f"{name}, {work}", "tune_sweep", {"work": work, "door": door, "trials": trials}))
        for name, door in (("Optuna, n_jobs=2", "n_jobs"), ("cotune.optimize, 2 lanes", "optimize")):
            found.append(Entry(f"{name}, {work}", "optuna_sweep", {"work": work, "door": door, "trials": count}))
    crowd = {"work": "together", "trials": TOGETHER, "at_once": TOGETHER, "cpus": 0.5}
    found.append(Entry("Ray Tune, default, memory", "tune_sweep", {**crowd, "door": "fresh"}))
    lanes = {"door": "colocate", "lanes": 1, "residents": TOGETHER}
    found.append(Entry("Ray Tune, colocate, memory", "tune_sweep", {**crowd, **lanes}))
    return found


def a_report(found: Found) -> float:
    """Seconds; by the report, since with `--quick` there are fewer of the slowest."""
    return float(found["seconds"] / found["reports"])


def ratios(measured: dict[str, Found]) -> list[tuple[str, str, str, bool | None]]:
    """What is asked for, what came out, and whether that will do."""

    def ratio(one: str, other: str) -> float | None:
        a, b = measured.get(one), measured.get(other)
        return a_report(a) / a_report(b) if a and b else None

    rows = []
    for work, least in (("trivial", 10.0), ("digits", None)):
        faster = ratio(f"Ray Tune, default, {work}", f"Ray Tune, colocate, {work}")
        rows.append((f"colocate against default, {work}", least, faster))
        rows.append(
            (
                f"colocate against reuse, {work}",
                1.0,
                ratio(f"Ray Tune, reuse_actors, {work}", f"Ray Tune, colocate, {work}"),
            )
        )
        rows.append(
            (
                f"optimize against n_jobs=2, {work}",
                None,
                ratio(f"Optuna, n_jobs=2, {work}", f"cotune.optimize, 2 lanes, {work}"),
            )
        )
    table = []
    for what, least, value in rows:
        ok = None if least is None or value is None else value >= least
        table.append((what, "-" if least is None else f">= {least:g}x", "-" if value is None else f"{value:.3g}x", ok))
    memory = [_memory(measured.get(f"Ray Tune, {door}, memory")) for door in ("default", "colocate")]
    if all(memory):
        before, after = (value or 0.0 for value in memory)
        told = f"{before / 2**20:.0f} -> {after / 2**20:.0f} MiB, {before / after:.1f}x less"
        table.append(
            (
                f"memory of a trial, {TOGETHER} residents",
                f">= {TOGETHER * 0.75:g}x less",
                told,
                before / after >= 0.75 * TOGETHER,
            )
        )
    return table


def _memory(found: Found | None) -> float | None:
    return sum(found["processes"].values()) / found["trials"] if found and found["processes"] else None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="12 trials with Ray's fresh actors, which take seconds each"
    )
    parser.add_argument("--out", help="write everything measured to this JSON file")
    parser.add_argument("--no-check", action="store_true", help="exit status 0 even if a ratio is missed")
    options = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    began = time.monotonic()
    facts, bystanders = machine(), Bystanders()
    runs: dict[str, list[Found]] = {}
    failed = 0
    for entry in entries(options.quick):
        if entry.peer == "tune_sweep" and not has_ray():
            continue
        print(f"  {entry.name} ...", file=sys.stderr, flush=True)
        bystanders.look()
        try:
            runs.setdefault(entry.name, []).append(run_peer(__file__, entry.peer, entry.options, timeout=900))
        except PeerFailed as error:
            failed += 1
            print(f"  {error}", file=sys.stderr)
    facts["others_cores"] = bystanders.cores()
    measured = {name: sorted(found, key=a_report)[(len(found) - 1) // 2] for name, found in runs.items()}
    table = Table(title="Front doors, measured in this run; the middle one where a peer ran several times")
    for heading in ("", "trials", "reports", "seconds", "a report", "of all"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, found in measured.items():
        each = [f"{a_report(one) * 1e3:.0f}" for one in runs[name]]
        table.add_row(
            name, f"{found['trials']}", f"{found['reports']}", f"{found['seconds']:.2f}",
            f"{a_report(found) * 1e3:.0f} ms", ", ".join(each) if len(each) > 1 else "",
        )  # fmt: skip
    compared = Table(title="Ratios, per report")
    for heading in ("", "target", "measured", "ok?"):
        compared.add_column(heading)
    rows = ratios(measured)
    for what, target, value, ok in rows:
        compared.add_row(what, target, value, "" if ok is None else "[green]yes[/]" if ok else "[bold red]NO[/]")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table, compared)
    console.print(f"{describe(facts)}; {time.monotonic() - began:.0f} s in all", highlight=False)
    write_json(options.out, {"machine": facts, "ratios": rows, "measured": measured, "runs": runs})
    missed = any(ok is False for *_, ok in rows)
    return 1 if failed or (missed and not options.no_check) else 0


if __name__ == "__main__":
    if not serve_peer(PEERS):
        sys.exit(main())
