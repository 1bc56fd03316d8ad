"""A surrogate of the answer's log-probability: random halves of the sentences hidden, a sparse linear fit.

After ContextCite (arXiv 2409.00729), which cuts the sentences; here they are hidden at their positions. The weight of a
sentence is its score, a document's is the sum of its sentences'.
"""

import numpy as np

from floatscope.attribution.attributed import Scores
from floatscope.attribution.case import Array, Case


def surrogate(case: Case, draws: int = 32, penalty: float = 0.01) -> Scores:
    """`draws` sequences, whatever the number of sentences; on the canvas of the answer's first commit."""
    spans, labels = case.spans[len(case.documents) :], [one.label for one in case.sentences]
    kept = np.random.default_rng(case.seed % 2**32).random((draws, len(spans))) < 0.5  # [draw, sentence]
    hidden = [
        np.sort(
            np.concatenate(
                [np.zeros(0, np.int64), *(span for span, stays in zip(spans, own, strict=True) if not stays)]
            )
        )
        for own in kept
    ]
    falls = case.log_probabilities(hidden)  # [draw, n]
    weights = np.stack([lasso(kept.astype(float), falls[:, token], penalty) for token in range(falls.shape[1])])
    documents = np.stack([weights[:, [own == label for own in labels]].sum(1) for label in case.documents], 1)
    return Scores.of_spans(case, documents, weights)


def lasso(features: Array, target: Array, penalty: float, rounds: int = 200) -> Array:
    """Weights w (beside an intercept b) of the least |y - Xw - b|^2 / 2m + penalty std(y) |w|_1; coordinate descent."""
    x, y = features - features.mean(0), target - target.mean()
    size, weights, left = (x**2).mean(0), np.zeros(x.shape[1]), y.copy()
    threshold = penalty * y.std()
    for _ in range(rounds):
        for place in np.flatnonzero(size > 0):
            pull = (x[:, place] * left).mean() + size[place] * weights[place]
            new = np.sign(pull) * max(abs(pull) - threshold, 0) / size[place]
            left -= x[:, place] * (new - weights[place])
            weights[place] = new
    return weights
