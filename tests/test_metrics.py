"""What a trainable may report, and how it is written down."""

import decimal
import enum
import fractions
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import MetricError, UnknownMetric
from cotune.metrics import is_number, number, number_line, plain, read_report, whole_step


class Kind(enum.StrEnum):
    SMALL = "small"


class Colour(str, enum.Enum):  # noqa: UP042 - `str()` of its members says more than their value
    RED = "red"


class Text(str):
    def __str__(self):
        return self


class Level(enum.IntEnum):
    HIGH = 3


def read(metrics, metric="loss", is_first=False, step=1):
    value, _, line = read_report(metrics, metric, is_first, 7, step, 12.5)
    return value, json.loads(line)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (3, 3),
        (True, True),
        ("fine", "fine"),
        (None, None),
        (np.float64(1.5), 1.5),
        (np.float32(1.5), 1.5),
        (np.float16(1.5), 1.5),
        (np.int64(3), 3),
        (np.uint8(3), 3),
        (np.bool_(True), True),
        (np.str_("fine"), "fine"),
        (np.array(1.5), 1.5),
        (np.ma.array([1.5]), 1.5),
        (np.ma.masked, None),
        (np.ma.array([1.5], mask=[True]), None),
        (np.array([1.5]), 1.5),
        (np.array([[3]]), 3),
        (Kind.SMALL, "small"),
        (Level.HIGH, 3),
        (Colour.RED, "red"),
        (Text("fine"), "fine"),
        (decimal.Decimal("1.5"), 1.5),
        (fractions.Fraction(3, 2), 1.5),
    ],
    ids=repr,
)
def test_a_value_becomes_a_plain_one(value, expected):
    got = plain("m", value)
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda torch: torch.tensor(1.5), 1.5),
        (lambda torch: torch.tensor([1.5]), 1.5),
        (lambda torch: torch.tensor([[3]]), 3),
        (lambda torch: torch.tensor(True), True),
        (lambda torch: torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (lambda torch: torch.tensor(1.5, requires_grad=True), 1.5),
        (lambda torch: torch.nn.Parameter(torch.ones(1)), 1.0),
    ],
    ids=["0-d", "1 element", "1 element of 2-d", "bool", "bfloat16", "with gradient", "parameter"],
)
def test_a_tensor_of_one_element_becomes_its_number(make, expected):
    torch = pytest.importorskip("torch")
    got = plain("m", make(torch))
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1.0, None], [1.0, None]),
        ((np.float32(1.5), "x"), [1.5, "x"]),
        (np.arange(3), [0, 1, 2]),
        (np.zeros((2, 1)), [[0.0], [0.0]]),
        (np.zeros(0), []),
    ],
    ids=repr,
)
def test_what_has_several_elements_becomes_a_list(value, expected):
    assert plain("m", value) == expected


def test_a_tensor_of_several_elements_becomes_a_list():
    torch = pytest.importorskip("torch")
    assert plain("m", torch.ones(2, requires_grad=True)) == [1.0, 1.0]


def test_an_array_too_large_for_the_events_file_is_refused_with_its_shape():
    with pytest.raises(MetricError, match=r"'acc' has shape \(1001, 1\)") as refused:
        plain("acc", np.zeros((1001, 1)))
    assert "checkpoint" in refused.value.hint


def nested(depth):
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("value", "words"),
    [(10**5000, "16,610 bits"), ([10**5000], "16,610 bits"), (nested(51), "lists in lists, 50 deep")],
    ids=["an integer", "one in a list", "lists in lists"],
)
def test_what_the_events_file_could_not_be_read_with_is_refused(value, words):
    with pytest.raises(MetricError, match=words):
        plain("m", value)
    assert plain("m", nested(50)) == nested(50)


def test_nested_metrics_are_told_by_path():
    value, line = read({"eval": {"loss": 0.5, "top": {"k": 5}}, "epoch": 3}, metric="eval/loss")
    assert value == 0.5
    assert line["metrics"] == {"eval/loss": 0.5, "eval/top/k": 5, "epoch": 3}


def test_two_metrics_of_one_path_are_refused():
    with pytest.raises(MetricError, match="'eval/loss' is reported twice"):
        read({"loss": 0.5, "eval/loss": 0.25, "eval": {"loss": 0.5}})


def test_what_went_wrong_in_computing_a_number_is_told_and_not_taken_for_its_shape():
    """As on a GPU, where a failed kernel is heard of only when a number is asked for."""
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match="meta"):
        plain("loss", torch.empty((), device="meta"))


@pytest.mark.parametrize(
    "value",
    [[{"a": 1}], {1}, 1 + 2j, np.complex64(1), object(), b"x", np.datetime64("2020-01-01")],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_stored_is_refused_by_name_and_type(value):
    with pytest.raises(MetricError) as refused:
        plain("m", value)
    assert "'m'" in refused.value.message
    assert "checkpoint" in refused.value.hint


class Frame:
    """As a data frame of pandas, with a shape and no list."""

    shape = (2, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda torch: Frame(),
        lambda torch: torch.eye(2).to_sparse(),
        lambda torch: torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged),
    ],
    ids=["data frame", "sparse", "nested"],
)
def test_what_has_a_shape_and_cannot_be_listed_is_refused_by_name(make):
    torch = pytest.importorskip("torch")
    value = make(torch)
    with pytest.raises(MetricError, match="metric 'm' is a"):
        plain("m", value)
    assert not is_number(value)


