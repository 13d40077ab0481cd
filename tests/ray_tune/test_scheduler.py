"""What `colocate` does with Tune's trials before any of them runs."""

from __future__ import annotations

import inspect
import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

pytest.importorskip("ray")

from ray import cloudpickle
from ray.tune import PlacementGroupFactory
from ray.tune.execution import tune_controller
from ray.tune.logger import TBXLoggerCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining, ResourceChangingScheduler

from cotune.errors import InputError
from cotune.ray_tune import _private, mends, scheduler
from cotune.ray_tune.process import Fractions
from cotune.ray_tune.scheduler import admit, colocate
from cotune.ray_tune.seam import LaneActorManager, LaneRequest, LaneResourceManager


@pytest.mark.parametrize(
    "bundles", [[{"CPU": 1, "license": 1}], [{"CPU": 1, "GPU": 2}], [{"CPU": 1}, {"CPU": 1}], [{}, {"CPU": 1}]]
)
def test_what_lanes_cannot_give_is_left_to_ray(bundles):
    request = PlacementGroupFactory(bundles)
    trial = SimpleNamespace(placement_group_factory=request)
    admit(SimpleNamespace(_actor_manager=None), trial, None)
    assert trial.placement_group_factory is request
    Fractions().prepare(trial)
    assert trial.placement_group_factory is request


def test_a_trial_that_has_ended_before_a_restore_books_nothing_and_keeps_its_request():
    request = PlacementGroupFactory([{"CPU": 1, "GPU": 0.5}])
    trial = Mock(placement_group_factory=request, is_finished=lambda: True)
    Fractions().prepare(trial)
    trial.update_resources.assert_not_called()


def test_a_restored_scheduler_is_compared_with_the_installed_ray_too(monkeypatch):
    saved = cloudpickle.dumps(colocate(FIFOScheduler()))

    def unknown():
        raise InputError("Ray 9 is not one that colocate() knows", hint="")

    monkeypatch.setattr(_private, "check", unknown)
    with pytest.raises(InputError, match="Ray 9"):
        cloudpickle.loads(saved)


def test_a_trial_that_asks_for_a_gpu_or_less_is_one_for_a_lane(monkeypatch):
    monkeypatch.setattr(scheduler, "install", lambda controller, trial, options: None)
    for share in (0.5, 1):
        trial = SimpleNamespace(placement_group_factory=PlacementGroupFactory([{"CPU": 1, "GPU": share}]))
        admit(SimpleNamespace(_actor_manager=None), trial, None)
        assert isinstance(trial.placement_group_factory, LaneRequest)


def test_what_lanes_cannot_give_is_refused_where_lanes_hold_the_cluster():
    controller = SimpleNamespace(_actor_manager=LaneActorManager.__new__(LaneActorManager))
    trial = SimpleNamespace(placement_group_factory=PlacementGroupFactory([{"CPU": 1, "license": 1}]))
    with pytest.raises(InputError, match="cannot run in a lane"):
        admit(controller, trial, None)


@pytest.mark.parametrize(("said", "asked"), [(None, [1]), ("4", [])])
def test_with_a_process_for_each_trial_tune_asks_for_one_ahead_unless_the_user_has_said_otherwise(
    said, asked, monkeypatch
):
    monkeypatch.delenv("TUNE_MAX_PENDING_TRIALS_PG", raising=False)
    if said:
        monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", said)
    limits = []
    behind = SimpleNamespace(update_max_pending_trials=limits.append, _reuse_actors=True)
    controller = SimpleNamespace(_tune_controller=behind)
    trial = SimpleNamespace(placement_group_factory=PlacementGroupFactory([{"CPU": 1}]))
    colocate(isolation="process").on_trial_add(controller, trial)
    assert limits == asked
    assert os.environ.get("TUNE_MAX_PENDING_TRIALS_PG") == said
    assert not behind._reuse_actors, "the peak of a process is to be that of its trial"


class Controller:
    """Stands for Tune's, with one trial that waits."""

    def __init__(self, bundle):
        self._actor_manager, self._reuse_actors = _private.RayActorManager(resource_manager=None), True
        self.trial = SimpleNamespace(status="PENDING", placement_group_factory=PlacementGroupFactory([bundle]))

    def get_trials(self):
        return [self.trial]

    def update_pending_trial_resources(self, bundle):
        self.trial.placement_group_factory = PlacementGroupFactory([bundle])


