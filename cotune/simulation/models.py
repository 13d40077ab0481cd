"""Measured training jobs: the 33 model and batch pairs of Salus's workloads.

Milliseconds per iteration and seconds of start-up are least-squares fits of job time over iterations; peak MB are as
measured. From tests/workloads.csv of github.com/SymbioticLab/Salus at 7b7f5e06 (Apache-2.0). The GPU is not named; the
paper used a P100 with 16 GB. Parameters (millions) are those of the published architectures.
"""

from __future__ import annotations

from dataclasses import dataclass

_MB = 10**6

# model, batch, ms per iteration, start-up s, peak MB, parameters in millions
_TABLE = (
    ("vgg11", 25, 105.885, 7.28, 3709.6, 132.9),
    ("vgg11", 50, 185.373, 8.33, 5087.5, 132.9),
    ("vgg11", 100, 333.956, 12.1, 9203.4, 132.9),
    ("vgg16", 25, 191.632, 8.8, 4316.8, 138.4),
    ("vgg16", 50, 353.214, 12.11, 6183.3, 138.4),
    ("vgg16", 100, 657.949, 17.51, 10445.2, 138.4),
    ("vgg19", 25, 223.881, 9.54, 4463.1, 143.7),
    ("vgg19", 50, 414.985, 12.73, 6359.0, 143.7),
    ("vgg19", 100, 770.273, 18.84, 12024.1, 143.7),
    ("resnet50", 25, 125.353, 19.39, 2116.0, 25.6),
    ("resnet50", 50, 225.724, 20.92, 4008.2, 25.6),
    ("resnet50", 75, 325.134, 22.55, 5914.6, 25.6),
    ("resnet101", 25, 216.494, 34.23, 3237.5, 44.5),
    ("resnet101", 50, 382.627, 36.63, 6105.8, 44.5),
    ("resnet101", 75, 548.071, 39.17, 8988.4, 44.5),
    ("resnet152", 25, 308.707, 51.51, 4563.0, 60.2),
    ("resnet152", 50, 548.429, 51.77, 8637.3, 60.2),
    ("resnet152", 75, 783.45, 55.04, 12725.7, 60.2),
    ("googlenet", 25, 59.351, 12.42, 756.1, 6.6),
    ("googlenet", 50, 100.186, 15.47, 1411.4, 6.6),
    ("googlenet", 100, 179.816, 16.91, 2534.1, 6.6),
    ("alexnet", 25, 21.304, 5.43, 686.6, 61.1),
    ("alexnet", 50, 29.32, 6.01, 1154.8, 61.1),
    ("alexnet", 100, 45.185, 6.58, 1396.5, 61.1),
    ("overfeat", 25, 50.359, 4.98, 3255.0, 145.7),
    ("overfeat", 50, 63.969, 3.98, 3416.3, 145.7),
    ("overfeat", 100, 99.085, 5.3, 6240.0, 145.7),
    ("inception3", 25, 197.706, 31.3, 2499.6, 23.8),
    ("inception3", 50, 361.489, 38.24, 4775.3, 23.8),
    ("inception3", 100, 682.613, 47.08, 9379.0, 23.8),
    ("inception4", 25, 405.408, 48.12, 4445.1, 42.7),
    ("inception4", 50, 728.747, 56.72, 8540.5, 42.7),
    ("inception4", 75, 1037.411, 70.05, 12662.0, 42.7),
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model at a batch size.

    Attributes:
        persistent: Weights and momentum, in float32: assumed, since only peaks were published.
        busy: Share of the device's time: assumed, 0.6 for iterations of 20 ms up to 0.95 for those of 150 ms and more.
    """

    name: str
    batch: int
    step_seconds: float
    startup: float
    persistent: int
    ephemeral: int
    busy: float


def _model(name: str, batch: int, step_ms: float, startup: float, peak_mb: float, millions: float) -> Model:
    persistent = min(int(millions * 8 * _MB), int(peak_mb * _MB) // 2)
    busy = min(0.95, 0.55 + 0.4 * step_ms / 150)
    return Model(name, batch, step_ms / 1000, startup, persistent, int(peak_mb * _MB) - persistent, busy)


MODELS = tuple(_model(*row) for row in _TABLE)
