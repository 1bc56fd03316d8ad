"""Rollout at the commit step, exact and summed by document and sentence: attention and residual stream, multiplied
through all layers (Abnar and Zuidema 2020), for the row that filled each answer token."""

import numpy as np

from floatscope.attribution.attributed import Scores
from floatscope.attribution.case import Case


def rollout(case: Case) -> Scores:
    """X_L of the committing rows, with X_0 the membership of tokens in documents and sentences."""
    found = np.zeros((len(case.slots), len(case.spans)))
    for rows in case.committing:
        found[rows.slots] = rows.rolled
    count = len(case.documents)
    return Scores.of_spans(case, found[:, :count], found[:, count:])
