"""How measured values follow from estimated ones."""

import pytest

from cotune.driver.calibration import FEW, KEPT, Calibration


def learnt(pairs, slope=1.0):
    calibration = Calibration(slope)
    for trial, (estimated, measured) in enumerate(pairs):
        calibration.learn(trial, estimated, measured)
    return calibration


def test_nothing_is_said_before_a_few_trials_were_measured():
    calibration = Calibration(1.0)
    for count in range(FEW):
        assert calibration.apply(100.0) is None, f"{count} are too few"
        calibration.learn(count, 100.0, 130.0)
    assert calibration.apply(100.0) == pytest.approx(130.0)


def test_a_line_with_slope_and_offset_is_found():
    calibration = learnt([(x, 1.3 * x + 50) for x in (10, 200, 500, 900)])
    for x in (5, 300, 5000):
        assert calibration.apply(x) == pytest.approx(1.3 * x + 50, rel=0.03)


def test_what_was_seen_is_hardly_ever_underestimated():
    pairs = [(x, 1.2 * x + 30 + 20 * (x % 7) / 7) for x in range(10, 400, 7)]
    calibration = learnt(pairs)
    short = [x for x, y in pairs if calibration.apply(x) < y]
    assert len(short) <= 0.05 * len(pairs) + 1


def test_estimates_that_are_all_alike_shift_by_the_difference_and_keep_the_expected_slope():
    calibration = learnt([(100, 140)] * 5)
    assert calibration.apply(100) == pytest.approx(140)
    assert calibration.apply(1100) == pytest.approx(1140)


def test_without_an_expected_slope_the_ratio_of_the_means_is_taken():
    calibration = learnt([(1e9, 2.0)] * 5, slope=None)
    assert calibration.apply(2e9) == pytest.approx(4.0)


def test_bytes_of_large_models_are_counted_exactly():
    gib = 1 << 30
    calibration = learnt([(size * gib, int(size * gib * 1.4) + gib // 4) for size in (8, 12, 16, 24)])
    assert calibration.apply(16 * gib) == pytest.approx(22.65 * gib, rel=0.01)


def test_bytes_of_many_models_are_counted_exactly():
    mib = 1 << 20
    calibration = learnt([((300 + n) * mib, (450 + n) * mib) for n in range(KEPT)])
    assert calibration.apply(600 * mib) == pytest.approx(750 * mib, rel=0.03)


def test_what_falls_while_estimates_grow_is_no_line():
    calibration = learnt([(10, 100), (20, 80), (30, 60), (40, 40)])
    assert calibration.apply(1000) >= 40


def test_estimates_of_nothing_are_no_harm():
    assert learnt([(0, 0)] * 4).apply(0) == 0.0
    assert learnt([(0, 1.0)] * 4, slope=None).apply(5.0) == pytest.approx(1.0)


def test_a_later_measurement_of_a_trial_replaces_the_earlier_one():
    calibration = learnt([(100, 110)] * 5)
    for trial in range(5):
        calibration.learn(trial, 100, 150)
    assert calibration.apply(100) == pytest.approx(150)
    assert learnt([(100, 110)]).apply(100) is None


def test_old_trials_are_forgotten():
    calibration = learnt([(100, 200)] + [(100, 110)] * KEPT)
    assert calibration.apply(100) == pytest.approx(110)
