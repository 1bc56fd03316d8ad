"""Passages of the world: facts told twice, in notes and in an account with a gap, and what a text tells of them.

The account tells the facts of the notes in their order and leaves out the fillers between them, so the notes say what
belongs into the gap: free generation can be checked, fact by fact.
"""

import re
from functools import cache

from floatscope.qa.samples import Sample
from floatscope.qa.world.draws import Draw
from floatscope.qa.world.relations import NAME_KINDS, RELATIONS

Stated = tuple[str, str, str]
"""A fact as a text states it: the names of subject, relation and object."""


def make_passage(draw: Draw, facts: int, layout: str, id: str, metadata: dict[str, str]) -> Sample:
    """A passage whose gap tells `facts` facts, in whole sentences.

    layout: "continue" (notes, then the account, all of it to be written), "mirrored" (the account to be written, then
    the notes) or "infill" (one fact of the account is told on either side of the gap; the notes stand at either end).
    """
    inside = layout == "infill"
    story = draw.story(facts + 2 * inside)
    notes, account = draw.notes(story), [fact.plain for fact in story]
    first, last = (f"{account.pop(0)} ", f" {account.pop()}") if inside else ("", "")
    notes_last = draw.rng.random() < 0.5 if inside else layout == "mirrored"
    before, after = (first, f"{last}\n{notes}") if notes_last else (f"{notes}\n{first}", last)
    return Sample(id, "", (" ".join(account),), (), metadata, before, after)


def read_facts(text: str) -> list[Stated]:
    """The facts that sentences of a text state, in any words that the world has for them."""
    found = []
    for sentence in re.split(r"(?<=\.)\s+", text.strip()):
        matches = ((relation, pattern.fullmatch(sentence)) for relation, pattern in _statements())
        found += [(match["s"], relation, match["o"]) for relation, match in matches if match]
    return found


@cache
def _statements() -> list[tuple[str, re.Pattern[str]]]:
    """Every statement of every relation, as a pattern for its sentences."""
    names = {
        kind: row.pattern.format(key=f"(?:{'|'.join(row.keys)})", companion=f"(?:{'|'.join(row.companions)})")
        for kind, row in NAME_KINDS.items()
    }
    found = []
    for relation in RELATIONS.values():
        subject, object = f"(?P<s>{names[relation.subject]})", f"(?P<o>{names[relation.object]})"
        for statement in map(re.escape, relation.statements):
            pattern = statement.replace(r"\{s\}", subject).replace(r"\{o\}", object)
            found.append((relation.name, re.compile(pattern)))
    return found


def score_facts(sample: Sample, said: str) -> dict[str, float]:
    """What a text in a passage's gap tells, against what stands around the gap; a fact counts once.

    right: the share of the gap's facts that it tells. Beside it, per fact of the gap: wrong, what contradicts the text
    around it, and invented, what that text knows nothing of.
    """
    wanted, told = set(read_facts(sample.answers[0])), set(read_facts(said))
    known = read_facts(f"{sample.before} {sample.after}")
    objects = {(subject, relation): object for subject, relation, object in known}
    others = [fact for fact in told if fact not in known]
    wrong = sum(fact[:2] in objects for fact in others)
    shares = {"right": len(wanted & told), "wrong": wrong, "invented": len(others) - wrong}
    return {name: count / len(wanted) for name, count in shares.items()}


def guess_facts(sample: Sample) -> float:
    """The share of facts that a guess gets right: any object that the text around the gap states for their relation."""
    known = set(read_facts(f"{sample.before} {sample.after}"))
    wanted = read_facts(sample.answers[0])
    return sum(1 / sum(fact[1] == relation for fact in known) for _, relation, _ in wanted) / len(wanted)