def test_a_long_value_is_not_quoted_whole():
    with pytest.raises(MetricError) as refused:
        plain("m", b"x" * 10_000)
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("value", [1, 2.5, 0, -3])
def test_the_runs_metric_is_a_float(value):
    assert number("loss", value) == value
    assert type(number("loss", value)) is float


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_diverged_metric_is_refused_and_says_so(value):
    with pytest.raises(MetricError) as refused:
        number("loss", value)
    assert "diverged" in refused.value.message
    assert "search space" in refused.value.hint


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5]], ids=repr)
def test_the_runs_metric_must_be_a_number(value):
    with pytest.raises(MetricError, match="not a number"):
        number("loss", value)


def test_an_integer_too_large_for_a_float_is_refused_like_infinity():
    with pytest.raises(MetricError):
        number("loss", 10**400)


def test_a_report_is_written_with_everything_it_says():
    value, event = read({"loss": np.float32(0.5), "note": "ok"}, step=4)
    assert value == 0.5
    assert event == {
        "event": "report",
        "time": 12.5,
        "trial": 7,
        "step": 4,
        "metrics": {"loss": 0.5, "note": "ok"},
    }


def test_a_report_is_one_line():
    *_, line = read_report({"loss": 1.0, "note": "two\nlines\r\u2028"}, "loss", True, 0, 1, 0.0)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line)["metrics"]["note"] == "two\nlines\r\u2028"


def test_a_report_may_be_in_any_script():
    _, event = read({"loss": 1.0, "größe": "ü 漢 🚀"})
    assert event["metrics"]["größe"] == "ü 漢 🚀"


def test_a_string_that_is_no_unicode_text_is_a_metric_error_or_written():
    # Such a string is what os.fsdecode() makes of a file name in another encoding.
    try:
        _, event = read({"loss": 1.0, "file": "a\udcff"})
    except MetricError:
        return
    assert event["metrics"]["file"]


def test_nan_is_allowed_in_other_metrics():
    value, event = read({"loss": 1.0, "grad": math.nan, "max": math.inf})
    assert value == 1.0
    assert math.isnan(event["metrics"]["grad"])
    assert event["metrics"]["max"] == math.inf


def test_a_later_report_may_leave_out_the_metric():
    value, event = read({"grad": 2.0})
    assert math.isnan(value)
    assert event["metrics"] == {"grad": 2.0}


def test_the_first_report_without_the_metric_lists_what_it_has():
    with pytest.raises(UnknownMetric) as unknown:
        read({"train_loss": 1.0, "epoch": 2}, is_first=True)
    assert "metric='loss'" in unknown.value.message
    assert "'train_loss', 'epoch'" in unknown.value.message
    assert "metric=" in unknown.value.hint


def test_an_empty_first_report_has_nothing():
    with pytest.raises(UnknownMetric, match="which has nothing"):
        read({}, is_first=True)


@pytest.mark.parametrize("step", [-1, 1.5, float("nan"), "3", 2**63, [1]], ids=repr)
def test_what_is_no_whole_number_is_no_step(step):
    with pytest.raises(MetricError) as refused:
        whole_step(step)
    assert f"step={step!r}" in refused.value.message


@pytest.mark.parametrize("step", [0, 3.0, np.int64(3), True])
def test_whole_numbers_of_any_kind_are_steps(step):
    assert whole_step(step) == int(step)


@pytest.mark.parametrize("metrics", [0.5, [("loss", 0.5)], None, "loss"], ids=repr)
def test_a_report_that_is_no_dict_is_refused(metrics):
    with pytest.raises(MetricError) as refused:
        read(metrics)
    assert repr(metrics) in refused.value.message
    assert "report({'loss': 0.1})" in refused.value.hint


def test_names_that_are_no_strings_become_strings():
    assert read({"loss": 1.0, 5: 2.0})[1]["metrics"] == {"loss": 1.0, "5": 2.0}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_to_the_last_bit(value):
    got, event = read({"loss": value})
    assert got == value
    assert event["metrics"]["loss"] == value


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.one_of(
            st.floats(), st.integers(), st.booleans(), st.none(), st.text(st.characters(exclude_categories=["Cs"]))
        ),
    )
)
def test_whatever_is_reported_reads_back(metrics):
    metrics.pop("loss", None)
    _, event = read(metrics)
    # As text, in which NaN equals NaN.
    assert json.dumps(event["metrics"]) == json.dumps(metrics)


@pytest.mark.parametrize(("value", "kept"), [(0.5, 0.5), (math.nan, None), (-math.inf, None)])
def test_a_number_alone_is_a_line_of_the_events_file_whatever_it_is(value, kept):
    event = json.loads(number_line(3, 7, value, 1.5))
    assert event == {"event": "report", "time": 1.5, "trial": 3, "step": 7, "metrics": {"value": kept}}
