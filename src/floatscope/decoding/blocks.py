"""Blocks of answer slots, filled left to right, and how many slots each of their steps commits."""

from itertools import pairwise

from floatscope.errors import UserError


def check_division(owner: str, length: int, block: int, steps: int | None = None) -> None:
    """`block` divides `length`, and the number of blocks divides `steps`."""
    if length % block:
        raise UserError(
            f"{owner}: length={length} is not a multiple of block={block}: choose a length such as"
            f" {(length // block + 1) * block}, or another block."
        )
    blocks = length // block
    if steps is not None and steps % blocks:
        raise UserError(
            f"{owner}: steps={steps} do not divide among {blocks} blocks of {block} slots: choose"
            f" steps such as {(steps // blocks + 1) * blocks}."
        )


def resolve_block(owner: str, length: int, block: int | None, family_block: int | None) -> int:
    """The block size to decode with: the family's (no other is accepted), else the given, else `length`."""
    if family_block is None:
        return length if block is None else block
    if block not in (None, family_block):
        raise UserError(
            f"{owner}: block={block}, but this model is block-causal with blocks of {family_block}: use"
            f" block={family_block} or leave block out."
        )
    return family_block


def answer_blocks(length: int, block: int, first_slot: int, family_block: int | None) -> list[range]:
    """The answer slots of each block, in order.

    In a block-causal family blocks are counted from canvas position 0, so the prompt's tail shares the first
    answer block: that one then is partial, and so is the last. Elsewhere they count from the first slot.
    """
    taken = first_slot % block if family_block else 0
    edges = [0, *range(block - taken, length, block), length]
    return [range(start, stop) for start, stop in pairwise(edges)]


def quotas(masked: int, steps: int, each: int | None = None) -> list[int]:
    """Slots to commit at each step of a block: `masked // steps`, the remainder to the first steps, until all are.

    Or `each` at every step, what is left at the last.
    """
    if each is not None:
        return [min(each, masked - start) for start in range(0, masked, each)]
    least, rest = divmod(masked, steps)
    return [least + (step < rest) for step in range(min(steps, masked))]
