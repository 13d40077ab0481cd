"""What `gpu.py` trains: from a model that waits for its kernels to be launched to one that keeps the device busy."""

from __future__ import annotations

from typing import Any

MIB = 1 << 20
# width, batch, layers; the second line for a dry run on a CPU
SIZES: dict[str, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "mlp": ((128, 64, 8), (16, 8, 2)),
    "cnn": ((32, 64, 3), (4, 4, 2)),
    "transformer": ((512, 8, 6), (16, 2, 1)),
    "heavy cnn": ((256, 128, 4), (8, 4, 2)),
}


def device_of(dry: bool) -> str:
    return "cpu" if dry else "cuda:0"


def settle(device: str) -> None:
    """Waits until the device has done what this thread gave it."""
    if device != "cpu":
        import torch

        torch.cuda.current_stream().synchronize()


class Training:
    """A model with its optimizer and a batch; called, it makes one step and waits for nothing."""

    def __init__(self, model: Any, x: Any, optimizer: Any) -> None:
        self.optimizer = optimizer
        self._model = model
        self._x = x

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self._model(self._x).square().mean().backward()
        self.optimizer.step()


def training(name: str, dry: bool, seed: int = 0) -> Training:
    """One of the models, ready to be trained."""
    import torch
    from torch import nn

    width, batch, layers = SIZES[name][1 if dry else 0]
    device = device_of(dry)
    torch.manual_seed(seed)
    with torch.device(device):
        if name == "mlp":
            blocks = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
            model: Any = nn.Sequential(*blocks, nn.Linear(width, 10))
            x = torch.randn(batch, width)
        elif name == "transformer":
            layer = nn.TransformerEncoderLayer(width, 8 if width > 64 else 2, 4 * width, 0.0, batch_first=True)
            model = nn.Sequential(
                nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, 10)
            )
            x = torch.randn(batch, 128 if width > 64 else 8, width)
        else:
            blocks = [nn.Conv2d(3, width, 3, padding=1)]
            for _ in range(layers):
                blocks += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
            x = torch.randn(batch, 3, 32, 32)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Training(model, x, optimizer)
