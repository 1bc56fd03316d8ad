"""How likely a model finds an answer, also while its attention is edited: by replay, or by a Monte Carlo bound.

`replayed` fills the slots with the answer from left to right and adds up what the model gives each token at its commit:
exact for an ARM, and for an MDM the chain rule in that order. `log_likelihoods` scores a continuation without order.
For an ARM it is the chain rule again. For an MDM, log p(r | c) of L tokens r after a context c is bounded from below by
(arXiv 2502.09992, equation 6)

    the mean, over l ~ U{1..L} and S a random set of l of the L positions, of
    L/l * sum over i in S of log p(r_i | c, r with S masked)

and estimated by the mean of `samples` draws. Where there are no more than that many sets S all are taken, each with its
probability, and the value is exact. Under block-causal visibility the blocks of the continuation follow one another.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby, islice, pairwise
from math import comb
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.canvas import COMMITTED, MASKED, Ids, Prompt
from floatscope.decoding import Batch, LLaDASampler
from floatscope.decoding.generation import make_batch
from floatscope.models.edited import EditedModel, Edits, make_editors
from floatscope.models.model import Model, Reading
from floatscope.probe.edits import Edit


@dataclass(frozen=True)
class Pair:
    """A context and the continuation to score, as token ids; the context has one token at least."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]
    prompt: Prompt | None = None
    """The context with its regions, which edits may name; without it all but bos is query."""


@dataclass(frozen=True)
class _Row:
    """One canvas to run: what its scored positions add to the value of a pair."""

    pair: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    targets: NDArray[np.int64]
    weight: float


def replayed(
    model: Model, prompts: Sequence[Prompt], answers: Sequence[Ids], length: int, seeds: Sequence[int],
    edits: Edits = (), donors: Mapping[int, int] | None = None,
) -> list[dict[str, float]]:  # fmt: skip
    """Of each prompt with `length` slots, the `log_probability` of its answer in nats, a slot per step from the left.

    Under edits also `kl`, the mean over the slots that are open at step 0 of KL(unedited || edited), in nats, and
    `removed`, the share of attention that hidden keys held before they were hidden, over layers and steps.
    `donors`: for samples with an edit that patches, the place of the sample they are patched from, before their own.
    """
    sampler = model.sampler({"order": "left-to-right", "tokens_per_step": 1, "steps": length}, length=length)
    fill = model.eos_ids[0] if model.eos_ids else 0
    padded = [np.concatenate([answer, np.full(length - len(answer), fill)]).astype(np.int64) for answer in answers]
    canvases = [
        replace(prompt.with_slots(length), answer=tokens) for prompt, tokens in zip(prompts, padded, strict=True)
    ]
    batch = make_batch(model, canvases, sampler, seeds, replay=True)
    editors = make_editors(model, canvases, edits, sampler, batch) if edits else []
    for editor in editors:
        editor.measures = True
    found, readings = [{"log_probability": 0.0} for _ in answers], deque[Reading](maxlen=1)
    with torch.no_grad(), model.listening(readings.append):
        edited = EditedModel(model, editors, donors)
        for step in islice(sampler.decode(edited if editors else model, batch), max(map(len, answers))):
            for sample, answer in enumerate(answers):
                if step.index < len(answer):
                    chance = max(float(step.confidence[sample, step.index]), np.finfo(np.float32).tiny)
                    found[sample]["log_probability"] += float(np.log(chance))
            if edited.unedited is not None and step.index == 0:
                for one, apart in zip(found, _divergence(model, edited.unedited, readings[0]), strict=True):
                    one["kl"] = apart
    for one, editor in zip(found, editors, strict=False):
        if editor.removed:
            one["removed"] = float(np.mean(editor.removed))
    return found


def _divergence(model: Model, unedited: Tensor, edited: Reading) -> list[float]:
    """Per sample the mean of KL(unedited || edited) over the positions of a reading at step 0."""

    def logs(logits: Tensor) -> Tensor:
        own = logits.float().cpu().clone()
        if model.mask_id is not None:
            own[..., model.mask_id : model.mask_id + 1] = -1e9  # no text has it; not -inf, whose difference is nan
        return own.log_softmax(-1)

    before, after = logs(unedited), logs(edited.logits)
    apart = (before.exp() * (before - after)).sum(-1).double()  # [B, N]
    counts = [len(set(own)) for own in edited.columns.tolist()]  # a row with fewer repeats its first
    return [float(own[:count].mean()) for own, count in zip(apart, counts, strict=True)]


