"""Functions written for Ray Tune, run by cotune without Ray."""

import json
import tempfile

import pytest

import cotune

pytestmark = pytest.mark.ray


OPTIONS = {"trials": 1, "lanes": 1}


def test_a_function_that_reports_to_ray_tune_reports_to_its_trial(run):
    def train(config):
        import ray
        from ray import tune

        for step in range(3):
            tune.report({"loss": config["x"] * step, "deep": {"accuracy": 0.5}})
        assert not ray.is_initialized()

    results = run(train, {"x": cotune.uniform(0, 1)}, trials=2)
    assert not results.errors
    assert [len(trial.history) for trial in results] == [3, 3]
    assert results[1].metrics["deep/accuracy"] == 0.5


def test_a_function_does_not_wait_until_nobody_else_uses_its_gpu(run):
    def train(config):
        from ray import tune

        tune.report({"loss": 0, "goes_on": tune.utils.wait_for_gpu()})

    assert run(train, {"x": 1})[0].metrics["goes_on"] is True


def test_ray_may_reserve_any_amount_while_a_trial_imports_it(run, tmp_path):
    # Stands for Ray, whose import hides that memory was refused in an ImportError.
    (tmp_path / "ray" / "tune").mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text("")
    limit = "import resource\nlimit = resource.getrlimit(resource.RLIMIT_DATA)[0]\n"
    (tmp_path / "ray" / "tune" / "__init__.py").write_text(limit)

    def train(config):
        import resource
        import sys

        sys.path.insert(0, str(tmp_path))
        import ray.tune

        after, _ = resource.getrlimit(resource.RLIMIT_DATA)
        return {"loss": 0, "within": ray.tune.limit == resource.RLIM_INFINITY, "after": after == resource.RLIM_INFINITY}

    (trial,) = run(train, {"x": 1})
    assert trial.metrics == {"loss": 0, "within": True, "after": False}


def test_a_retried_function_finds_its_checkpoint_through_ray_tune(run):
    def train(config):
        from ray import tune

        start = 0
        if (checkpoint := tune.get_checkpoint()) is not None:
            with checkpoint.as_directory() as folder, open(f"{folder}/state.json") as file:
                start = json.load(file)["epoch"] + 1
        for epoch in range(start, 4):
            with tempfile.TemporaryDirectory() as folder:
                with open(f"{folder}/state.json", "w") as file:
                    json.dump({"epoch": epoch}, file)
                saved = tune.Checkpoint.from_directory(folder)
                tune.report({"loss": float(epoch), "start": start}, checkpoint=saved)
            if epoch == 1 and start == 0:
                raise RuntimeError("once")

    (trial,) = run(train, {"x": 1}, max_failures=1)
    assert trial.state == "done"
    assert [report["start"] for report in trial.history] == [0, 0, 2, 2]


def test_ray_tunes_context_says_what_the_trial_may_use(run):
    def train(config):
        from ray import tune

        resources = tune.get_context().get_trial_resources()
        tune.report({"loss": 0.0, "cpus": resources.required_resources["CPU"], "head": resources.head_cpus})

    (trial,) = run(train, {"x": 1}, threads=2)
    assert (trial.metrics["cpus"], trial.metrics["head"]) == (2, 2)


def test_a_class_of_ray_tune_is_refused_before_anything_starts(run, tmp_path):
    from ray import tune

    class Train(tune.Trainable):
        def step(self):
            return {"loss": 0.0}

    with pytest.raises(cotune.InputError, match="Trainable of Ray Tune") as caught:
        run(Train, {"x": 1})
    assert "colocate" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_ray_tunes_context_names_the_trial_and_its_folder(run):
    def train(config):
        from ray import tune

        context = tune.get_context()
        told = [context.get_trial_id(), context.get_trial_dir(), context.get_experiment_name()]
        tune.report({"loss": 0.0, "told": "|".join(told)})

    results = run(train, {"x": 1}, name="mine")
    assert results[0].metrics["told"] == f"0|{results[0].folder}|mine"
