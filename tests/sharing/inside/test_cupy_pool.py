"""CuPy in a lane: memory from the lane's allocator on one stream, random numbers of the trial's own.

Where there is no CuPy or no GPU, stand-ins with the same functions show how both are asked.
"""

import importlib.util
import sys
from types import SimpleNamespace
from unittest import mock

import pytest

import cotune
from cotune.demand import MIB
from cotune.errors import InputError
from cotune.sharing.inside.cupy_pool import CupyRandom, use_lane_allocator

torch = pytest.importorskip("torch")


class FakeCupy:
    """CuPy's allocator seam: `set_allocator` takes what gives memory for a size, on the current device."""

    def __init__(self, stream=0):
        self.stream = stream
        self.cuda = SimpleNamespace(
            set_allocator=lambda allocator: setattr(self, "allocator", allocator),
            get_current_stream=lambda: SimpleNamespace(ptr=self.stream),
            PythonFunctionAllocator=self.wrap,
        )

    def wrap(self, malloc, free):
        return SimpleNamespace(malloc=lambda size: SimpleNamespace(ptr=malloc(size, 0), free=free))


@pytest.fixture
def fake_torch():
    """Torch on stream 0, its allocator giving addresses from 1000 on."""
    cuda = SimpleNamespace(
        current_stream=lambda: SimpleNamespace(cuda_stream=0),
        caching_allocator_alloc=mock.create_autospec(torch.cuda.caching_allocator_alloc, side_effect=[1000, 2000]),
        caching_allocator_delete=mock.create_autospec(torch.cuda.caching_allocator_delete),
    )
    return SimpleNamespace(cuda=cuda)


def test_memory_comes_from_torchs_allocator_and_goes_back_there(fake_torch):
    cupy = FakeCupy()
    use_lane_allocator(cupy, fake_torch)
    memory = cupy.allocator(512)
    assert memory.ptr == 1000
    fake_torch.cuda.caching_allocator_alloc.assert_called_once_with(512, 0, 0)
    memory.free(memory.ptr, 0)
    fake_torch.cuda.caching_allocator_delete.assert_called_once_with(1000)


def test_another_stream_is_refused_with_what_to_do(fake_torch):
    cupy = FakeCupy(stream=0x7F0000)
    use_lane_allocator(cupy, fake_torch)
    with pytest.raises(InputError, match="stream 0x7f0000, while torch's current stream is 0x0") as refused:
        cupy.allocator(512)
    assert "ExternalStream" in refused.value.hint
    fake_torch.cuda.caching_allocator_alloc.assert_not_called()


# What CuPy has in cupy/random/_generator.py, less the device.
STAND_IN = """
import random

class RandomState:
    def __init__(self, seed=None):
        self._random = random.Random(seed)

_random_states = {}

def get_random_state():
    state = _random_states.get(0, None)
    if state is None:
        state = _random_states.setdefault(0, RandomState())
    return state

def rand():
    return get_random_state()._random.random()
"""


def stand_in(folder):
    package = folder / "cupy" / "random"
    package.mkdir(parents=True)
    (folder / "cupy" / "__init__.py").write_text("from cupy import random\n")
    (package / "__init__.py").write_text("from cupy.random._generator import RandomState, rand\n")
    (package / "_generator.py").write_text(STAND_IN)


def test_each_trial_has_generators_of_its_own(tmp_path, monkeypatch):
    stand_in(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name == "cupy" or name.startswith("cupy.")]:
        monkeypatch.delitem(sys.modules, name)
    import cupy

    alone = []
    for seed in (1, 2):
        trial = CupyRandom(cupy, seed)
        trial.apply()
        alone.append([cupy.random.rand() for _ in range(4)])
        trial.capture()
    first, second = (CupyRandom(cupy, seed) for seed in (1, 2))
    mixed = [[], []]
    for _ in range(4):
        for trial, drawn in zip((first, second), mixed, strict=True):
            trial.apply()
            drawn.append(cupy.random.rand())
            trial.capture()
    for name in [name for name in sys.modules if name == "cupy" or name.startswith("cupy.")]:
        del sys.modules[name]
    assert mixed == alone
    assert alone[0] != alone[1]


def three_trials(train, folder, **options):
    return cotune.run(
        train,
        {"x": cotune.choice([0, 1, 2])},
        metric="loss",
        sampler="grid",
        devices=["cpu:0@4GiB"],
        lanes=1,
        seed=5,
        storage=folder,
        dashboard=False,
        **options,
    )


