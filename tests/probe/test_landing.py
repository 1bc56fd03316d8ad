"""The copy of a step's arrays from a device, with the host's memory as the device."""

import numpy as np
import torch

from floatscope.probe.landing import Landing


class FromAnywhere(Landing):
    """Sends what is on the host too: there is no other device in tests."""

    def leaves(self, one):
        return True


def test_what_was_sent_lands_whole_whatever_its_type_and_order():
    rng = np.random.default_rng(0)
    landing, steps = FromAnywhere(), []
    for step in range(3):  # the buffer is used again, and grows
        given = {
            "masses": torch.from_numpy(rng.normal(size=(2, 3 + step))).float().t(),  # not contiguous
            "keys": torch.from_numpy(rng.integers(0, 9, (5, step))),
            "flags": torch.from_numpy(rng.random(7) < 0.5),
            "half": torch.from_numpy(rng.normal(size=(3,))).half(),
        }
        held = [dict(list(given.items())[:2]), dict(list(given.items())[2:])]
        landing.send(held)
        steps.append((given, held))
    landing.land()
    landing.land()  # nothing is due any more
    for given, held in steps:
        for name, one in (held[0] | held[1]).items():
            assert one.dtype == given[name].dtype and torch.equal(one, given[name]), name


def test_what_is_on_the_host_is_left_alone():
    held = {"a": torch.ones(3)}
    same = held["a"]
    Landing().send([held])
    assert held["a"] is same
