"""What is swapped at a turn: a trial computes the same in company as alone, whatever it does to shared state."""

import contextlib
import csv
import gc
import importlib
import io
import logging
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotune.sharing.inside import torch_state
from cotune.sharing.inside.context import Context, Home, note_left


@pytest.fixture(autouse=True)
def restored():
    """Leaves the process as it was, whatever a test does to it."""
    kept = Context(0, Home())
    kept.torch_loaded()
    numpy_state = np.random.get_state()
    bits = np.random.mtrand._rand._bit_generator
    kept.leave()
    yield
    kept.enter()
    np.random.mtrand.set_bit_generator(bits)
    np.random.set_state(numpy_state)


# Things a trial may do between two boundaries, each giving something that tells its state apart.
def numpy_gaussian():
    return float(np.random.randn())


def numpy_uniform():
    return np.random.rand(3).tolist()


def numpy_integer():
    return int(np.random.randint(1 << 30))


def numpy_seed():
    np.random.seed(123)
    return 0


def numpy_seed_and_gaussian():
    np.random.seed(7)
    return float(np.random.standard_normal())


def numpy_many_words():
    return float(np.random.rand(1000).sum())


def python_random():
    return random.random()


def python_gaussian():
    return random.gauss(0, 1)


def python_seed():
    random.seed(99)
    return 0


def torch_random():
    return torch.rand(2, dtype=torch.float64).tolist()


def torch_gaussian():
    return float(torch.randn(1, dtype=torch.float64))


def torch_seed():
    torch.manual_seed(5)
    return 0


def torch_double():
    torch.set_default_dtype(torch.float64)
    return str(torch.zeros(1).dtype)


def torch_dtype():
    return str(torch.zeros(1).dtype)


def torch_deterministic():
    torch.use_deterministic_algorithms(True)
    return torch.is_deterministic_algorithms_warn_only_enabled()


def torch_flags():
    return [
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.is_anomaly_enabled(),
    ]


def torch_precision():
    torch.set_float32_matmul_precision("high")
    return torch.get_float32_matmul_precision()


def torch_cudnn():
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = True
    return 0