@pytest.mark.parametrize("is_first", [False, True])
def test_what_a_shared_object_draws_from_cupy_is_no_draw_of_the_trial_and_the_same_in_every_lane(tmp_path, is_first):
    stand_in(tmp_path)

    def build():
        import cupy

        return cupy.random.rand()

    def train(config):
        sys.path.insert(0, str(tmp_path))
        if not is_first:
            import cupy

            cupy.random.rand()
        data = cotune.shared("data", build)
        import cupy

        cotune.report({"loss": cupy.random.rand(), "data": data})

    apart, reused = (
        [(trial.metrics["loss"], trial.metrics["data"]) for trial in three_trials(train, tmp_path, reuse=reuse)]
        for reuse in (False, True)
    )
    assert reused == apart
    assert len({data for _, data in apart}) == 1
    assert len({loss for loss, _ in apart}) == 3


def test_trials_that_share_a_lane_draw_from_cupy_what_they_draw_alone(tmp_path):
    stand_in(tmp_path)

    def train(config):
        sys.path.insert(0, str(tmp_path))
        import cupy

        for step in range(40):
            cotune.report({"loss": cupy.random.rand()}, step=step)

    alone, shared = (
        [[report["loss"] for report in trial.history] for trial in three_trials(train, tmp_path, residents=residents)]
        for residents in (1, 3)
    )
    assert shared == alone
    assert len({drawn[0] for drawn in alone}) == 3


# ---- on a GPU


@pytest.fixture
def run(tmp_path):
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("cupy is not installed (the 'cuda' extra)")

    def start(trainable, trials=1, **options):
        space = {"x": cotune.uniform(0, 1)}
        how = {"metric": "loss", "gpus": 1, "storage": tmp_path, "dashboard": False, "seed": 0, **options}
        return cotune.run(trainable, space, trials=trials, **how)

    return start


@pytest.mark.gpu
def test_a_trial_that_uses_cupy_alone_is_measured(run):
    def train(config):
        import cupy

        kept = cupy.ones(256 * MIB, dtype=cupy.uint8)
        for step in range(4):
            scratch = cupy.ones(128 * MIB, dtype=cupy.uint8)
            cotune.report({"loss": float(kept[0] + scratch[0])}, step=step)
            del scratch
            cotune.report({"loss": 1.0}, step=step)

    (trial,) = run(train)
    assert trial.persistent + trial.ephemeral == pytest.approx(384 * MIB, rel=0.01)


@pytest.mark.gpu
def test_a_trial_that_uses_cupy_alone_is_capped(run):
    def train(config):
        import cupy

        size = 6000 if cotune.trial_id() == 3 else 200
        kept = cupy.ones(size * MIB, dtype=cupy.uint8)
        for step in range(4):
            cotune.report({"loss": float(kept[0])}, step=step)

    results = run(train, trials=6, lanes=2)
    assert [str(trial.state) for trial in results] == ["done"] * 6
    assert results[3].attempts > 1


@pytest.mark.gpu
def test_memory_that_cupy_frees_serves_torch_in_the_same_lane(run):
    def train(config):
        import cupy
        import torch

        before = torch.cuda.memory_reserved(0)
        block = cupy.zeros(512 * MIB, dtype=cupy.uint8)
        taken = torch.cuda.memory_reserved(0) - before
        del block
        again = torch.zeros(512 * MIB, dtype=torch.uint8, device="cuda")
        grown = torch.cuda.memory_reserved(0) - before - taken
        cotune.report({"loss": 0.0, "taken": taken, "grown": grown, "sum": int(again.sum())})

    metrics = run(train)[0].metrics
    assert metrics["taken"] >= 512 * MIB
    assert metrics["grown"] == 0
    assert metrics["sum"] == 0


@pytest.mark.gpu
def test_a_trial_on_another_cupy_stream_fails_with_what_to_do(run):
    def train(config):
        import cupy

        with cupy.cuda.Stream():
            cupy.ones(10)
        cotune.report({"loss": 0.0})

    (trial,) = run(train).errors
    assert "torch's current stream" in str(trial.error)


@pytest.mark.gpu
def test_trials_that_share_a_lane_draw_the_same_random_numbers_on_a_gpu_as_alone(run):
    def train(config):
        import cupy

        for step in range(40):
            cotune.report({"loss": float(cupy.random.standard_normal(1000).sum())}, step=step)

    drawn = [[[r["loss"] for r in t.history] for t in run(train, 3, lanes=1, residents=n)] for n in (1, 3)]
    assert drawn[0] == drawn[1]
