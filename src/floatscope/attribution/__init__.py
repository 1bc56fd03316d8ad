"""Attribution: a score per document, sentence and token for an answer, by methods in a registry, one file each.

How far each can be believed is measured by `faithfulness`. To add a method is to add its file and a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floatscope.decoding import generate
from floatscope.decoding.generation import one_or_many, sampler_for
from floatscope.errors import UserError
from floatscope.registry import Registry, did_you_mean, load_object

if TYPE_CHECKING:
    from floatscope.attribution.attributed import Attribution, Scores
    from floatscope.attribution.case import Case
    from floatscope.canvas import Prompt
    from floatscope.decoding import Sampler
    from floatscope.models.model import Model


@dataclass(frozen=True)
class Method:
    """A row of the registry."""

    summary: str
    function: Callable[..., Scores] | str
    """(case, its own options) -> Scores, or where to find it as "module:object"."""
    cost: str
    """Sequences per answer, in words; D documents, S sentences, C steps at which a token of the answer committed."""
    causal: bool = False
    """Whether scores are effects on the answer's log-probability, which add up over its tokens; others are averaged."""


def _row(where: str, summary: str, cost: str, causal: bool = False) -> Method:
    return Method(summary, f"floatscope.attribution.{where}", cost, causal)


METHODS: Registry[Method] = Registry(
    "attribution method",
    {
        "leave_one_out": _row(
            "leave_one_out:leave_one_out", "a document hidden, one canvas for the answer", "1 + D (+ S)", causal=True
        ),
        "leave_one_out_commits": _row(
            "leave_one_out:leave_one_out_commits", "the same, each token at its own commit", "C (1 + D)", causal=True
        ),
        "leave_one_out_rerun": _row(
            "leave_one_out:leave_one_out_rerun", "the same, all steps run anew", "C + D whole runs", causal=True
        ),
        "surrogate": _row(
            "surrogate:surrogate", "random sentences hidden, a sparse linear fit (ContextCite)", "32", causal=True
        ),
        "rollout": _row("rollout:rollout", "attention rolled out over the layers at the commit, exact", "C"),
        "attention": _row("row_attention:attention", "attention of the committing row, all heads", "C"),
        "value_weighted": _row("row_attention:value_weighted", "the same, weighted by the norms of values", "C"),
        "retrieval_heads": _row("row_attention:retrieval_heads", "the same, of chosen heads", "C"),
        "attention_sum": _row(
            "row_attention:attention_sum", "attention summed over all steps until the commit", "steps"
        ),
        "lexical": _row("lexical:lexical", "words in common with the answer and the question", "0"),
        "uniform": _row("lexical:uniform", "every token alike", "0"),
        "position": _row("lexical:position", "earlier documents first", "0"),
    },
)


@one_or_many
def attribute(
    model: Model,
    prompts: list[Prompt],
    sampler: Sampler | None = None,
    method: str = "leave_one_out",
    *,
    seed: int | None = None,
    support: bool = False,
    **options: Any,
) -> list[Attribution]:
    """Answer a prompt with documents, and say which of them the answer came from.

    prompts: a Prompt from `build_prompt` gives one Attribution; a list of them a list in order.
    sampler: default: the model's own. seed: of the answer; default: the sampler's.
    method: a row of METHODS.
    support: measure also what all documents together do.
    options: the method's own, such as sentences=True of leave_one_out (hide every sentence too) or heads of
    retrieval_heads.
    """
    from floatscope.attribution.case import Case

    METHODS.named(method)
    sampler = sampler_for(model, sampler)
    seed = sampler.seed if seed is None else seed
    answers = generate(model, prompts, sampler, [seed] * len(prompts))
    cases = [Case.of(model, *of, seed) for of in zip(prompts, [sampler] * len(prompts), answers, strict=True)]
    return [explain(case, method, support, **options) for case in cases]


def explain(case: Case, method: str, support: bool = False, **options: Any) -> Attribution:
    """One method on an answer that was given."""
    from floatscope.attribution.attributed import Attribution
    from floatscope.attribution.leave_one_out import support as effect

    row = METHODS.named(method)
    function, model, before = load_object(row.function), case.model, len(case.run)
    known = list(inspect.signature(function).parameters)[1:]
    if wrong := [name for name in options if name not in known]:
        raise UserError(f"The method {method!r} has no option {wrong[0]!r}: {did_you_mean(wrong[0], known)}.")
    scores = function(case, **options)
    documents, sentences, tokens = (
        part.sum(0) if row.causal else part.mean(0) for part in (scores.documents, scores.sentences, scores.tokens)
    )
    effect_of_all = effect(case) if support else None
    answer = case.generation.answer[case.slots]
    named = model.tokenizer is not None
    return Attribution(
        method=method,
        answer=model.text(case.generation.answer) if named else " ".join(map(str, answer)),
        documents=documents,
        sentences=sentences,
        tokens=tokens,
        by_token=scores,
        answer_tokens=model.token_texts(answer) if named else tuple(map(str, answer.tolist())),
        sentence_spans=case.sentences,
        sequences=sum(case.run[before:]),
        support=effect_of_all,
    )
