"""Workloads from files, and outcomes drawn."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cotune.demand import GIB, MIB
from cotune.errors import InputError, StorageError
from cotune.paths import RunFolder
from cotune.simulation import Segment, Setting, from_csv, from_run, make_workload, simulate
from cotune.simulation.drawing import chrome_trace, duration, gantt, summary

HEADER = "iterations,step_seconds,persistent_mib,ephemeral_mib,busy,startup,arrival,kind\n"


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    return path


def test_a_table_of_jobs(tmp_path: Path) -> None:
    workload = from_csv(table(tmp_path, HEADER + "10,0.5,100,200,0.4,3,7,cnn\n20,1,1,1,,,,\n"))
    first, second = workload.jobs
    assert (first.iterations, first.step_seconds, first.persistent, first.peak) == (10, 0.5, 100 * MIB, 300 * MIB)
    assert (first.busy, first.startup, first.arrival, first.kind) == (0.4, 3.0, 0.0, "cnn")
    assert (second.busy, second.startup, second.arrival, second.kind) == (0.9, 0.0, 0.0, "")


def test_a_priority_may_be_negative(tmp_path: Path) -> None:
    assert [job.priority for job in from_csv(table(tmp_path, "seconds,priority\n1,-1\n1,2\n")).jobs] == [-1.0, 2.0]
    with pytest.raises(InputError, match="priority is '-inf'"):
        from_csv(table(tmp_path, "seconds,priority\n1,-inf\n"))


def test_a_published_table_is_read_by_its_own_names(tmp_path: Path) -> None:
    text = (
        "job_id,num_gpu,submit_time,iterations,model_name,duration,peak_mem_mb\n0,1,7,10,vgg,5,100\n1,8,1,1,vgg,1,1\n"
    )
    workload = from_csv(table(tmp_path, text))
    (job,) = workload.jobs
    assert (job.seconds, job.iterations, job.arrival, job.kind, job.peak) == (5.0, 10, 0.0, "vgg", 100 * MIB)
    assert "1 jobs of no GPU or of several" in workload.note


def test_a_job_whose_iterations_are_not_known_lasts_as_long_as_its_row_says(tmp_path: Path) -> None:
    text = "iterations,step_seconds,duration,start,end\n0,,164,,\n,,147,,\n0,,,10,15\n5,2,100,,\n"
    jobs = from_csv(table(tmp_path, text)).jobs
    assert [job.seconds for job in jobs] == pytest.approx([164.0, 147.0, 5.0, 100.0])
    assert len({job.iterations for job in jobs[:3]}) == 1
    assert jobs[3].iterations == 5


def test_jobs_last_from_their_start_to_their_end_in_dates_too(tmp_path: Path) -> None:
    text = (
        "job_id,gpu_num,submit_time,start_time,end_time\n"
        "a,1,2020-04-09 00:00:05,2020-04-09 00:01:05,2020-04-09 01:01:05\n"
        "b,1,2020-04-09 00:00:15,2020-04-09 00:02:00,2020-04-09 00:02:30\n"
        "cancelled,1,2020-04-09 00:00:15,,\n"
        "cpu,0,2020-04-09 00:00:15,2020-04-09 00:02:00,2020-04-09 00:02:30\n"
    )
    workload = from_csv(table(tmp_path, text))
    assert [job.seconds for job in workload.jobs] == pytest.approx([3600.0, 30.0])
    assert [job.arrival for job in workload.jobs] == [0.0, 10.0]
    assert "without 1 jobs of no GPU or of several, without 1 that took no time or have no end" in workload.note


def test_what_is_missing_may_be_written_in_several_ways(tmp_path: Path) -> None:
    text = (
        "jobid,status,submitted_time,start_time,end_time,num_gpus\n"
        "a,Pass,2017-10-03 08:00:00,2017-10-03 08:01:00,2017-10-03 08:02:00,1\n"
        "b,Killed,2017-10-03 08:00:10,2017-10-03 08:01:00,None,1\n"
        "c,Failed,2017-10-03 08:00:10,NaN,NULL,1\n"
        "d,Pass,2017-10-03 08:00:10,2017-10-03 08:01:00,2017-10-03 08:02:00,NA\n"
        "e,Pending,2017-10-03 08:00:10,Unknown,Unknown,1\n"
    )
    workload = from_csv(table(tmp_path, text))
    assert [job.seconds for job in workload.jobs] == pytest.approx([60.0])
    assert "without 1 jobs of no GPU or of several, without 3 that took no time or have no end" in workload.note


def test_a_table_of_slurm_says_when_jobs_were_submitted(tmp_path: Path) -> None:
    text = "JobID,Submit,Start,End\n1,2026-01-01T00:00:00,2026-01-01T00:05:00,2026-01-01T00:06:00\n"
    text += "2,2026-01-01T00:00:10,2026-01-01T00:07:00,2026-01-01T00:09:00\n"
    jobs = from_csv(table(tmp_path, text)).jobs
    assert [(job.arrival, job.seconds) for job in jobs] == [(0.0, pytest.approx(60.0)), (10.0, pytest.approx(120.0))]
    text = "JobID,Submit,Elapsed\n1,2026-01-01T00:00:00,00:01:00\n2,2026-01-01T00:00:10,1-00:02:00\n"
    assert [job.seconds for job in from_csv(table(tmp_path, text)).jobs] == pytest.approx([60.0, 86520.0])


def test_the_time_of_a_job_that_has_a_length_is_when_it_comes(tmp_path: Path) -> None:
    text = "time,name,application,num_replicas,run_time\n5,a,bert,1,60\n35,b,yolo,1,90\n"
    jobs = from_csv(table(tmp_path, text)).jobs
    assert [(job.arrival, job.kind, job.seconds) for job in jobs] == [
        (0.0, "bert", pytest.approx(60.0)),
        (30.0, "yolo", pytest.approx(90.0)),
    ]


def test_parts_of_a_gpu_in_percent_and_jobs_of_several_instances(tmp_path: Path) -> None:
    text = (
        "job_name,inst_num,status,start_time,end_time,plan_cpu,plan_gpu\n"
        "a,1.0,Terminated,100,110,600,25.0\n"
        "b,1.0,Terminated,107,127,600,100.0\n"
        "several,1.0,Terminated,107,127,600,200.0\n"
        "instances,4.0,Terminated,107,127,600,50.0\n"
        "cpu,1.0,Terminated,107,127,600,\n"
    )
    workload = from_csv(table(tmp_path, text))
    assert [(job.seconds, job.busy, job.arrival) for job in workload.jobs] == [
        (pytest.approx(10.0), 0.25, 0.0),
        (pytest.approx(20.0), 0.9, 7.0),
    ]
    assert "without 3 jobs of no GPU or of several" in workload.note
    assert "they arrive when they started there" in workload.note


def test_pods_of_thousandths_of_a_gpu(tmp_path: Path) -> None:
    text = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "a,12000,16384,1,1000,,LS,Running,0,100,10\n"
        "b,6000,12288,1,460,,LS,Running,20,60,30\n"
        "several,88000,327680,8,1000,,Burstable,Succeeded,30,60,30\n"
        "never,11908,47104,1,1000,,BE,Pending,30,60,\n"
    )
    workload = from_csv(table(tmp_path, text))
    found = [(job.arrival, job.seconds, job.busy, job.peak) for job in workload.jobs]
    # Their memory is the host's.
    assert found == [(0.0, pytest.approx(90.0), 0.9, 0), (20.0, pytest.approx(30.0), 0.46, 0)]
    assert "without 1 jobs of no GPU or of several, without 1 that took no time or have no end" in workload.note


def test_jobs_that_ask_for_gpus_by_worker_and_thousandths_without_a_number(tmp_path: Path) -> None:
    text = (
        "job_name,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration\n"
        "a,A10,20,1,1,0,100\n"
        "many,A100,15,1,94,50,100\n"
        "cpu,A100,15,0,2,50,100\n"
    )
    workload = from_csv(table(tmp_path, text))
    assert len(workload.jobs) == 1
    assert "without 2 jobs of no GPU or of several" in workload.note
    part = from_csv(table(tmp_path, "name,gpu_milli,duration\na,460,100\nnone,0,100\n"))
    assert [job.busy for job in part.jobs] == [0.46]


def test_lengths_of_time_as_pandas_writes_them(tmp_path: Path) -> None:
    rows = "0,0 days 00:04:22.5,COMPLETE\n1,2 days,PRUNED\n2,1:00:00,FAIL\n3,,RUNNING\n"
    workload = from_csv(table(tmp_path, "number,duration,state\n" + rows))
    assert [job.seconds for job in workload.jobs] == pytest.approx([262.5, 172_800.0, 3600.0])
    assert "all are there from the beginning, since nothing says when they come" in workload.note


def test_jobs_of_which_nothing_says_when_they_come_are_there_from_the_beginning(tmp_path: Path) -> None:
    workload = from_csv(table(tmp_path, "seconds,arrival\n1,1500000000\n1,\n1,1500000009\n"))
    assert [job.arrival for job in workload.jobs] == [0.0, 0.0, 9.0]
    assert "; 1 that do not say when they come are there from the beginning" in workload.note


def test_odd_characters_and_empty_lines_make_no_rows(tmp_path: Path) -> None:
    text = '\n  \nname,seconds\na\x0bb,1\nc\u2028d,2\n\n , \n"e\nf",3\n'
    workload = from_csv(table(tmp_path, text))
    assert [job.seconds for job in workload.jobs] == pytest.approx([1.0, 2.0, 3.0])
    assert "without" not in workload.note


@pytest.mark.parametrize(
    "text", ["Duration;GPUs\n10;1\n", "duration\tgpus\n10\t1\n", "Job ID, Duration , GPUs\n1, 10, 1\n"]
)
def test_other_separators_capitals_and_spaces_are_no_harm(tmp_path: Path, text: str) -> None:
    assert from_csv(table(tmp_path, text)).jobs[0].seconds == pytest.approx(10.0)


def test_a_byte_order_mark_and_empty_cells_beyond_the_header_are_no_harm(tmp_path: Path) -> None:
    assert from_csv(table(tmp_path, "\ufeffseconds\n10,, \n")).jobs[0].seconds == pytest.approx(10.0)


def test_a_peak_beside_one_of_its_parts(tmp_path: Path) -> None:
    jobs = from_csv(table(tmp_path, "seconds,persistent_mib,peak_mib\n1,1000,6000\n1,1000,\n1,,6000\n")).jobs
    jobs += from_csv(table(tmp_path, "seconds,ephemeral_mib,peak_mib\n1,2000,6000\n")).jobs
    found = [(job.persistent // MIB, job.peak // MIB) for job in jobs]
    assert found == [(1000, 6000), (1000, 1000), (0, 6000), (4000, 6000)]


def test_hyperparameters_are_what_predictions_go_by(tmp_path: Path) -> None:
    text = "number,duration,params_lr,params_Optimizer,value\n0,0 days 00:00:10,0.01,sgd,1\n1,0 days 00:00:10,,,1\n"
    jobs = from_csv(table(tmp_path, text)).jobs
    assert [job.features for job in jobs] == [{"params_lr": 0.01, "params_optimizer=sgd": 1.0}, {}]


def test_a_table_of_ray_tunes_results(tmp_path: Path) -> None:
    text = "loss,trial_id,time_this_iter_s,time_total_s,config/lr\n0.5,a1b2_00000,1.5,12.5,0.01\n"
    (job,) = from_csv(table(tmp_path, text)).jobs
    assert (job.name, job.seconds, job.features) == ("a1b2_00000", pytest.approx(12.5), {"config/lr": 0.01})


def test_of_the_reports_of_a_trial_of_ray_tune_the_last_says_how_long_it_took(tmp_path: Path) -> None:
    text = "loss,trial_id,time_total_s\n0.5,a,1.5\n0.6,b,1.0\n0.4,a,3.0\n"
    assert [(job.name, job.seconds) for job in from_csv(table(tmp_path, text)).jobs] == [
        ("a", pytest.approx(3.0)),
        ("b", pytest.approx(1.0)),
    ]


def test_jobs_that_do_not_say_what_they_need_take_the_median_of_the_others(tmp_path: Path) -> None:
    workload = from_csv(table(tmp_path, "seconds,peak_mib\n1,100\n1,300\n1,\n1,NaN\n1,900\n"))
    assert [job.peak for job in workload.jobs] == [100 * MIB, 300 * MIB, 300 * MIB, 300 * MIB, 900 * MIB]
    assert "2 that do not say what they need take the median of the others, 300 MiB" in workload.note


def test_a_table_compressed_with_gzip(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress(b"seconds\n10\n"))
    assert from_csv(path).jobs[0].seconds == pytest.approx(10.0)
    path.write_bytes(gzip.compress(b"seconds\n10\n")[:-9])
    with pytest.raises(InputError, match=r"cannot read .*jobs\.csv\.gz"):
        from_csv(path)


def test_memory_under_a_name_that_is_not_read_is_pointed_out(tmp_path: Path) -> None:
    workload = from_csv(table(tmp_path, "seconds,gpu_mem_gb\n10,4\n"))
    assert "no memory is given (gpu_mem_gb is not read: call it peak_mib if it is MiB of the device)" in workload.note


def test_a_table_of_times_alone_limits_only_lanes(tmp_path: Path) -> None:
    workload = from_csv(table(tmp_path, "seconds\n10\n20\n"))
    assert [job.seconds for job in workload.jobs] == pytest.approx([10.0, 20.0])
    assert "no memory is given" in workload.note


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "no rows"),
        (HEADER, "no rows"),
        ("iterations,peak_mib\n1,1\n", "how long jobs take: it has iterations, peak_mib"),
        ("seconds,gpus\n1,8\n", "no job of one GPU"),
        ("trial,seconds,expected_seconds,start,end,attempts\n0,1,,5,6,1\n", "own results(.|\n)*--run NAME"),
        (HEADER + "ten,1,1,1,,,,\n", "line 2.*iterations is 'ten'"),
        (HEADER + "1,1,1,1,,,,\n1,inf,1,1,,,,\n", "line 3.*step_seconds"),
        ("start,end\n10/3/2017 8:12,10/3/2017 9:12\n", "line 2.*end is '10/3/2017 9:12'"),
        (HEADER + "1,1,-5,1,,,,\n", "persistent_mib"),
        ("seconds,submit_time\n1,2026-13-01\n", "submit_time is '2026-13-01'"),
        (HEADER + "0,1,1,1,,,,\n", "that takes time"),
        (HEADER + ",1,1,1,,,,\n", "that takes time"),
        ("seconds,peak_mib\n1,10,200\n", "line 2.*has 3 cells for 2 columns"),
        ("seconds,peak_mib,seconds\n10,1,20\n", "has the column seconds twice"),
        (HEADER + "1e300,1e11,1,1,,,,\n", "line 2.*iterations take"),
        ('name,seconds\n"a\nb",1\n\nc,x\n', "line 5.*seconds is 'x'"),
        ("start_time,end_time\n1586390405000,1586390465000\n", "'1586390465000'\n.*divide those that are milliseconds"),
        ("seconds,peak_mib\n1,4294967296\n", "'4294967296'\n.*divide those that are bytes"),
        ("seconds,busy\n1,35\n", "busy is '35'\n.*0.35 for 35%"),
        ('name,seconds\n"a,1\n' + "b,1\n" * 40_000, "is a quote left open there"),
        ('seconds,name\n10,a\n10,"5 in tube\n10,b\n', "is a quote left open there"),
        ("seconds,arrival\n10,2024-01-01\n10,0\n", "line 3.*of arrival and start some are dates, some seconds"),
        ("seconds,submit_time,start_time\n10,5,2024-01-01\n10,,2024-01-01\n", "line 3.*of arrival and start"),
        ("start,end\n0,2024-01-01\n", "line 2.*of start and end some are dates"),
        ("start,end\n2024-01-01,2024-01-02\nsoon,2024-01-02\n", "line 3.*start is 'soon'\n.*seconds, or a date"),
        (HEADER + "10.9,1,1,1,,,,\n", "line 2.*iterations is 10.9"),
    ],
)
def test_a_wrong_table_says_what_is_wrong(tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        from_csv(table(tmp_path, text))


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        from_csv(tmp_path / "nope.csv")


def a_run(tmp_path: Path, ends: int = 4) -> RunFolder:
    """A finished run: two lanes, trials of 10 seconds, the second one stopped, the last without a measurement."""
    device = {"capacity": GIB, "context": 0, "max_width": 2, "idle_width": 0, "lanes": 2}
    events: list[dict[str, object]] = [
        {"event": "run", "time": 0.0, "version": 1, "metric": "loss"},
        {"event": "device", "time": 0.0, "device": "cpu:0", **device},
    ]
    for trial in range(4):
        start = 10.0 * (trial // 2)
        params = {"lr": 0.1, "depth": trial, "bias": True, "optimizer": "sgd"}
        events.append({"event": "trial", "time": 0.0, "trial": trial, "params": params, "seed": 0})
        events.append({"event": "start", "time": start, "trial": trial, "lane": trial % 2, "device": "cpu:0"})
        if trial < ends:
            sizes = (
                {"persistent": 100 * MIB, "ephemeral": 50 * MIB}
                if trial < 3
                else dict.fromkeys(("persistent", "ephemeral"))
            )
            state = "stopped" if trial == 1 else "done"
            end = {"event": "end", "time": start + 10.0, "trial": trial, "state": state, "error": None}
            events.append(end | sizes)
    folder = RunFolder(tmp_path / "my-run")
    folder.path.mkdir()
    folder.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_what_a_run_would_have_cost_on_more_devices(tmp_path: Path) -> None:
    workload = from_run(a_run(tmp_path))
    # Of two beside each other, each using half of the device, each keeps 90.5% of its speed.
    assert [job.seconds for job in workload.jobs] == pytest.approx([9.05] * 4)
    assert (workload.devices, workload.lanes) == (1, 2)
    assert simulate(workload).figures.makespan == pytest.approx(20.0, abs=2.0)
    assert {job.peak for job in workload.jobs} == {150 * MIB}
    assert {job.busy for job in workload.jobs} == {0.5}
    assert workload.jobs[1].features == {"lr": 0.1, "depth": 1.0, "bias=True": 1.0, "optimizer=sgd": 1.0}
    one, four = (simulate(replace(workload, devices=count)).figures.makespan for count in (1, 4))
    assert four < one


def test_a_share_that_is_given_goes_before_the_guess(tmp_path: Path) -> None:
    assert {job.busy for job in from_run(a_run(tmp_path), busy=0.8).jobs} == {0.8}


def test_what_did_not_run_to_an_end_is_counted(tmp_path: Path) -> None:
    assert from_run(a_run(tmp_path, ends=3)).note.startswith("3 trials of my-run, without 1 that did not run to an end")


def test_trials_that_a_pruner_had_stopped_are_stopped_where_they_are_played(tmp_path: Path) -> None:
    workload = from_run(a_run(tmp_path))
    assert "4 trials of my-run, 1 of which were stopped and end where they did" in workload.note
    played = simulate(workload, Setting(keep=True))
    assert played.figures.stopped == 1
    assert {segment.trial: segment.how for segment in played.segments} == {
        0: "done",
        1: "stopped",
        2: "done",
        3: "done",
    }


def test_a_run_without_an_end_or_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trial"):
        from_run(a_run(tmp_path, ends=0))
    with pytest.raises(StorageError):
        from_run(RunFolder(tmp_path / "nope"))


# ---- drawings


def test_a_gantt_chart_shows_what_ran_where() -> None:
    segments = [Segment(0, "gpu 0", 1, 0.0, 50.0, "done"), Segment(1, "gpu 0", 2, 50.0, 100.0, "stopped")]
    rows = gantt(segments, columns=10).splitlines()
    assert rows[1].endswith("gpu 0 lane 1 █████     ")
    assert rows[2].endswith("gpu 0 lane 2      ▒▒▒▒▒")
    assert gantt([]) == ""
    many = [Segment(n, f"gpu {n}", 1, 0.0, 1.0, "done") for n in (10, 2, 1)]
    assert [row.split()[1] for row in gantt(many).splitlines()[1:4]] == ["1", "2", "10"]


def test_a_slice_of_a_gantt_chart_is_marked_by_what_most_of_it_went_to() -> None:
    done = [Segment(n, "gpu 0", 1, n * 0.06, (n + 1) * 0.06, "done") for n in range(10)]
    failed = Segment(10, "gpu 0", 1, 0.6, 1.0, "failed")
    assert gantt([*done, failed], columns=1).splitlines()[1].endswith("gpu 0 lane 1 █")


def test_what_was_used_is_said_and_where_it_is_more_than_one_at_a_time_could() -> None:
    few, many = (simulate(replace(make_workload("salus-light", jobs=40), lanes=width)) for width in (1, 4))
    assert "1.0 trials at once on average; their iterations use " in summary(few, 1.0)
    assert "could" not in summary(few, 1.0)
    assert "of the devices' time, more than one at a time could" in summary(many, 1.0)


def test_a_chrome_trace_has_a_process_a_device_and_an_event_an_attempt() -> None:
    outcome = simulate(replace(make_workload("salus-100", jobs=10), devices=2))
    trace = json.loads(json.dumps(chrome_trace(outcome.segments)))
    events = trace["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"gpu 0", "gpu 1"}
    bars = [event for event in events if event["ph"] == "X"]
    assert sorted(bar["args"]["trial"] for bar in bars) == list(range(10))
    assert all(bar["dur"] > 0 for bar in bars)


def overlapping(trace: dict[str, Any]) -> int:
    """How many events start before the one before them on their row has ended."""
    bars = sorted(
        (event["pid"], event["tid"], event["ts"], event["dur"]) for event in trace["traceEvents"] if event["ph"] == "X"
    )
    return sum(one[:2] == two[:2] and one[2] + one[3] > two[2] for one, two in pairwise(bars))


def test_in_a_chrome_trace_an_event_ends_no_later_than_the_next_begins() -> None:
    # The second one's 1.6 microseconds, rounded by themselves, would end at 3, and the third begins at 2.
    ends = [0.0, 0.6e-6, 2.2e-6, 3.0e-6]
    segments = [Segment(trial, "gpu 0", 1, *times, "done") for trial, times in enumerate(pairwise(ends))]
    trace = chrome_trace(segments)
    assert overlapping(trace) == 0
    assert len({event["tid"] for event in trace["traceEvents"] if event["ph"] == "X"}) == 1


def test_residents_that_overlap_have_rows_of_their_own_in_a_chrome_trace() -> None:
    times = [(1.0, 2.0), (0.0, 3.0), (3.0, 5.0)]
    segments = [Segment(trial, "gpu 0", 7, *span, "done") for trial, span in enumerate(times)]
    trace = chrome_trace([*segments, Segment(3, "gpu 0", 9, 0.0, 6.0, "done")])
    rows = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert sorted(rows.values()) == ["lane 7", "lane 7", "lane 9"]
    bars = {event["args"]["trial"]: event["tid"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert bars[1] == bars[2] != bars[0]
    assert rows[bars[3]] == "lane 9"
    assert overlapping(trace) == 0


def test_a_chrome_trace_has_the_names_of_the_table(tmp_path: Path) -> None:
    workload = from_csv(table(tmp_path, "job_id,seconds,arrival\nlate,10,5\nearly,10,0\n,10,9\n"))
    bars = chrome_trace(simulate(workload, Setting()).segments, workload.jobs)["traceEvents"]
    assert [bar["name"] for bar in bars if bar["ph"] == "X"] == ["early", "late", "trial 2"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (204.0, "3.4 min"), (18_360.0, "5.1 h"), (1e6, "11.6 d")]
)
def test_durations_as_people_write_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
