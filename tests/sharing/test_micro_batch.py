"""Gradient accumulation, one micro-batch at a time and under a grant: the same numbers, and nothing left behind."""

import copy
import subprocess
import sys
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fake_cuda import FakeCuda, FakeStream
from torch import nn
from torch.nn import functional as F

import cotune
from cotune import session
from cotune.demand import MIB
from cotune.errors import InputError
from cotune.sharing import concurrent

Pair = namedtuple("Pair", "x y")
# The absolute part is for gradients that are zero but for rounding: of a bias in front of a BatchNorm.
TIGHT = {"rtol": 1e-6, "atol": 1e-7}


class Loan:
    """A grant without a lane: tells what it is asked."""

    def __init__(self, concurrency):
        self.concurrency = concurrency
        self.need = 0
        self.left = 1 << 40
        self.is_open = self.is_stopping = False
        self.ran_out_with = []
        self.failures = []

    def room(self):
        return self.left

    def ran_out(self):
        self.ran_out_with.append(self.concurrency)
        self.concurrency = 1

    def fail(self, error):
        self.failures.append(error)


class Session:
    def __init__(self, loan):
        self.loan = loan
        self.counts = []

    def micro_batches(self, count):
        self.counts.append(count)
        return self.loan


def lends():
    """Has the test run as a trial with a grant."""

    def start(concurrency):
        loan = Loan(concurrency)
        session.bind(Session(loan))
        return loan

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield start
    session.bind(None)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(threads)
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks


@pytest.fixture
def cuda(monkeypatch):
    """Streams without a GPU."""
    fake = FakeCuda()
    home = fake.now
    monkeypatch.setattr(concurrent, "_cuda", fake)
    monkeypatch.setattr(concurrent.Streams, "_pool", [])
    yield fake
    assert fake.now is home


@pytest.fixture(params=["groups", "one by one"])
def granted(request, monkeypatch):
    """A grant, used as on a GPU and as on a CPU."""
    if request.param == "groups":
        request.getfixturevalue("cuda")
    else:
        monkeypatch.setattr(concurrent, "on_gpu", lambda: False)
    yield from lends()


@pytest.fixture
def grouped(cuda):
    """A grant, used as on a GPU."""
    yield from lends()


@pytest.fixture
def on_cuda():
    """A grant, on a GPU."""
    yield from lends()


@pytest.fixture
def ungrouped(monkeypatch):
    """A grant, used as on a CPU."""
    monkeypatch.setattr(concurrent, "on_gpu", lambda: False)
    yield from lends()


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.LazyLinear(5)
    )


def data(like=None):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(22, 1, 6, 6, generator=generator)
    y = torch.randint(0, 5, (22,), generator=generator)
    return (x, y) if like is None else (x.to(like), y.to(like.device))


def ready(seed=0):
    """A model whose lazy parts are made, so that copies of it are equal."""
    net = model(seed)
    net(data()[0])
    return net


def state(net):
    grads = [p.grad for p in net.parameters()]
    return [g.clone() if g is not None else None for g in grads], {k: v.clone() for k, v in net.named_buffers()}


def by_loop(net, size, **options):
    torch.manual_seed(7)
    logged = []
    for micro in cotune.micro_batches(data(next(net.parameters())), size, **options):
        x, y = micro.data
        loss = F.cross_entropy(net(x), y)
        logged.append(loss.item())
        micro.backward(loss)
    return logged


def by_call(net, size):
    torch.manual_seed(7)
    batch = data(next(net.parameters()))
    return float(cotune.micro_batches(batch, size).backward(lambda x, y: F.cross_entropy(net(x), y)))


def assert_same(one, other):
    for a, b in zip(one[0], other[0], strict=True):
        torch.testing.assert_close(a, b, **TIGHT)
    for name in one[1]:
        assert torch.equal(one[1][name], other[1][name]), name


# ---- the form of a batch


def test_every_nest_of_tensors_keeps_its_form():
    x, y = torch.arange(5), torch.arange(10).reshape(5, 2)
    batch = OrderedDict(a=(x, [y, x]), b=Pair(x, y), scale=2.0, name="train", mask=None)
    parts = [micro.data for micro in cotune.micro_batches(batch, 2)]
    assert [len(part["a"][0]) for part in parts] == [2, 2, 1]
    assert type(parts[0]) is OrderedDict
    assert type(parts[0]["b"]) is Pair
    assert type(parts[0]["a"][1]) is list
    assert (parts[0]["scale"], parts[0]["name"], parts[0]["mask"]) == (2.0, "train", None)
    assert torch.equal(torch.cat([part["b"].y for part in parts]), y)


def test_numbers_of_other_libraries_are_passed_on_whole():
    import numpy as np

    given = {"n": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True), "c": 1j, "a": np.array(2.0)}
    part = next(iter(cotune.micro_batches({"x": torch.ones(4)} | given, 2))).data
    assert all(part[name] is value for name, value in given.items())