def log_likelihoods(
    model: Model,
    pairs: Sequence[Pair],
    samples: int = 128,
    seed: int = 0,
    batch_size: int = 8,
    edits: Sequence[Edit] = (),
) -> list[float]:
    """The log-likelihood (ARM) or its bound (MDM) of each continuation, in nats.

    The draws for a pair follow from the seed and its tokens, not from its place. An edit acts on every masked canvas as
    on a step 0; an ARM's continuation is replayed under it.
    """
    if edits and model.is_arm:
        return [_replayed_pair(model, pair, seed, edits) for pair in pairs]
    values = [0.0] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda place: -len(pairs[place].context) - len(pairs[place].continuation))
    rows = (row for place in order for row in _rows(model, place, pairs[place], samples, seed))
    groups: Any = [rows]
    if edits:  # canvases of one pair have their slots at the same places
        groups = (group for _, group in groupby(rows, key=lambda row: (row.pair, len(row.tokens))))
    with torch.inference_mode():
        for group in groups:
            while batch := list(islice(group, batch_size)):
                pair, slots = pairs[batch[0].pair], len(batch[0].tokens) - len(pairs[batch[0].pair].context)
                canvas = _prompt(model, pair).with_slots(slots) if edits else None
                for row, value in zip(batch, _scores(model, batch, canvas, edits, seed), strict=True):
                    values[row.pair] += row.weight * value
    return values


def _prompt(model: Model, pair: Pair) -> Prompt:
    """The context with the regions that are known of it."""
    return pair.prompt or Prompt.bare(pair.context, getattr(model.config, "bos_token_id", None))


def _replayed_pair(model: Model, pair: Pair, seed: int, edits: Sequence[Edit]) -> float:
    if not pair.continuation:
        return 0.0
    answer = np.array(pair.continuation, dtype=np.int64)
    return replayed(model, [_prompt(model, pair)], [answer], len(answer), [seed], edits)[0]["log_probability"]


def _rows(model: Model, place: int, pair: Pair, samples: int, seed: int) -> Iterator[_Row]:
    if not pair.continuation:
        return
    start, whole = len(pair.context), np.array(pair.context + pair.continuation, dtype=np.int64)
    if model.mask_id is None:
        yield _Row(place, whole, np.arange(start, len(whole)), whole[start:], 1.0)
        return
    edges = [start, len(whole)]
    if model.block is not None:  # blocks, counted from position 0, are filled one after the other
        edges[1:1] = range((start // model.block + 1) * model.block, len(whole), model.block)
    for first, stop in pairwise(edges):
        rng = np.random.default_rng([seed, first, *whole[:stop].tolist()])
        for hidden, weight in _maskings(stop - first, samples, rng):
            positions = first + hidden
            tokens = whole[:stop].copy()
            tokens[positions] = model.mask_id
            yield _Row(place, tokens, positions, whole[positions], weight)


def _maskings(length: int, samples: int, rng: np.random.Generator) -> Iterator[tuple[NDArray[np.int64], float]]:
    """Sets of positions to mask, each with its weight: L/l times its share of the mean."""
    if 2**length - 1 <= samples:
        for size in range(1, length + 1):
            for chosen in combinations(range(length), size):
                yield np.array(chosen), 1 / (size * comb(length, size))  # L/l * 1/L * 1/C(L, l)
        return
    # One l from each of `samples` equal parts of [0, 1): every l is uniform, and they are spread evenly.
    spread = (rng.random() + np.arange(samples)) / samples % 1
    for size in 1 + (spread * length).astype(np.int64):
        yield np.sort(rng.permutation(length)[:size]), length / (size * samples)


def _scores(
    model: Model, rows: Sequence[_Row], canvas: Prompt | None = None, edits: Sequence[Edit] = (), seed: int = 0
) -> list[float]:
    """For each row the sum of log p over its positions; under edits all rows are maskings of one canvas."""
    width, most = max(len(row.tokens) for row in rows), max(len(row.positions) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    pads = torch.tensor([width - len(row.tokens) for row in rows])
    positions = torch.zeros(len(rows), most, dtype=torch.long)
    for number, (row, pad) in enumerate(zip(rows, pads.tolist(), strict=True)):
        tokens[number, pad:] = torch.from_numpy(row.tokens)
        positions[number] = pad + int(row.positions[0])  # a row with fewer repeats its first
        positions[number, : len(row.positions)] = pad + torch.from_numpy(row.positions)
    if canvas is None:
        logits = model.forward(tokens, pads, model.rows(positions, pads))  # [B, N, V]
    else:
        assert canvas.slots is not None and model.mask_id is not None
        slots = torch.as_tensor(canvas.slots).expand(len(rows), -1)
        state = torch.where(tokens.gather(1, slots) == model.mask_id, MASKED, COMMITTED).to(torch.uint8)
        batch = Batch(tokens, pads, slots, state, (seed,) * len(rows))
        sampler = LLaDASampler(steps=slots.shape[1], length=slots.shape[1])
        logits = EditedModel(model, make_editors(model, [canvas] * len(rows), edits, sampler, batch)).score(
            batch, positions
        )
    logits = logits.float().cpu()
    sums = []
    for row, own in zip(rows, logits, strict=True):
        own = own[: len(row.positions)].log_softmax(dim=-1)
        sums.append(float(own.gather(1, torch.from_numpy(row.targets)[:, None]).double().sum()))
    return sums
