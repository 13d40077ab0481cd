"""What is moved to the host comes back bit for bit, into the same tensors."""

import gc

import pytest

from cotune.sharing.inside.parking import Parking

torch = pytest.importorskip("torch")


def model_and_optimizer(device="cpu", optimizer=torch.optim.Adam):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64, bias=False)).to(device)
    model[1].weight = model[0].weight
    return model, optimizer(model.parameters(), lr=0.01)


def step(model, optimizer, seed):
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    loss = model(torch.randn(8, 64, generator=generator).to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def losses(device, parking=None, steps=6):
    model, optimizer = model_and_optimizer(device)
    found = []
    for seed in range(steps):
        found.append(step(model, optimizer, seed))
        if parking is not None:
            parking.saw(optimizer)
            moved = parking.park()
            assert moved > 0
            assert model[0].weight.untyped_storage().nbytes() == 0
            parking.fetch()
    return found


def test_training_goes_on_bit_for_bit_after_parking():
    assert losses("cpu", Parking("cpu")) == losses("cpu")


def test_what_is_parked_is_in_host_memory_whatever_the_default_device_is():
    model, optimizer = model_and_optimizer()
    step(model, optimizer, 0)
    before = model[0].weight.detach().clone()
    parking = Parking("cpu")
    parking.saw(optimizer)
    with torch.device("meta"):
        assert parking.park() > 0
        parking.fetch()
    assert torch.equal(model[0].weight, before)


def test_parameters_gradients_and_state_are_moved_once_each():
    model, optimizer = model_and_optimizer()
    step(model, optimizer, 0)
    parking = Parking("cpu")
    parking.saw(optimizer)
    parameters = [model[0].weight, model[0].bias]
    # Weight, gradient and two moments; Adam's step counts are 4 bytes each.
    expected = sum(4 * 4 * parameter.numel() + 4 for parameter in parameters)
    assert parking.movable == expected == parking.park()
    assert parking.movable == 0
    parking.fetch()
    assert parking.movable == expected


def test_what_is_a_view_of_a_parameter_stays_one():
    model, optimizer = model_and_optimizer()
    step(model, optimizer, 0)
    row = model[0].weight.data[3]
    parking = Parking("cpu")
    parking.saw(optimizer)
    parking.park()
    parking.fetch()
    model[0].weight.data[3] += 1
    assert torch.equal(row, model[0].weight.data[3])


def test_an_optimizer_that_is_gone_is_not_moved():
    parking = Parking("cpu")
    model, optimizer = model_and_optimizer()
    step(model, optimizer, 0)
    parking.saw(optimizer)
    del model, optimizer
    gc.collect()
    assert parking.movable == 0
    assert parking.park() == 0


def test_an_optimizer_without_a_hash_is_moved_like_any_other():
    class Unhashable(torch.optim.SGD):
        __hash__ = None

    parking = Parking("cpu")
    model, optimizer = model_and_optimizer(optimizer=Unhashable)
    step(model, optimizer, 0)
    parking.saw(optimizer)
    assert parking.movable > 0
    del optimizer
    gc.collect()
    assert parking.movable == 0


def test_tensors_elsewhere_stay_where_they_are():
    model, optimizer = model_and_optimizer()
    step(model, optimizer, 0)
    parking = Parking("cuda")
    parking.saw(optimizer)
    assert parking.movable == 0


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD, torch.optim.LBFGS])
@pytest.mark.parametrize("is_frozen", [True, False])
def test_what_an_optimizer_has_but_does_not_train_stays_since_lane_mates_may_share_it(optimizer, is_frozen):
    backbone, head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64, bias=False)
    backbone.requires_grad_(not is_frozen)
    optimizer = optimizer([*backbone.parameters(), *head.parameters()])
    parking = Parking("cpu")

    def closure():
        with torch.no_grad():
            hidden = backbone(torch.ones(8, 64))
        loss = head(hidden).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    parking.saw(optimizer)
    optimizer.zero_grad()
    parking.park()
    assert head.weight.untyped_storage().nbytes() == 0
    assert all(parameter.untyped_storage().nbytes() for parameter in backbone.parameters())


class Wrapped(torch.Tensor):
    """Stands for others, without bytes of its own, as the states of quantising optimizers do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


def test_what_is_no_plain_tensor_or_not_of_torch_stays_where_it_is():
    foreign = torch.nn.Parameter(torch.frombuffer(bytearray(4 * 64), dtype=torch.float32))
    optimizer = torch.optim.SGD([foreign], lr=0.01)
    optimizer.state[foreign]["moment"] = Wrapped(torch.ones(64))
    parking = Parking("cpu")
    parking.saw(optimizer)
    assert parking.movable == parking.park() == 0
    assert foreign.sum() == 0


@pytest.mark.gpu
def test_parking_frees_the_memory_of_the_gpu_and_brings_it_back():
    before = losses("cuda")
    assert losses("cuda", Parking()) == before
    model, optimizer = model_and_optimizer("cuda")
    step(model, optimizer, 0)
    parking = Parking()
    parking.saw(optimizer)
    held = torch.cuda.memory_allocated()
    moved = parking.park()
    assert held - torch.cuda.memory_allocated() >= moved
    parking.fetch()
    assert torch.cuda.memory_allocated() >= held