class Named(dict):
    """Its constructor takes something else than a dict first."""

    def __init__(self, name="", **items):
        super().__init__(items)
        self.name = name


class Items(dict):
    """Has attributes, and is made by keywords only."""

    def __init__(self, **items):
        super().__init__(items)
        self.__dict__ = self


class Default(dict):
    """Its constructor takes no items."""

    def __init__(self, scale=None):
        super().__init__(x=torch.ones(4))


class Views(dict):
    """Gives another object whenever it is asked."""

    def __getitem__(self, key):
        return super().__getitem__(key)[:]


class Swapped(Pair):
    def __new__(cls, y, *, x):
        return super().__new__(cls, x, y)


@pytest.mark.parametrize(
    ("batch", "kind"),
    [
        (Named(x=torch.ones(4)), Named),
        (Items(x=torch.ones(4)), Items),
        (defaultdict(list, x=torch.ones(4)), defaultdict),
        (Default(), dict),
        (Views(x=torch.ones(4)), Views),
        (Swapped(2, x=torch.ones(4)), Swapped),
    ],
)
def test_a_container_keeps_what_it_holds_whatever_its_constructor_takes(batch, kind):
    part = next(iter(cotune.micro_batches(batch, 3))).data
    assert type(part) is kind
    assert len(part.x if kind in (Items, Swapped) else part["x"]) == 3


def test_a_micro_batch_says_what_it_is():
    micros = list(cotune.micro_batches(torch.arange(5), 2))
    assert [(m.index, m.size, m.is_last) for m in micros] == [(0, 2, False), (1, 2, False), (2, 1, True)]
    assert sum(m.weight for m in micros) == pytest.approx(1.0)
    assert len(cotune.micro_batches(torch.arange(5), 99)) == 1


@pytest.mark.parametrize(
    ("batch", "size", "words"),
    [
        ((1, "a"), 2, "holds no tensor"),
        ([], 2, "holds no tensor"),
        ((torch.ones(4), torch.ones(3)), 2, r"batch\[0\] has 4 samples and batch\[1\] has 3"),
        (torch.ones(4), 0, "size=0"),
        (torch.ones(4), -1, "size=-1"),
        (torch.ones(4), True, "size=True"),
        (torch.ones(4), 2.0, "size=2.0"),
        (torch.ones(4), "2", "size='2'"),
        ({"x": torch.ones(4), "t": torch.tensor(1.0)}, 2, r"batch\['t'\] is a tensor without dimensions"),
        (torch.ones(0, 3), 2, "no samples"),
        ({"x": torch.ones(2), "texts": ["a", "b"]}, 2, r"batch\['texts'\].* holds no tensor"),
        ({"x": torch.ones(2), "o": object()}, 2, r"batch\['o'\] is a object"),
        (torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2)]), 2, "batch is a PackedSequence"),
        ([torch.eye(4), torch.eye(4).to_sparse()], 2, r"batch\[1\] is a tensor of layout torch.sparse_coo"),
        (
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            2,
            "batch is a nested tensor",
        ),
    ],
)
def test_a_batch_that_cannot_be_split_is_refused_with_a_hint(batch, size, words):
    with pytest.raises(InputError, match=words) as caught:
        cotune.micro_batches(batch, size)
    assert caught.value.hint


def test_losses_of_half_precision_are_not_lost_in_their_sum():
    w = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    batch = cotune.micro_batches(torch.ones(1024, dtype=torch.bfloat16), 1, reduction="sum")
    loss = batch.backward(lambda x: (x + w).sum())
    assert (loss.item(), loss.dtype) == (1024.0, torch.bfloat16)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(InputError, match="reduction='max'"):
        cotune.micro_batches(torch.ones(2), 1, reduction="max")


@pytest.mark.parametrize("loss", [None, 1.0, torch.ones(3)])
def test_a_loss_that_is_no_number_is_refused(loss):
    with pytest.raises(InputError, match="the loss of micro-batch 0"):
        cotune.micro_batches(torch.ones(3), 3).backward(lambda x: loss)
    with pytest.raises(InputError, match="without a loss"):
        next(iter(cotune.micro_batches(torch.ones(3), 3))).backward()


@pytest.mark.parametrize("form", ["loop", "call"])
def test_micro_batches_that_hang_on_one_graph_are_told_of_it(granted, form):
    granted(2)
    encoder, head = nn.Linear(3, 3), nn.Linear(3, 1)
    micros = cotune.micro_batches(encoder(torch.ones(6, 3)).tanh(), 2)

    def train():
        if form == "call":
            micros.backward(lambda x: head(x).mean())
        else:
            for micro in micros:
                micro.backward(head(micro.data).mean())

    with pytest.raises(InputError, match="several hang on one") as caught:
        train()
    assert "detach()" in caught.value.hint


def test_importing_it_loads_no_torch():
    code = "import sys, cotune; cotune.micro_batches; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(cotune.__file__).parents[1], timeout=60)


# ---- the same numbers


