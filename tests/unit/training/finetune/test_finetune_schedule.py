"""The learning rate's rise and fall, and the early stop."""

from training.finetune.schedule import HeldOut, learning_rate


def test_the_rate_rises_to_its_peak_and_falls_to_almost_nothing() -> None:
    rates = [learning_rate(step, 100, 2.0) for step in range(1, 101)]
    assert rates[4] == max(rates) == 2.0
    assert rates[:5] == sorted(rates[:5])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 < rates[-1] < 0.03
    assert learning_rate(1, 1, 2.0) == 2.0


def test_evaluations_that_are_no_better_end_the_training() -> None:
    held = HeldOut()
    assert not held.ends(2)
    for step, loss in ((10, 2.0), (20, 1.0), (30, 0.99999)):  # the last gain is too small to count
        held = held.after(loss, step)
    assert (held.best, held.best_step, held.worse) == (1.0, 20, 1)
    assert not held.ends(2)
    assert not held.is_best(30)
    held = held.after(1.5, 40)
    assert held.ends(2)
    assert not held.ends(0)
    held = held.after(0.5, 50)
    assert not held.ends(2)
    assert held.is_best(50)
