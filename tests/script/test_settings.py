"""What a script has set holds in its trials."""

import json
import os
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch

from cotune.script import settings

SCRIPT = """
import csv, decimal, json, socket, sys, warnings
import numpy as np
import torch
import cotune
import sets_too

class Remark(UserWarning):
    pass

def found():
    with warnings.catch_warnings(record=True) as shown:
        warnings.warn("boom")
        warnings.warn("other")
    return {
        "shown": [str(one.message) for one in shown],
        "type": str(torch.empty(1).dtype),
        "deterministic": torch.is_deterministic_algorithms_warn_only_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "precision": torch.get_float32_matmul_precision(),
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "over": np.geterr()["over"],
        "text": str(np.array([1 / 3])),
        "depth": sys.getrecursionlimit(),
        "timeout": socket.getdefaulttimeout(),
        "compiler": torch._dynamo.config.recompile_limit,
        "grad": torch.is_grad_enabled(),
        "csv": csv.field_size_limit(),
        "decimal": str(decimal.Decimal(1) / 3),
        "denormals": float(torch.tensor([1e-310], dtype=torch.float64) * 0.5),
    }

def train(config):
    before = found()
    sets_too.used()
    # What a trial sets itself is its own.
    torch.set_default_dtype(torch.float16)
    np.seterr(over="ignore")
    warnings.simplefilter("ignore")
    cotune.report({"loss": 0.0, **before})

if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    torch.multiprocessing.set_sharing_strategy("file_system")
    np.seterr(over="raise")
    np.set_printoptions(precision=2)
    sys.setrecursionlimit(3333)
    socket.setdefaulttimeout(7)
    torch._dynamo.config.recompile_limit = 31
    torch.set_flush_denormal(True)
    torch.set_grad_enabled(False)
    csv.field_size_limit(1 << 30)
    decimal.getcontext().prec = 3
    warnings.filterwarnings("ignore", category=Remark)
    warnings.filterwarnings("ignore", "boom")
    results = cotune.run(train, {"x": cotune.uniform(0, 1)}, metric="loss", trials=3, devices=["cpu:0@2GiB"], lanes=1)
    print(json.dumps([found(), *(trial.metrics for trial in results)]))
"""


def test_what_a_script_has_set_holds_in_each_of_its_trials(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # The script sets something else after the import.
    (tmp_path / "sets_too.py").write_text(
        "import numpy, torch\nnumpy.seterr(over='ignore')\ntorch.set_default_dtype(torch.float32)\ndef used(): pass\n"
    )
    environment = os.environ | {"COTUNE_STORAGE": str(tmp_path / "runs")}
    command = [sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    of_script, *of_trials = json.loads(done.stdout.splitlines()[-1])
    assert (of_script["type"], of_script["shown"]) == ("torch.float64", ["other"])
    assert (of_script["compiler"], of_script["denormals"]) == (31, 0.0)
    assert (of_script["grad"], of_script["csv"], of_script["decimal"]) == (False, 1 << 30, "0.333")
    assert [{name: trial[name] for name in of_script} for trial in of_trials] == [of_script] * 3


@pytest.fixture
def elsewhere(monkeypatch):
    """Takes over settings as another process would, and puts this process's own back."""
    monkeypatch.setattr(settings, "_script", {})
    here = settings.of_script()
    yield settings.take_over
    settings.take_over(here)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_default_device_is_taken_over_where_the_device_can_be_used(elsewhere, on_gpu):
    torch.set_default_device("meta")
    try:
        told = settings.of_script()
    finally:
        torch.set_default_device(None)
    elsewhere(told)
    found = []

    def run():
        settings.take_over_in_thread(on_gpu=on_gpu)
        found.append(torch.empty(1).device.type)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == ["meta" if on_gpu else "cpu"]


def test_what_scikit_learn_keeps_for_each_thread_is_taken_over(elsewhere):
    import sklearn

    with sklearn.config_context(transform_output="pandas"):
        told = settings.of_script()
    elsewhere(told)
    found = []

    def run():
        settings.take_over_in_thread(on_gpu=False)
        found.append(sklearn.get_config()["transform_output"])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == ["pandas"]


def test_a_thread_gets_what_a_module_has_set_in_the_thread_that_imported_it(elsewhere):
    found = []

    def run():
        settings.take_over_in_thread(on_gpu=False)
        found.append(np.geterr()["over"])

    with np.errstate(over="raise"):
        elsewhere(settings.of_script())
        for _ in range(2):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
    assert found == ["raise", "raise"]


def test_torch_gets_its_settings_once_it_is_imported(elsewhere, monkeypatch):
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    told = settings.of_script()
    torch.set_float32_matmul_precision(precision)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        elsewhere(told)
    assert torch.get_float32_matmul_precision() == precision
    settings.take_over_torch(on_gpu=False)
    assert torch.get_float32_matmul_precision() == "medium"


def test_filters_of_warnings_that_are_not_imported_are_left_out_and_those_that_raise(elsewhere, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        warnings.filterwarnings("ignore", "of ours")
        warnings.filterwarnings("error", "of theirs")
        told = settings.of_script()
    before = list(warnings.filters)
    with warnings.catch_warnings():
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "numpy.exceptions")
            elsewhere(told)
        added = [one for one in warnings.filters if one not in before]
    assert [message.pattern for _, message, *_ in added] == ["of ours"]


def test_what_cannot_be_pickled_is_left_out():
    with np.printoptions(formatter={"float": lambda value: f"{value:.1f}"}):
        told = settings.of_script()
    assert "numpy's text" not in told
    assert pickle.loads(told["recursion"]) == sys.getrecursionlimit()
