"""Tunes a small CNN on scikit-learn's digits, packed onto the devices and then one trial at a time.

python examples/digits.py [--trials 24] [--gpus N] [--epochs 12]
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import cotune


def load_data():
    """1,797 images of 8x8 pixels, split into training and validation."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, valid = order[:1400], order[1400:]
    return x[train], y[train], x[valid], y[valid]


def train(config):
    device = cotune.device()
    x, y, x_valid, y_valid = (part.to(device) for part in cotune.shared("digits", load_data))
    model = nn.Sequential(
        nn.Conv2d(1, config["width"], 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(config["width"], 2 * config["width"], 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(config["dropout"]),
        nn.Linear(2 * config["width"] * 16, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    start = 0
    if (saved := cotune.restore()) is not None:
        state = torch.load(saved / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["epoch"] + 1
    for epoch in range(start, config["epochs"]):
        model.train()
        for batch in torch.randperm(len(y), device=device).split(config["batch"]):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            scores = model(x_valid)
            loss = F.cross_entropy(scores, y_valid)
            accuracy = (scores.argmax(1) == y_valid).float().mean()
        cotune.report({"loss": loss, "accuracy": accuracy}, step=epoch)
        with cotune.checkpoint() as path:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, path / "state.pt")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--gpus", type=int, default=None)
    options = parser.parse_args()
    space = {
        "lr": cotune.loguniform(1e-4, 1e-1),
        "width": cotune.choice([8, 16, 32]),
        "dropout": cotune.uniform(0.0, 0.5),
        "batch": cotune.choice([32, 64, 128]),
        "epochs": options.epochs,
    }
    # The same trials twice: random suggestions depend on nothing but the seed.
    same = {"metric": "loss", "trials": options.trials, "gpus": options.gpus, "sampler": "random", "seed": 1}
    packed = cotune.run(train, space, **same)
    alone = None if packed.interrupted else cotune.run(train, space, lanes=1, **same)
    print(packed)
    if alone is None or alone.interrupted:
        return
    best = packed.best
    print(f"\nbest configuration: {best.config}")
    print(f"validation accuracy {best.metrics['accuracy']:.1%}, loss {best.metrics['loss']:.4f}")
    same_metrics = all(a.metrics == b.metrics for a, b in zip(packed, alone, strict=True))
    print(
        f"makespan {packed.makespan:.1f} s packed, {alone.makespan:.1f} s one at a time "
        f"({alone.makespan / packed.makespan:.2f}x); metrics of both {'are identical' if same_metrics else 'differ'}"
    )


if __name__ == "__main__":
    main()
