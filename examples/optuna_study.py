"""An Optuna objective, as in Optuna's guides, on cotune's lanes: one line differs.

python examples/optuna_study.py [--trials 30] [--gpus N] [--alone]
"""

import argparse
import time

import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import cotune


def objective(trial):
    device = cotune.device()
    images, labels = cotune.shared("digits", lambda: load_digits(return_X_y=True))
    x = torch.tensor(images, dtype=torch.float32, device=device) / 16
    y = torch.tensor(labels, device=device)
    layers, size = [], 64
    for number in range(trial.suggest_int("layers", 1, 3)):
        width = trial.suggest_int(f"width_{number}", 4, 128, log=True)
        layers += [nn.Linear(size, width), nn.ReLU(), nn.Dropout(trial.suggest_float(f"dropout_{number}", 0.0, 0.5))]
        size = width
    model = nn.Sequential(*layers, nn.Linear(size, 10)).to(device)
    kind = trial.suggest_categorical("optimizer", ["Adam", "RMSprop", "SGD"])
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True))
    for epoch in range(10):
        model.train()
        for batch in torch.randperm(1400, device=device).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return accuracy


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--trials", type=int, default=30)
parser.add_argument("--gpus", type=int)
parser.add_argument("--alone", action="store_true", help="without cotune, to compare")
options = parser.parse_args()

study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
began = time.perf_counter()
if options.alone:
    study.optimize(objective, n_trials=options.trials)
else:
    cotune.optimize(study, objective, n_trials=options.trials, gpus=options.gpus)
print(f"{len(study.trials)} trials in {time.perf_counter() - began:.1f} s, best {study.best_value:.3f}")
print(study.best_params)
