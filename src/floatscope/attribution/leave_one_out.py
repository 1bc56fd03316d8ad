"""Leave-one-out: how far the answer's log-probability falls when a document or sentence is hidden at its positions.

Hidden is not cut: all other tokens stay where they are, and only attention to the hidden ones is blocked.
"""

from collections.abc import Callable

import numpy as np

from floatscope.attribution.attributed import Scores
from floatscope.attribution.case import Array, Case, Ids

NOTHING: Ids = np.zeros(0, np.int64)


def leave_one_out(case: Case, sentences: bool = False) -> Scores:
    """With one canvas for the whole answer, as it was where its first token committed: 1 + D sequences in one batch."""
    return _falls(case, sentences, lambda hidden: case.log_probabilities(hidden))


def leave_one_out_commits(case: Case, sentences: bool = False) -> Scores:
    """With each token on the canvas of its own commit: (1 + D) sequences per step at which a token committed."""
    return _falls(case, sentences, lambda hidden: case.log_probabilities(hidden, "commits"))


def leave_one_out_rerun(case: Case, sentences: bool = False) -> Scores:
    """With all steps run anew: D whole runs, and what they were held to."""
    return _falls(
        case,
        sentences,
        lambda hidden: np.concatenate([case.log_probabilities(hidden[:1], "commits"), case.rerun(hidden[1:])]),
    )


def support(case: Case) -> float:
    """Fall of the answer's log-probability when all documents are hidden: small for an answer from nowhere."""
    everything = np.sort(np.concatenate(list(case.documents.values())))
    before, after = case.log_probabilities([NOTHING, everything]).sum(1)
    return float(before - after)


def _falls(case: Case, sentences: bool, passes: Callable[[list[Ids]], Array]) -> Scores:
    """`passes` gives log p [1 + spans, n] with nothing hidden, then each span."""
    count = len(case.documents)
    found = passes([NOTHING, *(case.spans if sentences else case.spans[:count])])
    falls = (found[:1] - found[1:]).T  # [n, spans]
    return Scores.of_spans(case, falls[:, :count], falls[:, count:] if sentences else None)
