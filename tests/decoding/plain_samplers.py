"""The samplers once more, one sample at a time, in plain loops: what the batched ones are compared with.

Noise comes from a torch generator of the sample's seed, in the order that the loops show.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tests.decoding.decoding_models import MASK, Logits

Row = NDArray[np.float64]


@dataclass
class PlainStep:
    canvas: list[int]
    confidence: dict[int, float]
    """Of each slot that committed, by its number in the answer."""


def softmax(row: Row) -> Row:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def without_mask(row: NDArray[np.floating], mask_is_candidate: bool = False) -> Row:
    clean = row.astype(np.float64)
    if not mask_is_candidate:
        clean[MASK] = -np.inf
    return clean


def uniform(stream: torch.Generator, *shape: int) -> Row:
    return torch.rand(shape, generator=stream, dtype=torch.float64).numpy()


def chosen_slots(preference: dict[int, float], ends: dict[int, bool], number: int) -> list[int]:
    return sorted(preference, key=lambda slot: (ends[slot], -preference[slot], slot))[:number]


def llada(
    logits: Logits,
    prompt: Sequence[int],
    steps: int,
    length: int,
    block: int,
    temperature: float = 0.0,
    remasking: str = "low_confidence",
    cfg: float = 0.0,
    hold_eos: bool = False,
    seed: int = 0,
    eos_ids: Sequence[int] = (),
    from_canvas: bool = False,
    mask_is_candidate: bool = False,
) -> list[PlainStep]:
    stream = torch.Generator().manual_seed(seed)
    canvas = [*prompt, *[MASK] * length]
    start = 0 if from_canvas else len(prompt)
    block_of = [(len(prompt) + slot - start) // block for slot in range(length)]
    steps_per_block = steps // (length // block)
    done = []
    for number in sorted(set(block_of)):
        in_block = block_of.count(number)
        for step in range(steps_per_block):
            quota = in_block // steps_per_block + (1 if step < in_block % steps_per_block else 0)
            masked = [s for s in range(length) if block_of[s] <= number and canvas[len(prompt) + s] == MASK]
            if not masked or not quota:
                continue
            rows = logits(canvas).astype(np.float64)
            if cfg > 0:
                bare = logits([*[MASK] * len(prompt), *canvas[len(prompt) :]]).astype(np.float64)
                rows = bare + (cfg + 1) * (rows - bare)
            clean = [without_mask(rows[len(prompt) + slot], mask_is_candidate) for slot in masked]
            noisy = clean
            if temperature > 0:
                noise = uniform(stream, len(masked), len(clean[0]))
                noisy = [np.exp(row) / (-np.log(u)) ** temperature for row, u in zip(clean, noise, strict=True)]
            tokens = {slot: int(np.argmax(row)) for slot, row in zip(masked, noisy, strict=True)}
            confidence = {s: float(softmax(row)[tokens[s]]) for s, row in zip(masked, clean, strict=True)}
            if remasking == "random":
                confidence = dict(zip(masked, torch.rand(len(masked), generator=stream).tolist(), strict=True))
            ends = {slot: hold_eos and tokens[slot] in eos_ids for slot in masked}
            commits = chosen_slots(confidence, ends, quota)
            for slot in commits:
                canvas[len(prompt) + slot] = tokens[slot]
            done.append(PlainStep(list(canvas), {slot: confidence[slot] for slot in commits}))
    return done


def likely(row: Row, temperature: float, top_p: float | None, top_k: int | None) -> Row:
    """Temperature, then top_p, then top_k."""
    row = row / temperature if temperature > 0 else row.copy()
    if top_p is not None and top_p < 1:
        probabilities, total = softmax(row), 0.0
        for token in np.argsort(-row, kind="stable"):
            if total > top_p:
                row[token] = -np.inf
            total += probabilities[token]
    if top_k is not None:
        for token in np.argsort(-row, kind="stable")[top_k:]:
            row[token] = -np.inf
    return row


def dream(
    logits: Logits,
    prompt: Sequence[int],
    steps: int,
    length: int,
    alg: str,
    eps: float = 1e-3,
    temperature: float = 0.0,
    top_p: float | None = None,
    top_k: int | None = None,
    alg_temp: float | None = None,
    hold_eos: bool = False,
    seed: int = 0,
    eos_ids: Sequence[int] = (),
    mask_is_candidate: bool = False,
) -> list[PlainStep]:
    stream = torch.Generator().manual_seed(seed)
    canvas = [*prompt, *[MASK] * length]
    times = torch.linspace(1, eps, steps + 1)
    done = []
    for step in range(steps):
        masked = [slot for slot in range(length) if canvas[len(prompt) + slot] == MASK]
        if not masked:
            break
        share = 1 - times[step + 1] / times[step]
        raw = logits(canvas)
        if alg == "origin":
            chance = 1.0 if step == steps - 1 else float(share)
            draws = uniform(stream, len(masked))
            masked = [slot for slot, draw in zip(masked, draws, strict=True) if draw < chance]
        clean = {slot: without_mask(raw[len(prompt) + slot], mask_is_candidate) for slot in masked}
        rows = {slot: likely(row, temperature, top_p, top_k) for slot, row in clean.items()}
        noise = np.zeros((len(masked), raw.shape[1]))
        if temperature > 0 and masked:
            noise = -np.log(-np.log(uniform(stream, len(masked), raw.shape[1])))
        tokens = {s: int(np.argmax(rows[s] + extra)) for s, extra in zip(masked, noise, strict=True)}
        confidence = {}
        for slot in masked:
            probabilities = softmax(rows[slot])
            if alg == "topk_margin":
                confidence[slot] = float(np.sort(probabilities)[-1] - np.sort(probabilities)[-2])
            elif alg == "entropy":
                confidence[slot] = sum(p * math.log(p + 1e-10) for p in probabilities)
            else:
                confidence[slot] = float(probabilities[tokens[slot]])
        commits = masked
        if alg != "origin":
            number = len(masked) if step == steps - 1 else int(len(masked) * share)
            preference = dict(confidence)
            if alg_temp:
                for slot, u in zip(masked, uniform(stream, len(masked)), strict=True):
                    preference[slot] = confidence[slot] / alg_temp - math.log(-math.log(u))
            commits = chosen_slots(preference, {s: hold_eos and tokens[s] in eos_ids for s in masked}, number)
        for slot in commits:
            canvas[len(prompt) + slot] = tokens[slot]
        done.append(PlainStep(list(canvas), {slot: confidence[slot] for slot in commits}))
    return done


def threshold(
    logits: Logits,
    prompt: Sequence[int],
    length: int,
    threshold: float,
    block: int,
    hold_eos: bool = False,
    eos_ids: Sequence[int] = (),
    from_canvas: bool = False,
) -> list[PlainStep]:
    canvas = [*prompt, *[MASK] * length]
    start = 0 if from_canvas else len(prompt)
    done = []
    while MASK in canvas[len(prompt) :]:
        masked = [slot for slot in range(length) if canvas[len(prompt) + slot] == MASK]
        current = (len(prompt) + masked[0] - start) // block
        masked = [slot for slot in masked if (len(prompt) + slot - start) // block == current]
        rows = logits(canvas)
        clean = {slot: without_mask(rows[len(prompt) + slot]) for slot in masked}
        tokens = {slot: int(np.argmax(clean[slot])) for slot in masked}
        confidence = {slot: float(softmax(clean[slot])[tokens[slot]]) for slot in masked}
        candidates = [slot for slot in masked if not (hold_eos and tokens[slot] in eos_ids)] or masked
        commits = [slot for slot in candidates if confidence[slot] > threshold]
        commits = commits or [max(candidates, key=lambda slot: (confidence[slot], -slot))]
        for slot in commits:
            canvas[len(prompt) + slot] = tokens[slot]
        done.append(PlainStep(list(canvas), {slot: confidence[slot] for slot in commits}))
    return done


def fast_dllm(
    logits: Logits, prompt: Sequence[int], length: int, threshold: float, block: int, small_block: int
) -> list[list[int]]:
    """Fast-dLLM v2: the first token of a block comes from the pass over the block before; then small blocks in turn,
    each until it is full. The canvas after every step; blocks are counted from its first token."""
    canvas = [*prompt, *[MASK] * length]
    done = []
    for start in range(0, len(canvas), block):
        stop = min(start + block, len(canvas))
        if start >= len(prompt):
            canvas[start] = int(np.argmax(without_mask(logits(canvas)[start])))
            done.append(list(canvas))
        for left in range(start, stop, small_block):
            right = min(left + small_block, stop)
            while MASK in canvas[left:right]:
                rows = logits(canvas)
                places = [place for place in range(left, right) if canvas[place] == MASK]
                best = {place: without_mask(rows[place]) for place in places}
                sure = {place: float(softmax(row).max()) for place, row in best.items()}
                for place in places:
                    if sure[place] > threshold or place == max(places, key=lambda p: (sure[p], -p)):
                        canvas[place] = int(np.argmax(best[place]))
                done.append(list(canvas))
    return done


def llada2(
    logits: Callable[[list[int], int], NDArray[np.floating]],
    prompt: Sequence[int],
    length: int,
    threshold: float,
    block: int,
    steps: int | None = None,
    edit_threshold: float | None = None,
    edit_steps: int = 16,
    mask: int = MASK,
    mask_is_candidate: bool = False,
) -> list[list[int]]:
    """LLaDA2: the canvas is filled up to whole blocks, and each block until it is full; the canvas after every step.

    2.0 has an even share of the block as the least of every step and leaves a block after its steps, with what chose
    the mask token still masked; 2.1 has one slot as the least, and edits what it has committed.
    `logits(canvas, stop)` are those of the canvas up to the end of the block.
    """
    total = -(-(len(prompt) + length) // block) * block
    canvas = [*prompt, *[mask] * (total - len(prompt))]
    steps = block if steps is None else min(steps, length)
    done = []
    for start in range(len(prompt) // block * block, total, block):
        own = range(max(start, len(prompt)), start + block)
        step = only_edits = 0
        while True:
            masked = [place for place in own if canvas[place] == mask]
            if (not masked and edit_threshold is None) or (mask_is_candidate and step == steps):
                break
            only_edits += not masked
            if only_edits > edit_steps:
                break
            rows = logits(canvas, start + block).astype(np.float64)
            rows[:, mask] = rows[:, mask] if mask_is_candidate else -np.inf
            best = {place: int(np.argmax(rows[place])) for place in own}
            sure = {place: float(softmax(rows[place]).max()) for place in own}
            least = block // steps + (step < block % steps)
            commits = [place for place in masked if sure[place] > threshold]
            if len(commits) < least:
                commits = sorted(masked, key=lambda place: (-sure[place], place))[:least]
            edits = []
            if edit_threshold is not None:
                held = [place for place in own if place not in masked]
                edits = [p for p in held if sure[p] > edit_threshold and best[p] != canvas[p]]
            for place in commits + edits:
                canvas[place] = best[place]
            done.append(list(canvas))
            step += 1
            if not masked and not edits:
                break
    return done
