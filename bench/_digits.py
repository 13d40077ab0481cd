"""The work of `makespan.py`: a small CNN on scikit-learn's digits, and the list of trials."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

Config = dict[str, Any]
Data = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

LR = (1e-4, 3e-2)
WIDTHS = (8, 16, 32)
DROPOUT = (0.0, 0.5)
BATCHES = (32, 64, 128)


def trial_list(count: int, seed: int) -> list[Config]:
    """The same random configurations for every peer; `index` is also the seed of the training."""
    draw = random.Random(seed)
    return [
        {
            "index": index,
            "lr": math.exp(draw.uniform(math.log(LR[0]), math.log(LR[1]))),
            "width": draw.choice(WIDTHS),
            "dropout": draw.uniform(*DROPOUT),
            "batch": draw.choice(BATCHES),
        }
        for index in range(count)
    ]


def load_data() -> Data:
    """1,797 images of 8x8 pixels, split into training and validation."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, valid = order[:1400], order[1400:]
    return x[train], y[train], x[valid], y[valid]


def train(config: Config, data: Data, epochs: int, trace: str, report: Callable[[float, int], None]) -> float:
    """Trains one trial on one thread, reports the validation accuracy of each epoch and gives the last.

    Every result is also noted in the trace, on the clock that all processes share, before it is reported.
    """
    torch.set_num_threads(1)
    torch.manual_seed(config["index"])
    x, y, x_valid, y_valid = data
    width = config["width"]
    model: Any = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(config["dropout"]),
        nn.Linear(2 * width * 16, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    accuracy = 0.0
    for epoch in range(1, epochs + 1):
        model.train()
        order: Any = torch.randperm(len(y))
        for batch in order.split(config["batch"]):
            optimizer.zero_grad()
            step_loss: Any = F.cross_entropy(model(x[batch]), y[batch])
            step_loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            scores = model(x_valid)
            accuracy = (scores.argmax(1) == y_valid).float().mean().item()
            loss = F.cross_entropy(scores, y_valid).item()
        note(trace, config["index"], epoch, accuracy, loss)
        report(accuracy, epoch)
    return accuracy


def note(trace: str, index: int, epoch: int, accuracy: float, loss: float) -> None:
    fd = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, f"{time.monotonic()!r} {index} {epoch} {accuracy!r} {loss!r}\n".encode())
    os.close(fd)