LESSER_FLAGS = [
    (torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
    (torch.backends.cudnn, "allow_tf32", False),
    (torch.backends.quantized, "engine", next(e for e in torch.backends.quantized.supported_engines if e != "x86")),
    (torch.backends.mkldnn, "deterministic", True),
    (torch.utils.deterministic, "fill_uninitialized_memory", False),
    (torch.distributions.Distribution, "_validate_args", False),
]


def set_lesser_torch_flags():
    for owner, name, value in LESSER_FLAGS:
        setattr(owner, name, value)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.mha.set_fastpath_enabled(False)
    return lesser_torch_flags()


def lesser_torch_flags():
    attention = [torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()]
    fast = torch.backends.mha.get_fastpath_enabled()
    return [*attention, fast, *(getattr(owner, name) for owner, name, _ in LESSER_FLAGS)]


def set_environment():
    os.environ["COTUNE_TEST"] = os.environ.get("COTUNE_TEST", "") + "x"
    return os.environ["COTUNE_TEST"]


def read_environment():
    return os.environ.get("COTUNE_TEST")


def clear_environment():
    os.environ.pop("COTUNE_TEST", None)
    return 0


def change_directory():
    os.chdir("/")
    return os.getcwd()


def read_directory():
    return os.getcwd()


def extend_path():
    sys.path.append(f"/extra-{len(sys.path)}")
    return len(sys.path)


def read_path():
    return list(sys.path)


DEEDS = [
    numpy_gaussian,
    numpy_uniform,
    numpy_integer,
    numpy_seed,
    numpy_seed_and_gaussian,
    numpy_many_words,
    python_random,
    python_gaussian,
    python_seed,
    torch_random,
    torch_gaussian,
    torch_seed,
    torch_double,
    torch_dtype,
    torch_deterministic,
    torch_flags,
    torch_precision,
    torch_cudnn,
    set_lesser_torch_flags,
    lesser_torch_flags,
    set_environment,
    read_environment,
    clear_environment,
    change_directory,
    read_directory,
    extend_path,
    read_path,
]
GENERATORS = [
    numpy_gaussian,
    numpy_uniform,
    numpy_integer,
    python_random,
    python_gaussian,
    torch_random,
    torch_gaussian,
]


def alone(seed, deeds, home):
    """What a trial sees that has the process for itself."""
    trial = Context(seed, home)
    trial.enter()
    seen = [deed() for deed in deeds]
    trial.leave()
    back = Context(0, home)
    back.enter()
    back.leave()
    return seen


def together(trials, order, home):
    """What trials see that take turns in this order; a trial that has ended does not note its state, as in a lane."""
    contexts = [Context(seed, home) for seed, _ in trials]
    seen = [[] for _ in trials]
    for number in order:
        deeds = trials[number][1]
        if len(seen[number]) == len(deeds):
            continue
        contexts[number].enter()
        seen[number].append(deeds[len(seen[number])]())
        if len(seen[number]) < len(deeds):
            contexts[number].leave()
    Context(0, home).enter()
    return seen


def turns_of(*counts):
    """An order in which every trial does all it has to do."""
    return st.permutations([number for number, count in enumerate(counts) for _ in range(count)])


def draws():
    return [deed() for deed in GENERATORS]


def test_a_fresh_state_comes_from_the_seed_alone():
    home = Home()
    Context(5, home).enter()
    first = draws()
    draws()
    Context(5, home).enter()
    assert draws() == first


def test_other_seeds_give_other_streams():
    home = Home()
    Context(5, home).enter()
    first = draws()
    Context(6, home).enter()
    assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_a_fresh_state_is_what_seeding_by_hand_gives():
    Context(5, Home()).enter()
    got = (random.random(), np.random.rand(), torch.rand(1).item())
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert got == (random.random(), np.random.rand(), torch.rand(1).item())


def test_a_seed_wider_than_numpy_takes_is_no_problem():
    Context(2**40 + 5, Home()).enter()
    assert 0 <= np.random.rand() < 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_second_half_of_a_gaussian_pair_stays_with_its_trial(count):
    home = Home()
    trials = [(1, [numpy_gaussian] * count + [numpy_uniform, numpy_gaussian]), (2, [numpy_gaussian] * 5)]
    expected = [alone(seed, deeds, home) for seed, deeds in trials]
    assert together(trials, [0, 1] * 5, home) == expected


def test_half_a_gaussian_pair_that_a_trial_left_behind_at_its_end_is_not_the_next_ones():
    home = Home()
    expected = alone(2, [numpy_gaussian] * 2, home)
    assert together([(1, [numpy_gaussian]), (2, [numpy_gaussian] * 2)], [0, 1, 1], home)[1] == expected


def test_half_a_gaussian_pair_that_a_trial_left_behind_at_its_end_is_not_that_of_one_that_waits():
    home = Home()
    waiting = (2, [numpy_uniform, numpy_gaussian, numpy_gaussian])
    expected = alone(*waiting, home)
    assert together([(1, [numpy_gaussian]), waiting], [1, 0, 1, 1], home)[1] == expected


def other_generator():
    np.random.mtrand.set_bit_generator(np.random.PCG64(3))
    return float(np.random.randn())


def test_a_trial_that_ended_with_another_bit_generator_in_place_is_no_harm():
    home = Home()

    expected = alone(2, [numpy_gaussian, numpy_uniform], home)
    trials = [(1, [other_generator]), (2, [numpy_gaussian, numpy_uniform])]
    assert together(trials, [0, 1, 1], home)[1] == expected


def test_another_bit_generator_stays_with_its_trial():
    home = Home()

    trials = [(1, [other_generator, numpy_gaussian, numpy_uniform]), (2, [numpy_gaussian, numpy_uniform] * 2)]
    expected = [alone(seed, deeds, home) for seed, deeds in trials]
    assert together(trials, [0, 1, 0, 1, 0, 1, 1], home) == expected


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_two_trials_in_any_interleaving_see_what_they_see_alone(data):
    home = Home()
    deeds = st.lists(st.sampled_from(DEEDS), min_size=1, max_size=6)
    trials = [(11, data.draw(deeds)), (22, data.draw(deeds))]
    expected = [alone(seed, done, home) for seed, done in trials]
    order = data.draw(turns_of(*(len(done) for _, done in trials)))
    assert together(trials, order, home) == expected


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_three_trials_that_draw_random_numbers_in_any_interleaving_get_their_own_streams(data):
    home = Home()
    deeds = st.lists(st.sampled_from([*GENERATORS, numpy_seed, torch_seed, python_seed]), min_size=1, max_size=5)
    trials = [(seed, data.draw(deeds)) for seed in (1, 2, 3)]
    expected = [alone(seed, done, home) for seed, done in trials]
    order = data.draw(turns_of(*(len(done) for _, done in trials)))
    assert together(trials, order, home) == expected


# Each changes one flag of torch from its default.
CHANGES = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "deterministic, warn only": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "matmul precision": lambda: torch.set_float32_matmul_precision("high"),
    "cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn.deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "cudnn.enabled": lambda: setattr(torch.backends.cudnn, "enabled", False),
    "cudnn.allow_tf32": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "matmul.allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "fp16 reduction": lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
    "bf16 reduction": lambda: setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "mkldnn.enabled": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "flash sdp": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "memory efficient sdp": lambda: torch.backends.cuda.enable_mem_efficient_sdp(False),
    "math sdp": lambda: torch.backends.cuda.enable_math_sdp(False),
    "cudnn sdp": lambda: torch.backends.cuda.enable_cudnn_sdp(False),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
    "anomaly mode without a check": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "fast path of attention": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "validation of distributions": lambda: torch.distributions.Distribution.set_default_validate_args(False),
    "overwritten parameters": lambda: torch.__future__.set_overwrite_module_params_on_conversion(True),
    "swapped parameters": lambda: torch.__future__.set_swap_module_params_on_conversion(True),
    "reduction of math sdp": lambda: torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True),
    "early stop of checkpoints": lambda: setattr(torch.utils.checkpoint, "_enable_checkpoint_early_stop", False),
    "printing": lambda: torch.set_printoptions(precision=9),
    "checks of sparse tensors": lambda: torch.sparse.check_sparse_tensor_invariants.enable(),
    "nnpack": lambda: torch._C._set_nnpack_enabled(False),
    "sharing of tensors": lambda: torch.multiprocessing.set_sharing_strategy("file_system"),
}
if hasattr(torch._C, "_set_sdp_priority_order"):
    CHANGES["order of sdp"] = lambda: torch._C._set_sdp_priority_order([2, 1, 0, 3, 4])


