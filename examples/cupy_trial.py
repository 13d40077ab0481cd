"""Tuning a trainable that uses CuPy alone: logistic regression, the batches drawn on the GPU.

python examples/cupy_trial.py [--trials 40]

A lane takes CuPy's memory from its own allocator, so trials are measured and capped as with torch. Needs a GPU and
`pip install '.[torch,cuda]'`; the iteration boundary is `cotune.report`, since there is no torch optimizer.
"""

from __future__ import annotations

import argparse
from typing import Any

import cotune
from cotune.errors import CotuneError

FEATURES = 512


def train(config: dict[str, Any]) -> None:
    import cupy

    truth = cupy.linspace(-1.0, 1.0, FEATURES, dtype=cupy.float32)
    weights = cupy.zeros(FEATURES, dtype=cupy.float32)
    momentum = cupy.zeros_like(weights)
    for step in range(50):
        for _ in range(20):
            x = cupy.random.standard_normal((config["batch"], FEATURES), dtype=cupy.float32)
            y = (x @ truth > 0).astype(cupy.float32)
            error = 1.0 / (1.0 + cupy.exp(-(x @ weights))) - y
            gradient = x.T @ error / len(x) + config["decay"] * weights
            momentum = config["momentum"] * momentum - config["lr"] * gradient
            weights += momentum
        cotune.report({"error": float(((x @ weights > 0) != (y > 0)).mean())}, step=step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=40)
    trials = parser.parse_args().trials
    space = {
        "lr": cotune.loguniform(1e-2, 1e1),
        "momentum": cotune.uniform(0.0, 0.99),
        "decay": cotune.loguniform(1e-6, 1e-2),
        "batch": cotune.choice([256, 1024, 4096]),
    }
    try:
        results = cotune.run(train, space, metric="error", trials=trials, gpus=1, pruner="asha")
    except CotuneError as error:
        raise SystemExit(f"cotune: {error}") from None
    print(f"best: {results.best.metrics['error']:.4f} with {results.best.config}")


if __name__ == "__main__":
    main()
