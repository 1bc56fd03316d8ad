"""What any method should beat: words in common, every token alike, the order of documents. No pass of a model."""

import numpy as np

from floatscope.attribution.attributed import Scores
from floatscope.attribution.case import Case


def lexical(case: Case) -> Scores:
    """Tokens that are the answer's token count 1; those of the question 1 divided by its length, which breaks ties."""
    ids, asked = case.canvas.ids, np.unique(case.question)
    answer = case.generation.answer[case.slots]
    same = (ids == answer[:, None]).astype(float)  # [n, T]
    return Scores.of_tokens(case, same + np.isin(ids, asked) / max(len(asked), 1) / len(answer))


def uniform(case: Case) -> Scores:
    """Every token of the documents alike: a document's length."""
    total = sum(map(len, case.documents.values()))
    return Scores.of_tokens(case, np.full((len(case.slots), len(case.canvas.ids)), 1 / total))


def position(case: Case) -> Scores:
    """The earlier a document stands, the more: 1, 1/2, 1/3, ..."""
    ranks = 1 / np.arange(1, len(case.documents) + 1)
    return Scores.of_spans(case, np.tile(ranks, (len(case.slots), 1)))
