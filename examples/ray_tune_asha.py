"""Ray Tune with ASHA, on lanes: the one line that differs is the scheduler's.

python examples/ray_tune_asha.py [--trials 20] [--gpus 0]
"""

import argparse

import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from cotune import colocate


def train(config):
    torch.manual_seed(0)
    x = torch.randn(512, 16)
    y = x.square().sum(dim=1, keepdim=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for _ in range(20):
        for _ in range(10):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        tune.report({"loss": loss.item()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--gpus", type=int, default=None)
    options = parser.parse_args()
    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.loguniform(1e-4, 1e-1), "width": tune.choice([32, 128, 512])},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=options.trials,
            scheduler=colocate(ASHAScheduler(max_t=20, grace_period=2), gpus=options.gpus),
        ),
    )
    best = tuner.fit().get_best_result()
    print(f"loss {best.metrics['loss']:.4f} with {best.config}")
