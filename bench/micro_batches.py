"""What running micro-batches at once takes and brings: one at a time, 2, 4 and 8 at once, larger ones, the whole batch.

python bench/micro_batches.py [--repeats 9] [--device cpu|cuda] [--out micro_batches.json]

Every line is measured in a fresh process. `bench/README.md` says what the columns are.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from _common import Bystanders, PeerFailed, describe, machine, median, run_peer, serve_peer, write_json

Found = dict[str, Any]
MIB = 1 << 20
MODELS = {"cnn": (256, 32), "mlp": (2048, 256), "transformer": (64, 8)}


# ---- the peer's side


class Lent:
    """A grant without a packer, and the session of a trial that has it."""

    is_open = is_stopping = False
    need = 0

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency

    def micro_batches(self, count: int) -> Lent:
        return self

    def room(self) -> int:
        return 1 << 50

    def ran_out(self) -> None:
        raise MemoryError("this machine has too little memory for the benchmark")

    def fail(self, error: Exception) -> None:
        raise error


def build(name: str, device: str) -> tuple[Any, Any, Any]:
    """A model and a batch for it."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    count = MODELS[name][0]
    labels = torch.randint(0, 10, (count,))
    if name == "cnn":
        layers: list[Any] = []
        for before, after in ((3, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        model: Any = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16, 10))
        x = torch.randn(count, 3, 32, 32)
    elif name == "mlp":
        model = nn.Sequential(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10)
        )
        x = torch.randn(count, 784)
    else:
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(128 * 32, 10))
        x = torch.randn(count, 32, 128)
    return model.to(device), x.to(device), labels.to(device)


def measure(options: Found) -> Found:
    """Times and peak of one way to run a batch."""
    import torch
    from torch.nn import functional as F

    import cotune
    from cotune import session
    from cotune.sharing.cpu import CpuMemory

    torch.set_num_threads(1)
    device, size, at_once = options["device"], options["size"], options["at_once"]
    model, x, y = build(options["model"], device)

    def batch() -> None:
        cotune.micro_batches((x, y), size).backward(lambda x, y: F.cross_entropy(model(x), y))

    def wait() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()

    # Against double precision, dropout and batch statistics left out: they differ by the size of the micro-batches.
    model.eval()
    if at_once > 1:
        session.bind(Lent(at_once))  # type: ignore[arg-type]
    batch()
    grads = [p.grad.double() for p in model.parameters()]
    session.bind(None)
    model.double().zero_grad()
    F.cross_entropy(model(x.double()), y).backward()
    exact = [p.grad for p in model.parameters()]
    error = max(float((g - e).abs().max() / e.abs().max()) for g, e in zip(grads, exact, strict=True))
    del grads, exact
    model.float().train()
    if at_once > 1:
        session.bind(Lent(at_once))  # type: ignore[arg-type]
    for _ in range(2):
        model.zero_grad()
        batch()
    model.zero_grad()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        batch()
        peak = torch.cuda.max_memory_allocated() - before
    else:
        memory = CpuMemory(1)
        memory.start()
        memory.trim(others_run=False)
        memory.reset_peak()
        before = memory.read()[0]
        batch()
        peak = memory.read()[1] - before
    seconds = []
    for _ in range(options["repeats"]):
        model.zero_grad()
        began = wait()
        batch()
        seconds.append(wait() - began)
    session.bind(None)
    return {"seconds": seconds, "peak": peak, "error": error}


# ---- the table


def lines(model: str) -> list[tuple[str, int, int]]:
    """Name, samples in a micro-batch, how many at once."""
    count, size = MODELS[model]
    found = [("one at a time", size, 1)]
    found += [(f"{at_once} at once", size, at_once) for at_once in (2, 4, 8)]
    return [*found, ("four times as large", 4 * size, 1), ("whole batch", count, 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="both, where there is a GPU, if left out")
    parser.add_argument("--out", help="a file for the JSON")
    options = parser.parse_args()
    facts, bystanders, found = machine(), Bystanders(), []
    for device in [options.device] if options.device else _devices():
        print(f"\n{device}, {facts['cores']} cores")
        print(
            f"{'model':12} {'micro-batches':20} {'size':>5} {'ms a batch (least)':>18} {'ratio':>6} {'peak':>8} error"
        )
        for model in MODELS:
            base = 0.0
            for name, size, at_once in lines(model):
                bystanders.look()
                asked = {"device": device, "model": model, "size": size, "at_once": at_once}
                try:
                    row = run_peer(__file__, "measure", {**asked, "repeats": options.repeats})
                except PeerFailed as error:
                    print(f"{model:12} {name:20} failed: {str(error).splitlines()[-1][:60]}")
                    found.append({**asked, "name": name, "failed": str(error)})
                    continue
                took = median(row["seconds"])
                base = base or took
                spread = f"{took * 1e3:7.1f} ({min(row['seconds']) * 1e3:.1f})"
                print(
                    f"{model:12} {name:20} {size:5} {spread:>18} {took / base:6.2f} "
                    f"{row['peak'] / MIB:7.1f}M {row['error']:.0e}",
                    flush=True,
                )
                found.append({**asked, "name": name, **row})
    facts["others_cores"] = bystanders.cores()
    print(f"\nmedian (least) of {options.repeats}; {describe(facts)}")
    write_json(options.out, {"machine": facts, "rows": found})


def _devices() -> list[str]:
    from cotune.sharing.cuda import torch_has_cuda, visible_gpus

    return ["cpu", "cuda"] if torch_has_cuda() and visible_gpus() else ["cpu"]


if __name__ == "__main__" and not serve_peer({"measure": measure}):
    main()
