"""Blocks and quotas: they cover every slot once and add up, for all sizes."""

from hypothesis import given
from hypothesis import strategies as st

from floatscope.decoding.blocks import answer_blocks, quotas


@given(block=st.integers(1, 9), blocks=st.integers(1, 5), prompt=st.integers(1, 30), block_causal=st.booleans())
def test_blocks_partition_the_answer_at_the_edges_of_the_canvas_or_of_the_answer(block, blocks, prompt, block_causal):
    length = block * blocks
    found = answer_blocks(length, block, prompt, block if block_causal else None)
    assert [slot for slots in found for slot in slots] == list(range(length))
    assert all(len(slots) > 0 for slots in found)
    start = 0 if block_causal else prompt
    for slots in found:
        assert len({(prompt + slot - start) // block for slot in slots}) == 1
    assert len(found) == len({(prompt + slot - start) // block for slot in range(length)})


@given(masked=st.integers(0, 70), steps=st.integers(1, 40))
def test_quotas_sum_to_the_masked_slots_never_rise_and_end_with_the_last_slot(masked, steps):
    each = quotas(masked, steps)
    assert (len(each), sum(each)) == (min(steps, masked), masked)
    assert min(each, default=1) > 0
    assert max(each, default=0) - min(each, default=0) <= 1
    assert each == sorted(each, reverse=True)


def test_more_steps_than_slots_cost_nothing():
    assert quotas(3, 10**12) == [1, 1, 1]
