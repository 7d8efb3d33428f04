"""The learning rate: up once, down once, and where the paper has it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uncollapse.training.schedule import RateSchedule

PEAK, LOW = 6.25e-5, 1e-6


@st.composite
def settings(draw):
    warmup, decay, cooldown = (draw(st.integers(0, 40)) for _ in range(3))
    peak = draw(st.floats(1e-5, 1.0))
    low = st.floats(0.0, peak)
    shape = draw(st.sampled_from(["cosine", "linear", "constant"]))
    steps = max(1, warmup + decay + cooldown)
    return {
        "peak": peak, "steps": steps, "warmup": warmup, "cooldown": cooldown, "floor": draw(low), "start": draw(low),
        "decay": shape,
    }  # fmt: skip


@given(settings())
def test_rises_in_the_warm_up_and_never_again(case):
    rates = [RateSchedule(**case).rate(step) for step in range(case["steps"] + 50)]
    rounding = 1e-12 * case["peak"]
    warmup = case["warmup"]
    rising, falling = rates[: warmup + 1], rates[warmup:]
    if case["cooldown"] < case["steps"] - warmup:  # otherwise there is no update at the peak
        assert all(b >= a - rounding for a, b in pairwise(rising))
    assert all(b <= a + rounding for a, b in pairwise(falling))
    assert max(rates) <= case["peak"] + rounding
    assert min(rates) >= min(case["start"], case["floor"]) - rounding


@given(settings())
def test_stays_at_the_floor_from_the_cool_down_on(case):
    if case["decay"] == "constant":
        assert RateSchedule(**case).rate(case["steps"] + 7) == case["peak"]
        return
    for step in (case["steps"] - case["cooldown"], case["steps"], 10 * case["steps"] + 3):
        assert RateSchedule(**case).rate(step) == pytest.approx(case["floor"], abs=1e-12 * case["peak"])


def test_the_image_recipe_of_the_paper():
    epoch = 10
    paper = RateSchedule(peak=PEAK, steps=300 * epoch, warmup=20 * epoch, cooldown=10 * epoch)
    assert paper.rate(0) == LOW
    assert paper.rate(20 * epoch) == PEAK
    assert paper.rate(10 * epoch) == pytest.approx((PEAK + LOW) / 2)
    assert paper.rate((20 + 135) * epoch) == pytest.approx((PEAK + LOW) / 2)
    assert {paper.rate(step) for step in range(290 * epoch, 310 * epoch)} == {LOW}


@pytest.mark.parametrize("decay", ["cosine", "linear", "constant"])
def test_the_scheduler_sets_the_rates_and_can_be_resumed(decay, tmp_path):
    schedule = RateSchedule(peak=0.1, steps=12, warmup=3, cooldown=2, decay=decay)

    def start():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        return optimizer, schedule.scheduler(optimizer)

    optimizer, scheduler = start()
    rates = []
    for step in range(15):
        if step == 6:
            torch.save(scheduler.state_dict(), tmp_path / "scheduler.pt")
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([schedule.rate(step) for step in range(15)])
    _, resumed = start()
    resumed.load_state_dict(torch.load(tmp_path / "scheduler.pt", weights_only=True))
    resumed.optimizer.step()
    resumed.step()
    assert resumed.get_last_lr()[0] == rates[7]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"warmup": 8, "cooldown": 3}, "exceed the 10 steps"),
        ({"floor": 0.2}, "at least floor and start"),
        ({"decay": "step"}, "one of cosine, linear, constant"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        RateSchedule(**({"peak": 0.1, "steps": 10} | change))


def test_transformers_cosine_rises_again_and_this_one_does_not():
    from transformers import get_cosine_schedule_with_warmup

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    factor = get_cosine_schedule_with_warmup(optimizer, 0, 10).lr_lambdas[0]
    assert math.isclose(factor(20), 1.0)  # why there is a schedule of our own
    assert RateSchedule(peak=1.0, steps=10, floor=0.0).rate(20) == 0.0
