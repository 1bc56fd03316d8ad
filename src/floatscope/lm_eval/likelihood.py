"""How likely a model finds a continuation: masked Monte Carlo for MDMs, the chain rule for ARMs. No harness here.

For an MDM, log p(r | c) of L tokens r after a context c is bounded from below by (arXiv 2502.09992, equation 6)

    the mean, over l ~ U{1..L} and S a random set of l of the L positions, of
    L/l * sum over i in S of log p(r_i | c, r with S masked)

and estimated by the mean of `samples` draws. Where there are no more than that many sets S all are taken, each with its
probability, and the value is exact. Under block-causal visibility the blocks of the continuation follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, pairwise
from math import comb

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope.models.model import Model
from floatscope.qa.stressors import derived_seed


@dataclass(frozen=True)
class Pair:
    """A context and the continuation to score, as token ids; the context has one token at least."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


@dataclass(frozen=True)
class _Row:
    """One canvas to run: what its scored positions add to the value of a pair."""

    pair: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    targets: NDArray[np.int64]
    weight: float


def log_likelihoods(
    model: Model, pairs: Sequence[Pair], samples: int = 128, seed: int = 0, batch_size: int = 8
) -> list[float]:
    """The log-likelihood (ARM) or its bound (MDM) of each continuation, in nats.

    The draws for a pair follow from the seed and its tokens, not from its place.
    """
    values = [0.0] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda place: -len(pairs[place].context) - len(pairs[place].continuation))
    rows = (row for place in order for row in _rows(model, place, pairs[place], samples, seed))
    with torch.inference_mode():
        while batch := list(islice(rows, batch_size)):
            for row, value in zip(batch, _scores(model, batch), strict=True):
                values[row.pair] += row.weight * value
    return values


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
        name = ",".join(map(str, whole[:stop]))
        rng = np.random.default_rng(derived_seed(seed, str(first), name))
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


def _scores(model: Model, rows: Sequence[_Row]) -> list[float]:
    """For each row the sum of log p over its positions."""
    width, most = max(len(row.tokens) for row in rows), max(len(row.positions) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    pads = torch.tensor([width - len(row.tokens) for row in rows])
    positions = torch.zeros(len(rows), most, dtype=torch.long)
    for number, (row, pad) in enumerate(zip(rows, pads.tolist(), strict=True)):
        tokens[number, pad:] = torch.from_numpy(row.tokens)
        positions[number] = pad + int(row.positions[0])  # a row with fewer repeats its first
        positions[number, : len(row.positions)] = pad + torch.from_numpy(row.positions)
    logits = model.forward(tokens, pads, model.rows(positions, pads)).float().cpu()  # [B, N, V]
    sums = []
    for row, own in zip(rows, logits, strict=True):
        own = own[: len(row.positions)].log_softmax(dim=-1)
        sums.append(float(own.gather(1, torch.from_numpy(row.targets)[:, None]).double().sum()))
    return sums