def test_a_trial_that_tune_gives_other_resources_before_it_runs_is_one_for_a_lane_still(monkeypatch):
    """As `tune.run(resume=True, resources_per_trial=...)` does."""
    made_for = []

    def broker(trial, options, most):
        made_for.append(trial.placement_group_factory.required_resources)
        return SimpleNamespace(packer=SimpleNamespace(unfinished=0))

    monkeypatch.setattr(scheduler, "_broker", broker)
    controller = Controller({"CPU": 1})
    admit(controller, controller.trial, None)
    controller.update_pending_trial_resources({"CPU": 2})
    assert isinstance(controller.trial.placement_group_factory, LaneRequest)
    assert isinstance(controller._actor_manager, LaneActorManager)
    assert made_for == [{"CPU": 1}, {"CPU": 2}]

    controller.update_pending_trial_resources({"CPU": 1, "GPU": 2})
    assert not isinstance(controller.trial.placement_group_factory, LaneRequest)
    assert type(controller._actor_manager) is _private.RayActorManager


def test_a_scheduler_that_decides_what_trials_get_is_refused_around_a_colocated_one_too():
    controller = Controller({"CPU": 1})
    controller._scheduler_alg = ResourceChangingScheduler(colocate(ASHAScheduler()))
    with pytest.raises(InputError) as refused:
        controller._scheduler_alg._base_scheduler.on_trial_add(controller, controller.trial)
    assert "scheduler=colocate(" in refused.value.hint


def test_an_argument_of_run_is_told_which_one_it_is_here():
    with pytest.raises(InputError, match="takes no residents=") as caught:
        colocate(residents=2)
    assert caught.value.hint == "did you mean max_residents=?"


@pytest.mark.parametrize(
    ("base", "judged"), [(None, False), (FIFOScheduler, False), (ASHAScheduler, True), (PopulationBasedTraining, True)]
)
def test_the_brain_is_told_whether_trials_are_judged_by_those_before_them(base, judged):
    made = base and (base(hyperparam_mutations={"x": [1]}) if base is PopulationBasedTraining else base())
    assert colocate(colocate(made))._cotune_options.packer.judged == judged


def test_requests_of_two_trials_differ_and_each_equals_the_amounts_that_its_trial_asked_for():
    asked = PlacementGroupFactory([{"CPU": 1}])
    one, other = (LaneRequest.of(SimpleNamespace(placement_group_factory=asked)) for _ in range(2))
    assert one != other
    assert one == asked == one
    assert one != PlacementGroupFactory([{"CPU": 2}])


def test_what_a_policy_raises_is_not_hidden_by_what_tune_cancels_because_of_it():
    def ask(trial):
        raise ZeroDivisionError

    manager = LaneResourceManager(SimpleNamespace(ask=ask))
    request = LaneRequest.of(SimpleNamespace(placement_group_factory=PlacementGroupFactory([{"CPU": 1}])))
    with pytest.raises(ZeroDivisionError):
        manager.request_resources(request)
    manager.cancel_resource_request(request)


@pytest.mark.parametrize(
    ("search", "most"),
    [
        ({"total_samples": 6}, 6),
        ({"total_samples": 6, "max_concurrent": 2}, 2),
        ({"total_samples": 6, "searcher": SimpleNamespace(max_concurrent=3)}, 3),
        ({"total_samples": 0, "max_concurrent": 0}, None),
        ({}, None),
    ],
)
def test_how_many_trials_run_at_most_is_what_the_search_says(search, most):
    assert _private.most_at_once(SimpleNamespace(_search_alg=SimpleNamespace(**search))) == most


