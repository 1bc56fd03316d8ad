"""What recording costs in memory; that its numbers are right is shown by tests/test_tracing.py."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from floatscope.probe.attention import Geometry
from floatscope.probe.kernel import Inputs, LayerStatistics, Visible
from floatscope.probe.recording import CausalRecorder, Plan
from floatscope.traces import kept_arrays

HEADS, TOKENS, GROUPS, SETS = 4, 80, 12, 3


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that an operation made anew."""

    def __init__(self, *given):
        super().__init__()
        self.given = {tensor.untyped_storage().data_ptr() for tensor in given}
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in self.given:
                self.elements = max(self.elements, one.untyped_storage().nbytes() // one.element_size())
        return found


def largest_tensor(answer):
    """While one layer of an ARM becomes `answer` steps, on a canvas of always the same size."""
    prompt, inputs = TOKENS - answer, TOKENS - 1
    groups = torch.cat([torch.arange(prompt) * (GROUPS - 2) // prompt, torch.full((answer,), GROUPS - 1)])
    slots, columns = torch.arange(prompt, TOKENS), torch.ones(TOKENS, SETS)
    plan = Plan(groups, slots, GROUPS, GROUPS - 2, GROUPS - 1, columns, kept_arrays("compact"))
    sums = torch.rand(HEADS, GROUPS + answer - 1, inputs)
    rows = (torch.zeros(HEADS, answer, 1, dtype=torch.long), torch.zeros(HEADS, answer, 1))
    statistics = LayerStatistics(sums, *rows, torch.zeros(HEADS, answer, SETS), torch.zeros(HEADS, answer))
    query, key, value = torch.rand(3, HEADS, inputs, 4)
    visible = Visible(causal=True)
    recorder = CausalRecorder(plan, layers=1)
    layout = recorder.layout()
    geometry = Geometry(Inputs(query, key, value, 0.5), visible, layout, *visible.intervals(layout))
    with Largest(sums, query) as largest:
        recorder.layer(0, statistics, geometry)
    return largest.elements


def test_unrolling_an_arm_makes_nothing_that_grows_with_its_steps():
    assert largest_tensor(64) <= max(largest_tensor(4), HEADS * GROUPS * TOKENS)
