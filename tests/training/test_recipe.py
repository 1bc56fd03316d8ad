"""The learning rate by hand, and numbers that no run can have."""

import pytest

from floatscope.errors import UserError
from floatscope.training.recipe import AdapterRecipe, TwinRecipe, rate_at


def test_the_rate_warms_up_and_falls_to_its_floor():
    recipe = TwinRecipe(steps=100, batch=1, rate=1.0, warmup=10, floor=0.1)
    assert [rate_at(step, recipe) for step in (0, 9, 55, 100)] == pytest.approx([0.1, 1.0, 0.55, 0.1])
    adapter = AdapterRecipe(steps=100, rate=1.0, warmup=20, floor=0.1)
    assert [rate_at(step, adapter) for step in (0, 19, 60, 100)] == pytest.approx([0.05, 1.0, 0.55, 0.1])


def test_a_cooldown_takes_the_rate_to_nothing():
    plain, cooled = (TwinRecipe(steps=80, batch=1, rate=1.0, warmup=10, horizon=100, cooldown=c) for c in (0, 20))
    assert all(rate_at(step, plain) == rate_at(step, cooled) for step in range(61))
    assert rate_at(70, cooled) == pytest.approx(rate_at(70, plain) / 2)
    assert rate_at(80, cooled) == 0.0 < rate_at(80, plain)
    floor = plain.floor  # the cosine goes on to the horizon, whatever the last step is
    assert rate_at(55, plain) == pytest.approx(floor + (1 - floor) / 2)


@pytest.mark.parametrize("name", ["steps", "batch", "rank", "held_out"])
def test_nothing_can_be_trained_with_none(name):
    with pytest.raises(UserError, match=f"{name} is 0: use at least 1"):
        AdapterRecipe(**{name: 0})


def test_every_number_of_a_recipe_has_its_least_and_a_share_its_most():
    for wrong in ({"rate": -1.0}, {"rate": float("nan")}, {"clip": float("inf")}, {"warmup": -1}, {"running": 1.5}):
        ((name, value),) = wrong.items()
        with pytest.raises(
            UserError, match=rf"{name} is {value}: use at least 0{', at most 1' * (name == 'running')}\.$"
        ):
            AdapterRecipe(**wrong)
    assert TwinRecipe(steps=1, batch=1, rate=0.0, passages=1.0).passages == 1.0