def test_a_checkpoint_that_is_saved_twice_is_kept_as_one_also_when_restored(tmp_path, monkeypatch):
    from ray.train._internal.checkpoint_manager import _CheckpointManager
    from ray.train._internal.session import _TrainingResult
    from ray.tune import Checkpoint, CheckpointConfig

    saved = cloudpickle.dumps(colocate())
    # As an experiment is restored in a new process.
    mends.mend.cache_clear()
    rays = inspect.unwrap(_CheckpointManager.register_checkpoint)
    monkeypatch.setattr(_CheckpointManager, "register_checkpoint", rays)
    cloudpickle.loads(saved)
    books = _CheckpointManager(CheckpointConfig(num_to_keep=2))
    for number in (0, 0, 1, 1, 2, 2):
        folder = tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        books.register_checkpoint(_TrainingResult(Checkpoint(folder), {"number": number}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    assert [result.metrics["number"] for result in books.best_checkpoint_results] == [1, 2]


@pytest.mark.parametrize("asked", ["given", "found", "answered", "unanswered"])
def test_a_checkpoint_that_another_trial_is_to_go_on_from_is_deleted_once_it_has(tmp_path, monkeypatch, asked):
    from ray.train._internal import checkpoint_manager
    from ray.train._internal.session import _FutureTrainingResult, _TrainingResult
    from ray.tune import Checkpoint, CheckpointConfig

    monkeypatch.setattr(checkpoint_manager, "_delete_fs_path", checkpoint_manager._delete_fs_path)
    books = checkpoint_manager._CheckpointManager(CheckpointConfig(num_to_keep=1))
    results = []

    def save():
        folder = tmp_path / "a" / str(len(results))
        folder.mkdir(parents=True)
        results.append(_TrainingResult(Checkpoint(folder), {}))
        books.register_checkpoint(results[-1])
        return results[-1]

    class Future(_FutureTrainingResult):
        def __init__(self, answer):
            self.answer = answer

        def resolve(self, block=True):
            assert not block
            return self.answer

    class Trial(SimpleNamespace):
        __hash__ = object.__hash__

        def is_finished(self):
            return False

    first = save()
    a, b = (Trial(path=f"{tmp_path}/{name}", checkpoint=None) for name in "ab")
    wanted = {"found": first.checkpoint, "answered": Future(first), "unanswered": Future(None), "given": None}[asked]
    b.checkpoint = first.checkpoint if asked == "given" else None
    states = {a: SimpleNamespace(last_checkpoint=wanted)}
    controller = Trial(_scheduler_alg=SimpleNamespace(_trial_state=states), get_live_trials=lambda: {a, b})
    mends.keep_awaited_checkpoints(controller)
    mends.keep_awaited_checkpoints(controller)
    for _ in range(2):
        save()
    kept = {"0", "1", "2"} if asked == "unanswered" else {"0", "2"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == kept
    b.checkpoint = states[a].last_checkpoint = None
    save()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["3"]


def test_a_checkpoint_of_a_trial_that_is_over_is_awaited_by_nobody(tmp_path, monkeypatch):
    """As after Ctrl-C, once the experiment is restored in the same process, where the first controller still is."""
    from ray.train._internal import checkpoint_manager
    from ray.train._internal.session import _TrainingResult
    from ray.tune import Checkpoint, CheckpointConfig

    monkeypatch.setattr(checkpoint_manager, "_delete_fs_path", checkpoint_manager._delete_fs_path)

    class Hashable(SimpleNamespace):
        __hash__ = object.__hash__

    folders = [tmp_path / str(number) for number in range(3)]
    over = Hashable(path=str(tmp_path), checkpoint=Checkpoint(folders[0]), is_finished=lambda: True)
    interrupted = Hashable(_scheduler_alg=None, get_live_trials=lambda: {over})
    mends.keep_awaited_checkpoints(interrupted)
    books = checkpoint_manager._CheckpointManager(CheckpointConfig(num_to_keep=1))
    for folder in folders:
        folder.mkdir()
        books.register_checkpoint(_TrainingResult(Checkpoint(folder), {}))
    assert list(tmp_path.iterdir()) == folders[2:]


def test_a_checkpoint_that_is_gone_already_is_no_fault_of_the_trial_that_saves_next(tmp_path, monkeypatch):
    from ray.train._internal import checkpoint_manager
    from ray.train._internal.session import _TrainingResult
    from ray.tune import Checkpoint, CheckpointConfig

    monkeypatch.setattr(checkpoint_manager, "_delete_fs_path", checkpoint_manager._delete_fs_path)

    class Controller(SimpleNamespace):
        __hash__ = object.__hash__

    mends.keep_awaited_checkpoints(Controller(_scheduler_alg=None, get_live_trials=list))
    books = checkpoint_manager._CheckpointManager(CheckpointConfig(num_to_keep=1))
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
        books.register_checkpoint(_TrainingResult(Checkpoint(folder), {}))
        if folder is folders[0]:
            folder.rmdir()
    assert list(tmp_path.iterdir()) == folders[2:]


def test_rows_that_are_not_uploaded_yet_stay_in_the_log_of_a_trial_that_goes_on(tmp_path):
    from pyarrow.fs import LocalFileSystem
    from ray.tune.logger import JsonLoggerCallback

    colocate()
    here, there = tmp_path / "here", tmp_path / "there"
    storage = SimpleNamespace(storage_filesystem=LocalFileSystem(), trial_fs_path=str(there))
    trial = SimpleNamespace(local_path=str(here), storage=storage, checkpoint="saved")
    for folder in (here, there):
        folder.mkdir()
    (there / "result.json").write_text("1\n")
    JsonLoggerCallback()._restore_from_remote("result.json", trial)
    assert (here / "result.json").read_text() == "1\n", "as in a new process"
    (here / "result.json").write_text("1\n2\n")
    JsonLoggerCallback()._restore_from_remote("result.json", trial)
    assert (here / "result.json").read_text() == "1\n2\n"


def test_a_trial_that_is_about_to_be_paused_ends_with_its_bracket_too():
    from ray.tune.schedulers import HyperBandScheduler

    colocate(HyperBandScheduler(metric="loss", mode="min", max_t=2))
    colocate(HyperBandScheduler(metric="loss", mode="min", max_t=2))
    bracket = object.__new__(_private.hyperband._Bracket)
    trials = {
        name: SimpleNamespace(status=status, is_saving=saving)
        for name, status, saving in (
            ("paused", "PAUSED", False),
            ("saving", "RUNNING", True),
            ("last", "RUNNING", False),
        )
    }
    stopped = []

    def stop(trial):
        stopped.append(trial)
        left.remove(trial)

    left = list(trials.values())
    bracket.current_trials = lambda: list(left)
    bracket.cleanup_full(SimpleNamespace(stop_trial=stop))
    # The last one Tune stops by what the scheduler says.
    assert stopped == [trials["paused"], trials["saving"]]


def test_a_trial_that_is_paused_while_it_saves_is_not_stopped_at_its_next_save():
    colocate(FIFOScheduler())
    controller = object.__new__(tune_controller.TuneController)
    trial = Mock(trial_id="it", status="RUNNING", is_saving=True)
    controller._cached_trial_decisions, controller._trial_to_actor = {}, {trial: Mock()}

    def schedule_stop(trial):
        # As Ray does where a save is in flight.
        controller._cached_trial_decisions[trial.trial_id] = "STOP"

    controller._schedule_trial_stop = schedule_stop
    controller._set_trial_status = Mock()
    controller._schedule_trial_pause(trial, should_checkpoint=False)
    assert controller._cached_trial_decisions == {}
    controller._schedule_trial_save = Mock()
    controller._schedule_trial_pause(trial)
    assert controller._cached_trial_decisions == {"it": "PAUSE"}


def test_what_tensorboard_was_told_is_kept_where_a_trial_goes_on_within_the_second(tmp_path):
    colocate(FIFOScheduler())
    trial = Mock(local_path=str(tmp_path))
    logger = TBXLoggerCallback()
    for step in range(1, 4):
        logger.log_trial_start(trial)
        logger.log_trial_result(step, trial, {"training_iteration": step, "loss": 0.5})
    logger._trial_writer[trial].close()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 3
    assert all(b"ray/tune/loss" in file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize(("given", "threads"), [({}, "2"), ({"env_vars": {"OMP_NUM_THREADS": "3"}}, None)])
def test_a_number_of_threads_that_the_user_has_set_for_the_job_stays(monkeypatch, given, threads):
    context = SimpleNamespace(runtime_env=given)
    monkeypatch.setattr(scheduler.ray, "get_runtime_context", lambda: context)
    assert scheduler._environment(2.0).get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(("given", "told"), [({}, "0"), ({"env_vars": {"MIMALLOC_ARENA_EAGER_COMMIT": "1"}}, None)])
def test_an_allocator_of_a_lane_makes_no_more_writable_than_it_uses_unless_told_so(monkeypatch, given, told):
    context = SimpleNamespace(runtime_env=given)
    monkeypatch.setattr(scheduler.ray, "get_runtime_context", lambda: context)
    assert scheduler._environment(2.0).get("MIMALLOC_ARENA_EAGER_COMMIT") == told
