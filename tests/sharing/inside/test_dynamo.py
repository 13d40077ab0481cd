"""torch's compiler is there for who compiles, and loaded for nobody else."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

# sympy is what takes longest of all that the compiler imports.
PRELUDE = """
import contextlib, pickle, sys, threading
import sympy, torch
from cotune.sharing.inside.dynamo import defer_dynamo, dynamo_if_loaded

entered = []

@contextlib.contextmanager
def during():
    entered.append(dynamo_if_loaded())
    yield

defer_dynamo(during)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

step()
assert dynamo_if_loaded() is None
"""

# Runs each line's code in a process of its own, forked as lanes are, and says how that ended.
FORKS = """
import json, os, traceback
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        try:
            exec(json.loads(line))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def forking():
    command = [sys.executable, "-c", PRELUDE + FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def run_with_it_deferred(forking):
    def run(code):
        print(json.dumps(code), file=forking.stdin, flush=True)
        assert forking.stdout.readline() == "0\n"

    return run


def test_optimizers_schedules_and_who_looks_through_all_modules_do_not_load_it(run_with_it_deferred):
    run_with_it_deferred("""
for make in (torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad):
    optimizer = make(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    step()
    schedule.step()
    optimizer.load_state_dict(optimizer.state_dict())
for module in list(sys.modules.values()):
    hasattr(module, "no such thing")
    getattr(module, "__file__", None)
assert pickle.loads(pickle.dumps(torch.float32)) is torch.float32
assert dynamo_if_loaded() is None and not entered
""")


def test_who_compiles_gets_all_of_it_and_optimizers_are_hidden_from_it_from_then_on(run_with_it_deferred):
    run_with_it_deferred("""
import torch._dynamo as before
zero_grad = torch.optim.Optimizer.zero_grad.__wrapped__
assert vars(zero_grad)["__dynamo_disable"] is zero_grad
graphs = []

def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

compiled = torch.compile(model, backend=backend)
assert torch.equal(compiled(torch.ones(2, 4)), model(torch.ones(2, 4)))
assert len(graphs) == 1
module = dynamo_if_loaded()
assert module is before is torch._dynamo is sys.modules["torch._dynamo"]
assert entered == [None]
assert module.config.cache_size_limit and module.disable is module.decorators.disable
step()
assert vars(zero_grad)["__dynamo_disable"] is not zero_grad
""")


@pytest.mark.parametrize(
    "use",
    [
        "import torch._dynamo.config as config",
        "from torch._dynamo import OptimizedModule",
        "torch._dynamo.disable(step)()",
        "torch._dynamo.reset()",
    ],
)
def test_any_other_use_loads_it(run_with_it_deferred, use):
    run_with_it_deferred(f"""
{use}
assert dynamo_if_loaded() is torch._dynamo
""")


def test_one_that_is_loaded_already_stays():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import torch, torch._dynamo as before; from cotune.sharing.inside import dynamo; dynamo.defer_dynamo(); "
            "assert dynamo.dynamo_if_loaded() is before",
        ],
        timeout=100,
    )
    assert done.returncode == 0


def test_loading_that_fails_is_tried_again(run_with_it_deferred):
    run_with_it_deferred("""
loader, errors = sys.modules["torch._dynamo"].__spec__.loader, []

def fails(module):
    raise MemoryError("no room")

load, loader.exec_module = loader.exec_module, fails
for _ in range(2):
    try:
        torch.compile(model, backend="eager")(torch.ones(2, 4))
    except MemoryError as error:
        errors.append(str(error))
assert errors == ["no room"] * 2 and dynamo_if_loaded() is None
loader.exec_module = load
torch.compile(model, backend="eager")(torch.ones(2, 4))
assert dynamo_if_loaded() is torch._dynamo
""")


def test_what_was_looked_for_before_it_was_loaded_is_there_once(run_with_it_deferred):
    run_with_it_deferred("""
from torch._dynamo.utils import counters
import torch._dynamo.config as config
assert torch._dynamo.utils.counters is counters
assert sys.modules["torch._dynamo.eval_frame"].config is config is torch._dynamo.config
assert torch._dynamo.utils.__spec__.loader.path == torch._dynamo.utils.__file__
""")


def test_threads_that_load_it_at_once_wait_for_each_other(run_with_it_deferred):
    run_with_it_deferred("""
found, both = [], threading.Barrier(3)

def load(use):
    both.wait()
    found.append(use())

uses = [
    lambda: torch._dynamo.config,
    lambda: torch._dynamo.decorators.disable and torch._dynamo.config,
    lambda: torch._dynamo.eval_frame.config,
]
threads = [threading.Thread(target=load, args=(use,), daemon=True) for use in uses]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
assert found == [torch._dynamo.config] * 3, found
""")