def flags_of_torch():
    matmul = torch.backends.cuda.matmul
    return {
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "cudnn.enabled": torch.backends.cudnn.enabled,
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "matmul.allow_tf32": matmul.allow_tf32,
        "fp16 reduction": matmul.allow_fp16_reduced_precision_reduction,
        "bf16 reduction": matmul.allow_bf16_reduced_precision_reduction,
        "mkldnn.enabled": torch.backends.mkldnn.enabled,
        "flash sdp": torch.backends.cuda.flash_sdp_enabled(),
        "memory efficient sdp": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math sdp": torch.backends.cuda.math_sdp_enabled(),
        "cudnn sdp": torch.backends.cuda.cudnn_sdp_enabled(),
        "anomaly mode": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "fast path of attention": torch.backends.mha.get_fastpath_enabled(),
        "validation of distributions": torch.distributions.Distribution._validate_args,
        "overwritten parameters": torch.__future__.get_overwrite_module_params_on_conversion(),
        "swapped parameters": torch.__future__.get_swap_module_params_on_conversion(),
        "reduction of math sdp": torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
        "early stop of checkpoints": torch.utils.checkpoint._enable_checkpoint_early_stop,
        "printing": torch._tensor_str.PRINT_OPTS.precision,
        "checks of sparse tensors": torch.sparse.check_sparse_tensor_invariants.is_enabled(),
        "nnpack": torch._C._get_nnpack_enabled(),
        "sharing of tensors": torch.multiprocessing.get_sharing_strategy(),
        "order of sdp": getattr(torch._C, "_get_sdp_priority_order", list)(),
    }


