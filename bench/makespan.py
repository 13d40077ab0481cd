"""How long the same list of trials takes: cotune, Ray Tune, Optuna's threads.

python bench/makespan.py [--trials 80] [--epochs 27] [--seed 0] [--out makespan.json]

Every peer runs in a fresh process, whose start and imports count. `bench/README.md` says how the fairness was kept.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import Bystanders, PeerFailed, describe, has_ray, machine, ray_session, run_peer, serve_peer, write_json

Found = dict[str, Any]
AT_ONCE = 2
REDUCTION = 3


# ---- the peers


def _sampler(configs: list[Found]) -> Any:
    """An Optuna sampler that suggests the list, in its order."""
    from optuna.samplers import BaseSampler

    class InOrder(BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return configs[trial.number][param_name]

    return InOrder()


def _space(trials: int) -> dict[str, Any]:
    """The domains that the list was drawn from, for Optuna and cotune."""
    from _digits import BATCHES, DROPOUT, LR, WIDTHS
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    return {
        "index": IntDistribution(0, max(trials - 1, 1)),
        "lr": FloatDistribution(*LR, log=True),
        "width": CategoricalDistribution(WIDTHS),
        "dropout": FloatDistribution(*DROPOUT),
        "batch": CategoricalDistribution(BATCHES),
    }


def _pruner() -> Any:
    from optuna.pruners import SuccessiveHalvingPruner

    return SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION, min_early_stopping_rate=0)


def run_cotune(options: Found) -> Found:
    from _digits import load_data, train, trial_list

    import cotune

    epochs, trace = options["epochs"], options["folder"] + "/trace"

    def trainable(config: Found) -> None:
        data = cotune.shared("digits", load_data)
        train(config, data, epochs, trace, lambda accuracy, epoch: cotune.report({"accuracy": accuracy}, step=epoch))

    results = cotune.run(
        trainable,
        _space(options["trials"]),
        metric="accuracy",
        mode="max",
        trials=options["trials"],
        devices=["cpu:0"],
        lanes=options["lanes"],
        sampler=_sampler(trial_list(options["trials"], options["seed"])),
        pruner=_pruner(),
        storage=options["folder"],
        dashboard=False,
    )
    ended = time.monotonic()
    if results.errors:
        raise RuntimeError(str(results.errors[0].error))
    return {"ended": ended, "trials": len(results), "makespan": results.makespan}


def run_ray(options: Found) -> Found:
    from _digits import load_data, train, trial_list
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    epochs, trace = options["epochs"], options["folder"] + "/trace"

    def trainable(config: Found, data: Any) -> None:
        train(config["trial"], data, epochs, trace, lambda accuracy, _: tune.report({"accuracy": accuracy}))

    with ray_session(options["folder"]):
        results = tune.Tuner(
            tune.with_parameters(trainable, data=load_data()),
            param_space={"trial": tune.grid_search(trial_list(options["trials"], options["seed"]))},
            tune_config=tune.TuneConfig(
                metric="accuracy",
                mode="max",
                scheduler=ASHAScheduler(max_t=epochs, grace_period=1, reduction_factor=REDUCTION),
                max_concurrent_trials=AT_ONCE,
                reuse_actors=options["reuse"],
            ),
            run_config=tune.RunConfig(storage_path=f"{options['folder']}/results", verbose=0),
        ).fit()
        ended = time.monotonic()
        if results.num_errors:
            raise results.errors[0]
    return {"ended": ended, "trials": len(results)}


def run_optuna(options: Found) -> Found:
    import optuna
    from _digits import load_data, train, trial_list

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    data, domains = load_data(), _space(options["trials"])

    def objective(trial: optuna.Trial) -> float:
        def report(accuracy: float, epoch: int) -> None:
            trial.report(accuracy, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned

        config = {name: trial._suggest(name, domain) for name, domain in domains.items()}
        return train(config, data, options["epochs"], options["folder"] + "/trace", report)

    configs = trial_list(options["trials"], options["seed"])
    study = optuna.create_study(direction="maximize", sampler=_sampler(configs), pruner=_pruner())
    study.optimize(objective, n_trials=options["trials"], n_jobs=options["jobs"])
    return {"ended": time.monotonic(), "trials": len(study.trials)}


def traced(run: Callable[[Found], Found]) -> Callable[[Found], Found]:
    """Has a peer give every result as well: seconds since its process was started, trial, epoch, accuracy, loss."""

    def with_trace(options: Found) -> Found:
        found = run(options)
        began = options["began"]
        lines = [line.split() for line in Path(options["folder"], "trace").read_text().splitlines()]
        found["results"] = [[float(at) - began, int(i), int(n), float(a), float(b)] for at, i, n, a, b in lines]
        found["seconds"] = found.pop("ended") - began
        return found

    return with_trace


PEERS = {run.__name__: traced(run) for run in (run_cotune, run_ray, run_optuna)}


# ---- the table


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    name: str
    peer: str
    options: Found
    note: str = ""


ENTRIES = (
    Entry("cotune, lanes=2", "run_cotune", {"lanes": 2}),
    Entry("cotune, lanes found", "run_cotune", {"lanes": None}),
    Entry("cotune, one at a time", "run_cotune", {"lanes": 1}),
    Entry("Ray Tune, reuse_actors, 2", "run_ray", {"reuse": True}),
    Entry("Optuna, n_jobs=2 threads", "run_optuna", {"jobs": 2}),
    Entry("Optuna, n_jobs=1", "run_optuna", {"jobs": 1}),
)
SLOW_ENTRIES = (Entry("Ray Tune, fresh actors, 2", "run_ray", {"reuse": False}),)


def first_time(results: list[list[float]], least: float) -> float | None:
    """When a result of at least this accuracy was there."""
    return min((at for at, _, _, accuracy, _ in results if accuracy >= least), default=None)


def same_values(one: Found, other: Found) -> str:
    """How many (trial, epoch) pairs two peers both trained, and whether these came out alike to the last bit."""
    ours, theirs = ({(i, n): (a, b) for _, i, n, a, b in found["results"]} for found in (one, other))
    common = ours.keys() & theirs.keys()
    different = sum(ours[key] != theirs[key] for key in common)
    return "yes" if not different else f"{different} of {len(common)} differ"


def summary(entry: Entry, found: Found, best: float, alone: Found) -> Found:
    results = found["results"]
    own = max(row[3] for row in results)
    return {
        "name": entry.name,
        "seconds": found["seconds"],
        "first_result": min(row[0] for row in results),
        "best_value": first_time(results, own),
        "near_best": first_time(results, best - 0.01),
        "trials": found["trials"],
        "epochs": len(results),
        "epochs_per_second": len(results) / found["seconds"],
        "best": own,
        "same_as_alone": same_values(found, alone),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=80)
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="Ray Tune with fresh actors as well, which takes minutes")
    parser.add_argument("--out", help="write everything measured to this JSON file")
    options = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    began = time.monotonic()
    facts, bystanders = machine(), Bystanders()
    work = {"trials": options.trials, "epochs": options.epochs, "seed": options.seed}
    entries = [*ENTRIES, *(SLOW_ENTRIES if options.full else ())]
    measured: dict[str, Found] = {}
    failed = 0
    for entry in entries:
        if entry.peer == "run_ray" and not has_ray():
            continue
        print(f"  {entry.name} ...", file=sys.stderr, flush=True)
        bystanders.look()
        try:
            measured[entry.name] = run_peer(__file__, entry.peer, work | entry.options, timeout=900)
        except PeerFailed as error:
            failed += 1
            print(f"  {error}", file=sys.stderr)
    if not measured:
        return 1
    best = max(row[3] for found in measured.values() for row in found["results"])
    alone = measured.get("cotune, one at a time", next(iter(measured.values())))
    rows = [summary(entry, measured[entry.name], best, alone) for entry in entries if entry.name in measured]
    facts["others_cores"] = bystanders.cores()
    table = Table(title=f"{options.trials} digits trials of up to {options.epochs} epochs, two cores, one thread each")
    for heading in ("", "finished", "first result", "own best", "within 1% of best", "epochs", "epochs/s", "best"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_column("results as when alone")
    for row in rows:
        table.add_row(
            row["name"],
            *(_seconds(row[key]) for key in ("seconds", "first_result", "best_value", "near_best")),
            f"{row['epochs']}",
            f"{row['epochs_per_second']:.1f}",
            f"{row['best']:.1%}",
            row["same_as_alone"],
        )
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    console.print(f"{describe(facts)}; {time.monotonic() - began:.0f} s in all", highlight=False)
    write_json(options.out, {"machine": facts, "work": work, "rows": rows, "measured": measured})
    return 1 if failed else 0


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


if __name__ == "__main__":
    if not serve_peer(PEERS):
        sys.exit(main())