@pytest.mark.parametrize("size", [5, 8, 22, 100])
def test_gradients_are_those_of_the_whole_batch(size):
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.Tanh(), nn.Linear(9, 5)).double()
    x, y = data()
    x = x.double()
    F.cross_entropy(net(x), y).backward()
    whole = [p.grad.clone() for p in net.parameters()]
    for reduction in ("mean", "sum"):
        net.zero_grad()
        for micro in cotune.micro_batches((x, y), size, reduction=reduction):
            loss = F.cross_entropy(net(micro.data[0]), micro.data[1], reduction=reduction)
            micro.backward(loss / len(x) if reduction == "sum" else loss)
        for grad, param in zip(whole, net.parameters(), strict=True):
            torch.testing.assert_close(param.grad, grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("concurrency", [2, 3, 8])
@pytest.mark.parametrize("form", [by_loop, by_call])
def test_a_grant_changes_no_number(granted, concurrency, form):
    """BatchNorm, dropout, a smaller last micro-batch, gradients that are there already."""
    plain = ready()
    lent = copy.deepcopy(plain)
    for net in (plain, lent):
        for p in net.parameters():
            p.grad = torch.full_like(p, 0.5)
    expected = form(plain, 4)
    after = torch.get_rng_state()
    loan = granted(concurrency)
    assert form(lent, 4) == pytest.approx(expected, rel=1e-6)
    assert torch.equal(torch.get_rng_state(), after)
    assert_same(state(lent), state(plain))
    assert session.current().counts == [6]
    assert not loan.ran_out_with
    assert not loan.is_open


def test_both_forms_and_several_losses_agree(granted):
    def losses(net, x, y):
        out = net(x)
        return F.cross_entropy(out, y), 0.1 * out.square().mean()

    nets = [ready() for _ in range(3)]
    granted(3)
    for micro in cotune.micro_batches(data(), 4):
        torch.manual_seed(micro.index)
        micro.backward(*losses(nets[0], *micro.data))
    calls = iter(range(6))

    def seeded(x, y):
        torch.manual_seed(next(calls))
        return losses(nets[1], x, y)

    total = cotune.micro_batches(data(), 4).backward(seeded)
    session.bind(None)
    expected = 0.0
    for micro in cotune.micro_batches(data(), 4):
        torch.manual_seed(micro.index)
        one, two = losses(nets[2], *micro.data)
        expected += (one + two).item() * micro.weight
        micro.backward(one + two)
    assert float(total) == pytest.approx(expected, rel=1e-6)
    assert_same(state(nets[0]), state(nets[2]))
    assert_same(state(nets[1]), state(nets[2]))


def test_a_dict_goes_to_the_loss_as_one_argument():
    net = nn.Linear(3, 1)
    batch = {"x": torch.ones(4, 3), "y": torch.zeros(4, 1)}
    loss = cotune.micro_batches(batch, 3).backward(lambda part: F.mse_loss(net(part["x"]), part["y"]))
    assert loss.item() == pytest.approx(F.mse_loss(net(batch["x"]), batch["y"]).item(), rel=1e-6)
    assert not loss.requires_grad


def test_a_scaled_loss_clipping_and_an_optimizer_step_are_the_same_under_a_grant(granted):
    def step(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        torch.manual_seed(3)
        for micro in cotune.micro_batches(data(), 4):
            x, y = micro.data
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(x), y)
            micro.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        return [p.detach().clone() for p in net.parameters()]

    plain = ready()
    lent = copy.deepcopy(plain)
    expected = step(plain)
    granted(3)
    for a, b in zip(step(lent), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("to_none", [True, False])
def test_a_scaler_that_steps_within_the_loop_finds_all_gradients(granted, to_none):
    def train(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        for micro in cotune.micro_batches(torch.arange(32.0).reshape(8, 4) / 32, 2):
            micro.backward(scaler.scale(net(micro.data).square().mean()))
            if micro.index % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=to_none)
        return net.weight.detach()

    torch.manual_seed(0)
    plain = nn.Linear(4, 1)
    lent = copy.deepcopy(plain)
    expected = train(plain)
    granted(4)
    torch.testing.assert_close(train(lent), expected)


def test_idle_threads_are_used_within_the_loop_only(ungrouped):
    loan = ungrouped(3)
    before = torch.get_num_threads()
    seen = [torch.get_num_threads() for _ in cotune.micro_batches(torch.ones(4), 1)]
    assert seen == [3 * before] * 4
    loan.left = 0  # a stack or two can be had, a thousand not
    loan.concurrency = 1000
    next(iter(cotune.micro_batches(torch.ones(4), 1)))
    assert torch.get_num_threads() == before
    for _ in cotune.micro_batches(torch.ones(4), 1):
        assert torch.get_num_threads() < 100


@pytest.mark.parametrize(("said", "threads"), [(None, 33), ("512M", 1)])
def test_as_many_threads_are_used_as_stacks_can_be_had_for(said, threads, ungrouped, monkeypatch):
    monkeypatch.setattr(concurrent, "default_size", lambda: 2 * MIB)
    monkeypatch.delenv("OMP_STACKSIZE", raising=False)
    if said:
        # Of a size that is not known here.
        monkeypatch.setenv("OMP_STACKSIZE", said)
    loan = ungrouped(1000)
    # Those of 64 MiB can be had in any case.
    loan.left = 0
    for _ in cotune.micro_batches(torch.ones(4), 1):
        assert torch.get_num_threads() == threads


def test_hooks_behind_accumulation_are_called_once_a_group(grouped):
    net = nn.Linear(2, 1)
    calls = []
    net.weight.register_post_accumulate_grad_hook(calls.append)
    grouped(2)
    cotune.micro_batches(torch.ones(8, 2), 2).backward(lambda x: net(x).mean())
    assert len(calls) == 2


def test_what_the_room_does_not_hold_is_not_begun(grouped):
    loan = grouped(4)
    loan.need, loan.left = 10, 9
    net, alive = nn.Linear(2, 1), []
    for micro in cotune.micro_batches(torch.ones(8, 2), 2):
        alive.append(net.weight.grad is not None)
        micro.backward(net(micro.data).mean())
    assert alive == [False, True, True, True]
    assert not loan.ran_out_with


def test_what_the_room_does_not_hold_is_not_begun_where_gradients_are_dropped_first(grouped):
    loan = grouped(4)
    loan.need, loan.left = 10, 9
    net, alive = nn.Linear(2, 1), []
    for micro in cotune.micro_batches(torch.ones(4, 2), 2):
        alive.append(net.weight.grad is not None)
        if micro.index == 0:
            net.zero_grad()
        micro.backward(net(micro.data).mean())
    assert alive == [False, True]


# ---- loops that end early


def partial(net, stop_after, leave):
    torch.manual_seed(7)
    for micro in cotune.micro_batches(data(), 4):
        x, y = micro.data
        micro.backward(F.cross_entropy(net(x), y))
        if micro.index == stop_after:
            if leave is None:
                break
            raise leave


@pytest.mark.parametrize("stop_after", [0, 1, 4])
@pytest.mark.parametrize("leave", [None, ValueError("mine"), cotune.TrialStopped()])
def test_a_loop_that_is_left_has_counted_what_it_was_given(granted, stop_after, leave):
    plain = ready()
    lent = copy.deepcopy(plain)
    for net, concurrency in ((plain, None), (lent, 3)):
        loan = granted(concurrency) if concurrency else None
        if leave is None:
            partial(net, stop_after, leave)
        else:
            with pytest.raises(type(leave)):
                partial(net, stop_after, leave)
    assert_same(state(lent), state(plain))
    assert not loan.failures
    assert not loan.is_open


def test_a_trial_that_is_to_stop_does_not_compute_what_nobody_wants(grouped):
    loan, net = grouped(8), ready()
    loan.is_stopping = True
    with pytest.raises(cotune.TrialStopped):
        partial(net, 3, cotune.TrialStopped())
    assert all(p.grad is None for p in net.parameters())


def test_memory_that_runs_out_when_a_loop_is_left_fails_the_trial_later(grouped):
    loan, net, fuse = grouped(8), nn.Linear(2, 1), Fuse(blows=1)
    for micro in cotune.micro_batches(torch.ones(8, 2), 2):
        micro.backward(fuse(net(micro.data)).mean())
        if micro.index == 1:
            break
    assert "allocate memory" in str(loan.failures[0])


def test_a_loss_that_raises_ends_the_call_and_what_came_before_counts(granted):
    plain = ready()
    lent = copy.deepcopy(plain)
    for net, concurrency in ((plain, None), (lent, 3)):
        loan = granted(concurrency) if concurrency else None
        calls = []

        def loss(x, y, net=net, calls=calls):
            calls.append(1)
            if len(calls) == 2:
                raise KeyError("mine")
            return F.cross_entropy(net(x), y)

        torch.manual_seed(7)
        with pytest.raises(KeyError):
            cotune.micro_batches(data(), 4).backward(loss)
    assert any(p.grad is not None for p in plain.parameters())
    assert_same(state(lent), state(plain))
    assert not loan.ran_out_with
    assert not loan.is_open


# ---- loops as people write them


def in_the_loop(net, optimizer):
    for micro in cotune.micro_batches(data(), 4):
        x, y = micro.data
        micro.backward(F.cross_entropy(net(x), y))
        if micro.is_last:
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()


def kept(net, optimizer, keep=[]):  # noqa: B006 - keeps the iterator
    pairs = zip(range(len(cotune.micro_batches(data(), 4))), cotune.micro_batches(data(), 4), strict=False)
    keep.append(pairs)
    for _, micro in pairs:
        x, y = micro.data
        micro.backward(F.cross_entropy(net(x), y))
    optimizer.step()


def two_at_once(net, optimizer):
    for one, other in zip(cotune.micro_batches(data(), 4), cotune.micro_batches(data(), 4), strict=True):
        for micro in (one, other):
            x, y = micro.data
            micro.backward(F.cross_entropy(net(x), y))
    optimizer.step()


def nested(net, optimizer):
    for outer in cotune.micro_batches(data(), 8):
        cotune.micro_batches(outer.data, 3).backward(
            lambda x, y, outer=outer: outer.weight * F.cross_entropy(net(x), y)
        )
    optimizer.step()


def changes_its_data(net, optimizer):
    for micro in cotune.micro_batches(data(), 4):
        x, y = micro.data
        x.mul_(2.0)
        micro.backward(F.cross_entropy(net(x), y))
    optimizer.step()


def under_autocast(net, optimizer):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for micro in cotune.micro_batches(data(), 4):
            x, y = micro.data
            micro.backward(F.cross_entropy(net(x), y))
    optimizer.step()


def logs_in_place(net, optimizer):
    for micro in cotune.micro_batches(data(), 4, reduction="sum"):
        x, y = micro.data
        loss = F.cross_entropy(net(x), y, reduction="sum") / 22
        micro.backward(loss)
        loss *= 22
    optimizer.step()


def steps_within(net, optimizer):
    for micro in cotune.micro_batches(data(), 4):
        x, y = micro.data
        micro.backward(F.cross_entropy(net(x), y))
        if micro.index % 2:
            optimizer.step()
            optimizer.zero_grad()


def skips_a_batch(net, optimizer, drop=None):
    for is_bad in (False, True, False):
        for micro in cotune.micro_batches(data(), 4):
            if is_bad and micro.index == 2:
                (drop or optimizer.zero_grad)()
                break
            x, y = micro.data
            micro.backward(F.cross_entropy(net(x), y))
        else:
            optimizer.step()
            optimizer.zero_grad()


def skips_a_batch_by_the_model(net, optimizer):
    skips_a_batch(net, optimizer, net.zero_grad)


def keeps_the_last_gradients(net, optimizer):
    for micro in cotune.micro_batches(data(), 4):
        optimizer.zero_grad(set_to_none=False)
        x, y = micro.data
        micro.backward(F.cross_entropy(net(x), y))
    optimizer.step()


def steps_by_closures(net, optimizer):
    for micro in cotune.micro_batches(data(), 4):

        def closure(micro=micro):
            optimizer.zero_grad()
            x, y = micro.data
            loss = F.cross_entropy(net(x), y)
            micro.backward(loss)
            return loss

        optimizer.step(closure)
        optimizer.step(closure=closure)


@pytest.mark.parametrize(
    "loop",
    [
        in_the_loop,
        kept,
        two_at_once,
        nested,
        changes_its_data,
        under_autocast,
        logs_in_place,
        steps_within,
        skips_a_batch,
        skips_a_batch_by_the_model,
        keeps_the_last_gradients,
        steps_by_closures,
    ],
)
def test_a_loop_gives_the_same_weights_and_leaves_nothing_under_a_grant(granted, loop):
    plain = ready()
    lent = copy.deepcopy(plain)
    for net, concurrency in ((plain, None), (lent, 3)):
        loan = granted(concurrency) if concurrency else None
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for _ in range(2):
            torch.manual_seed(7)
            loop(net, optimizer)
            assert torch.get_num_threads() == 1
    torch.testing.assert_close(lent.state_dict(), plain.state_dict(), rtol=1e-5, atol=1e-6)
    assert not loan.failures
    assert not loan.is_open


class Scaled(nn.Module):
    """Divides by a running scale, which it changes in place: the backward needs it as it was."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        self.scale.mul_(0.9).add_(0.1 * x.detach().abs().mean())
        return self.linear(x) / self.scale


def test_forwards_that_change_what_the_backward_of_others_needs_run_one_at_a_time(grouped):
    plain = Scaled()
    lent, looped = copy.deepcopy(plain), copy.deepcopy(plain)
    batch = torch.rand(8, 2)
    cotune.micro_batches(batch, 2).backward(lambda x: plain(x).mean())
    loan = grouped(4)
    cotune.micro_batches(batch, 2).backward(lambda x: lent(x).mean())
    assert loan.ran_out_with == [4]
    torch.testing.assert_close(lent.linear.weight.grad, plain.linear.weight.grad, **TIGHT)
    torch.testing.assert_close(lent.scale, plain.scale, **TIGHT)
    grouped(4)

    def loop():
        for micro in cotune.micro_batches(batch, 2):
            micro.backward(looped(micro.data).mean())

    # As when memory runs out in a loop: the trial starts again, without a grant.
    with pytest.raises(MemoryError, match="modified by an inplace operation"):
        loop()


@pytest.mark.parametrize("left", [5, 1 << 40])
def test_a_loop_that_changes_what_a_backward_needs_goes_on_without_a_grant(grouped, left):
    loan = grouped(4)
    loan.need, loan.left = 10, left
    net = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())

    def loop():
        for micro in cotune.micro_batches(torch.ones(8, 2), 2):
            out = net(micro.data)
            micro.backward(out.mean())
            out.detach().round_()

    with pytest.raises(MemoryError, match="modified by an inplace operation"):
        loop()


class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.variable = "mine"
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


def test_what_a_function_of_the_user_keeps_is_not_taken_for_a_parameter(grouped):
    grouped(2)
    weight = torch.ones(1, requires_grad=True)
    cotune.micro_batches(torch.ones(4), 2).backward(lambda x: Squares.apply(weight * x).mean())
    assert weight.grad.item() == 2.0


@pytest.mark.parametrize("form", ["loop", "call"])
def test_on_a_cpu_backwards_are_not_put_off(ungrouped, form):
    plain, lent, calls = Scaled(), Scaled(), []
    lent.load_state_dict(plain.state_dict())
    lent.linear.weight.register_post_accumulate_grad_hook(calls.append)
    batch = torch.rand(8, 2)
    cotune.micro_batches(batch, 2).backward(lambda x: plain(x).mean())
    loan = ungrouped(4)
    if form == "call":
        cotune.micro_batches(batch, 2).backward(lambda x: lent(x).mean())
    else:
        for micro in cotune.micro_batches(batch, 2):
            assert len(calls) == micro.index
            micro.backward(lent(micro.data).mean())
    assert len(calls) == 4
    assert not loan.ran_out_with
    torch.testing.assert_close(lent.linear.weight.grad, plain.linear.weight.grad, **TIGHT)
    torch.testing.assert_close(lent.scale, plain.scale, **TIGHT)


def test_backward_after_the_loop_is_done_at_once(granted):
    granted(3)
    net = nn.Linear(2, 1)
    micros = list(cotune.micro_batches(torch.ones(4, 2), 1))
    micros[0].backward(net(micros[0].data).mean())
    assert net.weight.grad is not None


# ---- memory that runs out


def refuse():
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 12 bytes")


class Fuse:
    """The identity, whose backward is refused memory so many times."""

    def __init__(self, blows):
        fuse = self
        self.blows = blows

        class Identity(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                if fuse.blows:
                    fuse.blows -= 1
                    refuse()
                return grad

        self._function = Identity

    def __call__(self, x):
        return self._function.apply(x)


class TwoParts(nn.Module):
    """A model with a fuse in its middle for the first micro-batch of a group."""

    def __init__(self, fuse):
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Sequential(nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Dropout(0.2))
        self.two = nn.Linear(8, 5)
        self.fuse = fuse
        self.forwards = 0

    def forward(self, x):
        self.forwards += 1
        hidden = self.one(x.flatten(1))
        return self.two(self.fuse(hidden) if self.forwards == 1 else hidden)


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("where", ["first forward", "third forward", "backward"])
def test_memory_that_runs_out_under_a_grant_changes_no_number(grouped, where, filled):
    nets = [TwoParts(Fuse(0)), TwoParts(Fuse(1 if where == "backward" else 0))]
    for net in nets:
        for p in net.parameters():
            p.grad = torch.full_like(p, 0.25) if filled else None
    torch.manual_seed(7)
    expected = cotune.micro_batches(data(), 4).backward(lambda x, y: F.cross_entropy(nets[0](x), y))
    after = torch.get_rng_state()
    loan = grouped(4)
    calls = []

    def loss(x, y):
        calls.append(1)
        out = nets[1](x)
        if where.startswith("first" if len(calls) == 1 else "third" if len(calls) == 3 else "never"):
            refuse()
        return F.cross_entropy(out, y)

    torch.manual_seed(7)
    total = cotune.micro_batches(data(), 4).backward(loss)
    assert loan.ran_out_with == [4]
    assert float(total) == pytest.approx(float(expected), rel=1e-6)
    assert torch.equal(torch.get_rng_state(), after)
    assert_same(state(nets[1]), state(nets[0]))


def test_a_backward_that_fails_has_finished_some_parameters_and_not_begun_others(granted):
    """What makes the repeat exact."""
    from cotune.sharing.repeats import Leaves

    net = TwoParts(Fuse(1))
    x, y = data()
    losses = [F.cross_entropy(net(part), z) for part, z in zip(x.split(8), y.split(8), strict=True)]
    leaves = Leaves(losses)
    with pytest.raises(RuntimeError, match="allocate memory"):
        torch.autograd.backward(losses)
    finished = leaves.finished()
    assert {id(p) for p in finished} == {id(p) for p in net.two.parameters()}
    assert all(p.grad is None for p in net.one.parameters())


class OddBuffers(nn.Module):
    """Has buffers that cannot be copied into, that cannot be compared, and that are yet to be made."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LazyBatchNorm1d()
        self.register_buffer("ones", torch.ones(1).expand(2))
        self.register_buffer("mean", None)
        self.register_buffer("adjacent", torch.eye(2).to_sparse())

    def forward(self, x):
        self.adjacent.mul_(0.5)
        here = x.detach().mean()
        self.mean = here if self.mean is None else 0.5 * (self.mean + here)
        return (self.norm(x) * self.ones - self.mean).square().mean()


def test_buffers_of_any_kind_are_put_back_before_a_repeat(grouped):
    nets = [OddBuffers(), OddBuffers()]
    batch = torch.arange(16.0).view(8, 2)
    cotune.micro_batches(batch, 2).backward(nets[0])
    loan, calls = grouped(4), []

    def loss(x):
        calls.append(1)
        return nets[1](x) if len(calls) != 3 else refuse()

    cotune.micro_batches(batch, 2).backward(loss)
    assert loan.ran_out_with == [4]
    torch.testing.assert_close(nets[1].mean, nets[0].mean)
    torch.testing.assert_close(nets[1].adjacent, nets[0].adjacent)
    assert_same((state(nets[1])[0], {}), (state(nets[0])[0], {}))


@pytest.mark.parametrize("lends", [nn.Module.named_buffers, nn.Module.named_parameters])
def test_a_repeat_puts_back_a_modules_own_buffers_and_leaves_those_lent_to_it(grouped, lends):
    net, norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
    own = dict(norm.named_buffers())
    lent = {name: tensor.detach().clone().requires_grad_(tensor.requires_grad) for name, tensor in lends(norm)}
    batch, calls = torch.arange(16.0).view(8, 2), []

    def loss(x):
        calls.append(1)
        hidden = torch.func.functional_call(norm, lent, (net(x),))
        return hidden.square().mean() if len(calls) != 3 else refuse()

    loan = grouped(4)
    cotune.micro_batches(batch, 2).backward(loss)
    assert loan.ran_out_with == [4]
    assert all(buffer is own[name] for name, buffer in norm.named_buffers())
    # What was lent counts the calls of the repeat, too; only the module's own are put back before it.
    assert int(norm.num_batches_tracked) == (0 if "num_batches_tracked" in lent else 4)


def test_memory_that_runs_out_one_at_a_time_is_raised(grouped):
    grouped(2)
    with pytest.raises(RuntimeError, match="allocate memory"):
        cotune.micro_batches(torch.ones(4, 2), 1).backward(lambda x: refuse())


def test_other_generators_are_put_back_too(grouped):
    import random

    import numpy as np

    def draws(loan):
        random.seed(1)
        np.random.seed(1)
        net, calls, drawn = nn.Linear(2, 1), [], []

        def loss(x):
            drawn.append((random.random(), float(np.random.rand())))
            calls.append(1)
            if loan and len(calls) == 2:
                refuse()
            return net(x).mean()

        cotune.micro_batches(torch.ones(6, 2), 2).backward(loss)
        return drawn[-3:]

    expected = draws(None)
    assert draws(grouped(3)) == expected


# ---- streams


class Traced(nn.Module):
    """Notes which calls of it, and what on the trial's own stream, came before each call."""

    def __init__(self, cuda, has_buffer):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        if has_buffer:
            self.register_buffer("calls", torch.zeros(()))
        else:
            # As an embedding, whose forward then scales rows of its weight.
            self.max_norm = 1.0
        self.cuda_before = []
        self._fake = cuda

    def forward(self, x):
        self.cuda_before.append(set(self._fake.now.done))
        self._fake.now.done.add(f"call {len(self.cuda_before) - 1}")
        return (self.weight * x).mean()


def test_after_a_backward_that_ran_out_of_memory_all_is_ordered_after_the_gradients_that_it_made(grouped, cuda):
    home, fails = cuda.now, [True]
    grouped(2)
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def accumulated(_):
        if fails[0]:
            # autograd makes the caller's stream wait for it at the end of a backward that succeeds.
            concurrent.Streams._pool[0].done.add("gradient of b")

    def refuse(_):
        if fails[0]:
            fails[0] = False
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    b.register_post_accumulate_grad_hook(accumulated)
    a.register_hook(refuse)
    cotune.micro_batches(torch.ones(4, 3), 2).backward(lambda x: ((x * a).sum(1) * b.sum()).mean())
    assert not fails[0]
    assert "gradient of b" in home.done


@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("has_buffer", [True, False])
def test_streams_wait_for_what_they_need_and_for_no_more(grouped, cuda, loop, has_buffer):
    home = cuda.now
    grouped(2)
    net, free = Traced(cuda, has_buffer), []
    home.done.add("optimizer step")
    used = []

    def forward(x):
        used.append(cuda.now)
        free.append(set(cuda.now.done))
        cuda.now.done.add(f"begun {len(free) - 1}")
        return net(x)

    after = []
    if loop:
        for micro in cotune.micro_batches(torch.ones(4), 1):
            micro.backward(forward(micro.data))
            after.append((cuda.now, set(cuda.now.done)))
    else:
        cotune.micro_batches(torch.ones(4), 1).backward(forward)
    assert cuda.now is home
    assert used[0] is used[2] is not home
    assert used[1] is used[3] is not used[0]
    assert home not in used
    # Within a group neither forward waits for the other, but for its turn at a module with buffers.
    assert free[0] == {"optimizer step"}
    assert free[1] == {"optimizer step"}
    assert net.cuda_before[1] >= {"call 0", "optimizer step"}
    # The next group comes after the backward of this one.
    assert free[2] >= {"call 0", "call 1"}
    assert home.done >= {f"call {n}" for n in range(4)}
    for n, (stream, done) in enumerate(after):
        assert stream is home
        assert f"call {n}" in done


def test_a_stream_of_the_users_within_a_loop_changes_nothing_behind_it(grouped, cuda):
    home, side = cuda.now, FakeStream()
    grouped(2)
    net = nn.Linear(2, 1)
    for micro in cotune.micro_batches(torch.ones(8, 2), 2):
        before = cuda.now
        cuda.set_stream(side)
        side.done.add(f"forward {micro.index}")
        micro.backward(net(micro.data).mean())
        cuda.set_stream(before)
        cuda.now.wait_stream(side)
    assert cuda.now is home
    assert home.done >= {f"forward {n}" for n in range(4)}


@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize(("device", "is_plain"), [("cuda:0", True), ("cpu", False)])
def test_where_cupy_is_loaded_all_stays_on_the_stream_that_it_shares_with_torch(
    grouped, cuda, monkeypatch, loop, device, is_plain
):
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    grouped(2)
    running = session.current()
    running.device = lambda: device
    home, used = cuda.now, []
    weight = nn.Parameter(torch.ones(()))

    def forward(x):
        used.append(cuda.now)
        return (weight * x).mean()

    if loop:
        for micro in cotune.micro_batches(torch.ones(4), 1):
            micro.backward(forward(micro.data))
    else:
        cotune.micro_batches(torch.ones(4), 1).backward(forward)
    assert weight.grad == 1.0
    # Nor does the packer lend anything to a trial that seems to split no batch.
    assert (set(used) == {home}, running.counts) == (is_plain, [] if is_plain else [4])


@pytest.mark.gpu
@pytest.mark.parametrize("concurrency", [2, 4])
@pytest.mark.parametrize("form", [by_loop, by_call])
def test_streams_change_no_number(on_cuda, concurrency, form):
    torch.backends.cudnn.deterministic = True
    plain = ready().cuda().double()
    lent = copy.deepcopy(plain)
    home = torch.cuda.current_stream()
    expected = form(plain, 4)
    on_cuda(concurrency)
    for _ in range(20):
        lent.zero_grad()
        lent.load_state_dict(ready().double().state_dict())
        assert form(lent, 4) == pytest.approx(expected, rel=1e-6)
        torch.cuda.synchronize()
        for a, b in zip(state(lent)[0], state(plain)[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
        for name, buffer in lent.named_buffers():
            torch.testing.assert_close(buffer, dict(plain.named_buffers())[name], rtol=1e-9, atol=1e-12)
    assert torch.cuda.current_stream() == home


@pytest.mark.gpu
def test_losses_added_up_behind_backward_are_right_on_streams(on_cuda):
    on_cuda(4)
    net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(20)], nn.Linear(512, 1)).cuda()
    x = torch.randn(64, 512, device="cuda")
    total, alone = torch.zeros((), device="cuda"), []
    for micro in cotune.micro_batches(x, 4):
        loss = net(micro.data).square().mean()
        alone.append(loss)
        micro.backward(loss)
        total += loss.detach()
    assert float(total) == pytest.approx(sum(loss.item() for loss in alone), rel=1e-5)


@pytest.mark.gpu
def test_a_scaler_that_steps_within_a_loop_on_streams_finds_all_gradients(on_cuda):
    def train(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
        for micro in cotune.micro_batches(x, 16):
            micro.backward(scaler.scale(net(micro.data).square().mean()))
            if micro.index % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    torch.manual_seed(0)
    x = torch.randn(128, 512, device="cuda")
    plain = nn.Sequential(*[nn.Linear(512, 512) for _ in range(10)], nn.Linear(512, 1)).cuda()
    lent = copy.deepcopy(plain)
    expected = train(plain)
    on_cuda(4)
    torch.testing.assert_close(train(lent), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.gpu
def test_memory_that_runs_out_on_streams_changes_no_number(on_cuda):
    """Four times 256 MiB of activations do not fit 700 MiB, one does."""
    net = nn.Sequential(nn.Linear(1024, 1024), nn.Dropout(0.1), nn.Linear(1024, 1)).cuda()
    x = torch.randn(4 * 32768, 1024, device="cuda")

    def step():
        net.zero_grad()
        torch.manual_seed(3)
        loss = cotune.micro_batches(x, 32768).backward(lambda part: net(part).square().mean())
        return float(loss), [p.grad.clone() for p in net.parameters()]

    expected, grads = step()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    room = torch.cuda.max_memory_allocated() * 1.25
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
    try:
        loan = on_cuda(4)
        total, lent = step()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert loan.ran_out_with == [4]
    assert total == pytest.approx(expected, rel=1e-4)
    for a, b in zip(lent, grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
