"""What torch leaves out of a pickle: hooks and gradients, shared memory, most of an optimizer."""

import pickle
import types

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from cotune.script.pickling import dumps
from cotune.sharing.inside.script_classes import ScriptClasses


class Own(torch.Tensor):
    """Says by itself how it is pickled."""

    def __reduce_ex__(self, protocol):
        return "NAMED" if self is NAMED else (empty, ())


def empty():
    return torch.ones(0)


NAMED = torch.ones(2).as_subclass(Own)


def travelled(value):
    return pickle.loads(dumps(value, "the trainable"))


@pytest.fixture
def script():
    """A model that trains in its hooks, as in torch's tutorial of optimizer steps in the backward pass."""
    model = torch.nn.Linear(3, 1)
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    return types.SimpleNamespace(model=model, optimizers=optimizers)


def train(model):
    for _ in range(3):
        model(torch.ones(4, 3)).square().mean().backward()
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_a_model_that_trains_in_its_hooks_trains_where_it_is_sent(script):
    there = travelled(script)
    assert list(there.optimizers) == list(there.model.parameters())
    begin = [parameter.detach().clone() for parameter in there.model.parameters()]
    trained = train(there.model)
    assert not torch.equal(begin[0], trained[0])
    assert all(map(torch.equal, trained, train(script.model)))


@pytest.mark.filterwarnings("error")
def test_a_hook_on_a_gradient_travels_unless_torch_is_told_that_it_must_not():
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda gradient: 3 * gradient)
    tensor.register_hook(torch.utils.hooks.unserializable_hook(lambda gradient: 5 * gradient))
    there = travelled(tensor)
    there.sum().backward()
    assert there.grad.tolist() == [3.0, 3.0]


def test_a_function_of_autograd_that_is_differentiable_once_travels():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return 2 * value

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, gradient):
            return 2 * gradient

    # As for a class of the script.
    Double.backward.__module__ = Double.__module__ = "__main__"
    value = torch.ones(1, requires_grad=True)
    travelled(Double).apply(value).backward()
    assert value.grad.item() == 2.0


def test_a_namespace_of_operations_travels_by_name():
    assert travelled(torch.ops.aten) is torch.ops.aten


def test_gradients_travel():
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    assert travelled(model).weight.grad.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.bfloat16, torch.int8, torch.complex64, torch.bool),
        *(torch.uint16, torch.float8_e5m2),
    ],
)
def test_tensors_that_share_memory_share_it_where_they_are_sent_and_take_it_once(dtype):
    flat = torch.ones(100_000).to(dtype)
    parameter = torch.nn.Parameter(flat[:10].view(2, 5), requires_grad=False)
    assert len(dumps((flat, parameter, flat[3:]), "it")) < 1.1 * flat.nbytes
    flat, parameter, tail = travelled((flat, parameter, flat[3:]))
    assert (flat.dtype, parameter.shape, tail.shape) == (dtype, (2, 5), (99_997,))
    flat.zero_()
    assert not parameter.view(torch.int8).any()
    assert not tail.view(torch.int8).any()


def test_the_handle_of_a_hook_removes_it_where_it_is_sent():
    tensor = torch.ones(1, requires_grad=True)
    handles = [
        tensor.register_hook(lambda gradient: 3 * gradient),
        tensor.register_post_accumulate_grad_hook(lambda tensor: tensor.grad.mul_(5) and None),
    ]
    tensor, handles = travelled((tensor, handles))
    tensor.backward()
    assert tensor.grad.item() == 15.0
    tensor.grad = None
    for handle in handles:
        handle.remove()
    tensor.backward()
    assert tensor.grad.item() == 1.0


def test_memory_that_processes_share_is_shared_where_it_is_sent():
    assert travelled(torch.ones(2).share_memory_()).is_shared()
    assert not travelled(torch.ones(2)).is_shared()


def test_a_step_that_the_script_has_put_in_place_of_an_optimizers_travels():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    plain = optimizer.step

    def clipped():
        torch.nn.utils.clip_grad_value_([parameter], 0.5)
        return plain()

    optimizer.step = clipped
    parameter, optimizer = travelled((parameter, optimizer))
    parameter.grad = torch.ones(1)
    optimizer.step()
    assert parameter.item() == -0.5


@pytest.mark.filterwarnings("error")
def test_an_optimizer_travels_with_its_own_attributes_and_hooks():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters())
    optimizer.register_step_post_hook(lambda optimizer, arguments, named: steps.append(len(arguments)))
    steps = []
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, scheduler, steps = travelled((model, optimizer, scheduler, steps))

    def loss():
        optimizer.zero_grad()
        value = model(torch.ones(4, 3)).square().mean()
        value.backward()
        return value

    assert optimizer.step(loss) > loss()
    assert steps == [2]
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_each_step_of_an_optimizer_of_the_script_is_heard_of_where_it_is_sent(monkeypatch):
    class Own(torch.optim.Optimizer):
        def step(self):
            return None

    def with_scheduler(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1).optimizer

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizers = [with_scheduler(torch.optim.SGD([parameter], lr=1.0)), with_scheduler(Own([parameter], {"lr": 1.0}))]
    blob = dumps(optimizers, "the trainable")
    # As where no optimizer of the class has been made yet.
    monkeypatch.setattr(torch.optim.SGD, "step", torch.optim.SGD.step.__wrapped__)
    here, there = ScriptClasses(inherits=False), ScriptClasses(inherits=False)
    here.leave()
    there.enter()
    sent = pickle.loads(blob)
    here.enter()
    heard = []
    handle = register_optimizer_step_post_hook(lambda optimizer, arguments, named: heard.append(optimizer))
    for optimizer in sent:
        optimizer.step()
    handle.remove()
    assert heard == sent


def test_a_tensor_that_says_how_it_travels_does_so():
    assert travelled(torch.ones(2).as_subclass(Own)).numel() == 0
    assert travelled(NAMED) is NAMED


def test_an_optimizer_that_says_how_it_travels_does_so():
    class Modest(torch.optim.SGD):
        def __getstate__(self):
            return {**super().__getstate__(), "told": True}

    optimizer = Modest([torch.ones(1, requires_grad=True)])
    optimizer.untold = True
    there = travelled(optimizer)
    assert there.told
    assert not hasattr(there, "untold")


def test_an_object_that_knows_no_attribute_but_its_items_travels():
    class Settings(dict):
        def __getattr__(self, name):
            return self[name]

    assert travelled(Settings(lr=0.1)).lr == 0.1