@pytest.fixture
def unswapped_flags():
    """Puts back what a context does not swap."""
    before = flags_of_torch()
    yield
    matmul = torch.backends.cuda.matmul
    torch.backends.cudnn.allow_tf32 = before["cudnn.allow_tf32"]
    matmul.allow_fp16_reduced_precision_reduction = before["fp16 reduction"]
    matmul.allow_bf16_reduced_precision_reduction = before["bf16 reduction"]
    torch.backends.cuda.enable_cudnn_sdp(before["cudnn sdp"])


@pytest.mark.parametrize("name", CHANGES)
def test_a_flag_of_torch_stays_with_its_trial(name, unswapped_flags):
    home = Home()
    one, other = Context(1, home), Context(2, home)
    one.enter()
    before = flags_of_torch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        CHANGES[name]()
    changed = flags_of_torch()
    one.leave()
    other.enter()
    in_between = flags_of_torch()
    other.leave()
    one.enter()
    assert changed != before
    assert in_between == before
    assert flags_of_torch() == changed


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch 2.9 and later")
@pytest.mark.parametrize(
    "unit", [("cuda", "matmul"), ("generic", "all"), ("cuda", "all"), ("mkldnn", "all")], ids="/".join
)
def test_precision_set_the_new_way_stays_with_its_trial_and_breaks_no_turn(unit):
    def read():
        return [torch._C._get_fp32_precision_getter(*one) for one in (unit, ("cuda", "matmul"))]

    before = read()
    home = Home()
    one, other = Context(1, home), Context(2, home)
    try:
        one.enter()
        torch._C._set_fp32_precision_setter(*unit, "tf32" if unit[0] != "mkldnn" else "bf16")
        changed = read()
        one.leave()
        other.enter()
        in_between = read()
        other.leave()
        one.enter()
        after = read()
    finally:
        torch._C._set_fp32_precision_setter(*unit, "none")
        torch.set_float32_matmul_precision("highest")
    assert changed != before
    assert in_between == before
    assert after == changed


def test_a_flag_that_an_ended_trial_set_is_back_for_the_next_one():
    home = Home()
    Context(1, home).enter()
    torch.set_default_dtype(torch.float64)
    Context(2, home).enter()
    assert torch.get_default_dtype() is torch.float32


def test_hooks_of_all_modules_and_optimizers_stay_with_their_trial():
    home, called = Home(), []
    first, second = Context(1, home), Context(2, home)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())

    def both():
        called.clear()
        model(torch.ones(1))
        optimizer.step()
        return list(called)

    first.enter()
    forward = torch.nn.modules.module.register_module_forward_hook(lambda *_: called.append("forward"))
    importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(lambda *_: called.append("step"))
    first.leave()
    second.enter()
    assert both() == []
    second.leave()
    first.enter()
    assert both() == ["forward", "step"]
    forward.remove()
    assert both() == ["step"]
    Context(3, home).enter()
    assert both() == []


def test_a_context_that_torch_does_not_nest_may_be_open_in_two_trials():
    home = Home()
    first, second = Context(1, home), Context(2, home)
    first.enter()
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        first.leave()
        second.enter()
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            second.leave()
            first.enter()


def test_cached_parametrizations_stay_with_their_trial():
    home, models = Home(), [torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(1, 1)) for _ in range(2)]
    first, second = Context(1, home), Context(2, home)
    first.enter()
    with torch.nn.utils.parametrize.cached():
        cached = models[0].weight
        first.leave()
        second.enter()
        assert models[1].weight is not models[1].weight
        second.leave()
        first.enter()
        assert models[0].weight is cached
    assert models[0].weight is not cached


