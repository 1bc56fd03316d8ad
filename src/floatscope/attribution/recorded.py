"""What a study keeps of an answer's attribution, as plain numbers: scores of every method, and effects of hiding.

From these alone `faithfulness` makes its table, so that a run that was resumed gives the same.
"""

import inspect
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from floatscope.attribution import METHODS, explain
from floatscope.attribution.case import Case
from floatscope.attribution.leave_one_out import NOTHING, support
from floatscope.qa.metrics import SIGNALS
from floatscope.registry import load_object

HEADS = "retrieval_heads"
MOST_REMOVED = 6
"""Documents up to which every subset is hidden, for curves of removal."""


def record(case: Case, methods: Sequence[str], sentences: bool = False, removal: bool = False) -> dict[str, Any]:
    """Scores of each method, of sentences where it scores them, and of each token of the answer (`tokens`) with its
    step (`commits`); `heads`, the mass of each head on each document, where heads are to be chosen later.

    removal: `falls`, the fall of the answer's log-probability for every set of documents that is hidden, in the order
    of `subsets`.
    """
    steps = case.generation.commit_step[case.slots].tolist()
    found: dict[str, Any] = {"methods": {}, "commits": steps, "steps": case.generation.steps}
    count = len(case.documents)
    if removal and count <= MOST_REMOVED:
        spans = case.spans[:count]
        hidden = [np.sort(np.concatenate([spans[place] for place in own])) for own in subsets(count)]
        logs = case.log_probabilities([NOTHING, *hidden]).sum(1)
        found["falls"] = plain(logs[0] - logs[1:])
    for name in methods:
        if name == HEADS:
            masses = np.zeros((case.model.layers, int(case.model.config.num_attention_heads), count))
            for rows in case.committing:
                own = [rows.attention[..., span].sum(-1).sum(-1) for span in case.spans[:count]]  # [L, H] each
                masses += np.stack(own, -1) / len(case.slots)
            found["heads"] = plain(masses)
            continue
        options = inspect.signature(load_object(METHODS.named(name).function)).parameters
        one = explain(case, name, **({"sentences": sentences} if "sentences" in options else {}))
        scores = {"documents": plain(one.documents), "tokens": plain(one.by_token.documents)}
        found["methods"][name] = scores | ({} if one.by_token.spread else {"sentences": plain(one.sentences)})
    return found


def signals(case: Case) -> dict[str, float]:
    """Support, mean confidence and mean entropy of the answer's commits."""
    confidence = float(case.generation.confidence[case.slots].mean())
    return dict(zip(SIGNALS, (support(case), confidence, case.entropy()), strict=True))


def subsets(count: int) -> list[tuple[int, ...]]:
    """Every set of documents but the empty one, small ones first."""
    return [own for size in range(1, count + 1) for own in combinations(range(count), size)]


def plain(values: Any) -> Any:
    """Numbers as JSON has them, to five digits."""
    if isinstance(values, np.ndarray):
        return [plain(one) for one in values]
    return float(f"{float(values):.5g}")