def test_the_environment_of_an_ended_trial_is_gone_for_the_next_one():
    home = Home()
    Context(1, home).enter()
    os.environ["COTUNE_TEST"] = "x"
    Context(2, home).enter()
    assert "COTUNE_TEST" not in os.environ


def test_the_environment_that_subprocesses_see_is_swapped_too():
    home = Home()
    one, other = Context(1, home), Context(2, home)
    one.enter()
    os.environ["COTUNE_TEST"] = "one"
    one.leave()
    other.enter()
    assert subprocess.check_output(["sh", "-c", "echo -$COTUNE_TEST-"], text=True) == "--\n"
    other.leave()
    one.enter()
    assert subprocess.check_output(["sh", "-c", "echo -$COTUNE_TEST-"], text=True) == "-one-\n"


def test_what_becomes_of_warnings_stays_with_its_trial():
    home = Home()
    one, other = Context(1, home), Context(2, home)
    one.enter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.leave()
        other.enter()
        assert warnings.filters == home.filters
        warnings.simplefilter("ignore")
        other.leave()
        one.enter()
        with pytest.raises(UserWarning):
            warnings.warn("is raised", stacklevel=1)
    assert warnings.filters == home.filters
    one.leave()
    other.enter()
    warnings.warn("is ignored", stacklevel=1)


def test_every_trial_may_choose_how_processes_are_started():
    home = Home()
    one, other = Context(1, home), Context(2, home)
    one.enter()
    multiprocessing.set_start_method("spawn")
    one.leave()
    other.enter()
    multiprocessing.set_start_method("forkserver")
    other.leave()
    one.enter()
    assert multiprocessing.get_start_method() == "spawn"


def mode_of_a_new_file(folder):
    path = folder / f"{random.random()}"
    path.touch()
    return path.stat().st_mode & 0o777


def stack_size():
    size = threading.stack_size()
    threading.stack_size(size)
    return size


@pytest.mark.parametrize(
    ("change", "look"),
    [
        (gc.disable, gc.isenabled),
        (lambda: gc.set_threshold(5, 6, 7), gc.get_threshold),
        (lambda: gc.set_debug(gc.DEBUG_UNCOLLECTABLE), gc.get_debug),
        (lambda: gc.callbacks.append(lambda *_: None), lambda: list(gc.callbacks)),
        (lambda: threading.stack_size(16 << 20), stack_size),
        (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
        (lambda: csv.field_size_limit(1 << 30), csv.field_size_limit),
        (lambda: socket.setdefaulttimeout(7.0), socket.getdefaulttimeout),
        (lambda: sys.setswitchinterval(0.5), sys.getswitchinterval),
        (lambda: setattr(tempfile, "tempdir", "/own"), lambda: tempfile.tempdir),
        (lambda: setattr(sys, "stdin", io.StringIO("own")), lambda: sys.stdin),
        (lambda: setattr(sys, "excepthook", print), lambda: sys.excepthook),
        (lambda: setattr(sys, "breakpointhook", print), lambda: sys.breakpointhook),
        (lambda: setattr(sys, "tracebacklimit", 0), lambda: getattr(sys, "tracebacklimit", None)),
        (lambda: sys.argv.append("--more"), lambda: list(sys.argv)),
        (lambda: setattr(sys, "argv", None), lambda: sys.argv or []),
        (lambda: os.umask(0o777), mode_of_a_new_file),
        # As `captureWarnings(True)` does.
        (lambda: setattr(logging, "_warnings_showwarning", print), lambda: logging._warnings_showwarning),
    ],
    ids=[
        *("gc", "gc thresholds", "gc debug", "gc callbacks", "stacks", "recursion limit", "fields of csv", "timeout"),
        *("switch interval", "temporary files"),
        *("input", "hook", "breakpoint", "tracebacks", "arguments", "no arguments", "umask", "captured warnings"),
    ],
)
def test_a_setting_of_the_interpreter_or_process_stays_with_its_trial(change, look, tmp_path):
    see = (lambda: look(tmp_path)) if look is mode_of_a_new_file else look
    home = Home()
    one, other, later = (Context(seed, home) for seed in range(3))
    one.enter()
    before = see()
    change()
    changed = see()
    assert changed != before
    one.leave()
    other.enter()
    assert see() == before
    other.leave()
    one.enter()
    assert see() == changed
    # It ends, and what is its own with it.
    later.enter()
    assert see() == before


def test_a_removed_variable_is_back_for_the_others(monkeypatch):
    monkeypatch.setenv("COTUNE_TEST", "home")
    home = Home()
    one, other = Context(1, home), Context(2, home)
    one.enter()
    del os.environ["COTUNE_TEST"]
    one.leave()
    other.enter()
    assert os.environ["COTUNE_TEST"] == "home"
    other.leave()
    one.enter()
    assert "COTUNE_TEST" not in os.environ


def test_the_working_directory_is_swapped(tmp_path):
    home = Home()
    one, other = Context(1, home), Context(2, home)
    one.enter()
    os.chdir(tmp_path)
    one.leave()
    other.enter()
    assert os.getcwd() == home.in_place.directory
    other.leave()
    one.enter()
    assert os.getcwd() == str(tmp_path)


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_an_ended_trial_has_left_is_read_before_the_next_one_begins_and_put_right_by_it(
    tmp_path, monkeypatch, is_gone
):
    home, recursion = Home(), sys.getrecursionlimit()
    Context(1, home).enter()
    (tmp_path / "there").mkdir()
    os.chdir(tmp_path / "there")
    os.environ["LEFT_BEHIND"] = "1"
    torch.use_deterministic_algorithms(True, warn_only=True)
    sys.setrecursionlimit(sys.getrecursionlimit() + 1)
    if is_gone:
        (tmp_path / "there").rmdir()
    note_left()
    other = Context(2, home)
    other.torch_loaded()
    if not is_gone:
        monkeypatch.setattr(torch_state, "flags_now", lambda: pytest.fail("torch's flags were read again"))
    other.enter()
    monkeypatch.undo()
    assert os.getcwd() == home.in_place.directory
    assert "LEFT_BEHIND" not in os.environ
    assert not torch.are_deterministic_algorithms_enabled()
    assert sys.getrecursionlimit() == recursion


def test_a_working_directory_that_is_gone_can_be_left(tmp_path):
    home = Home()
    one = Context(1, home)
    one.enter()
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        one.leave()
    finally:
        os.chdir(home.in_place.directory)


def test_a_working_directory_that_an_ended_trial_removed_is_no_harm_to_the_next_one(tmp_path):
    home = Home()
    Context(1, home).enter()
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        Context(2, home).enter()
        assert os.getcwd() == home.in_place.directory
    finally:
        os.chdir(home.in_place.directory)


def test_the_import_path_is_swapped_in_place():
    home = Home()
    path = sys.path
    one, other = Context(1, home), Context(2, home)
    one.enter()
    sys.path.insert(0, "/extra")
    one.leave()
    other.enter()
    assert "/extra" not in sys.path
    other.leave()
    one.enter()
    assert sys.path[0] == "/extra"
    assert sys.path is path


def test_a_stream_that_one_trial_has_redirected_is_not_that_of_one_that_begins_meanwhile():
    home, usual = Home(), sys.stdout
    first = Context(1, home)
    first.enter()
    with contextlib.redirect_stdout(io.StringIO()) as caught:
        second = Context(2, home)
        first.leave()
        second.enter()
        assert sys.stdout is usual
        second.leave()
        first.enter()
        assert sys.stdout is caught


def test_entering_again_changes_nothing():
    one = Context(1, Home())
    one.enter()
    first = draws()
    one.leave()
    one.enter()
    one.leave()
    one.enter()
    second = draws()
    Context(1, Home()).enter()
    assert draws() + draws() == first + second
