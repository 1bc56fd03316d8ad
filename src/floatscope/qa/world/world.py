"""The knowledge world: a seeded generator of entities, facts and question-answering samples. It knows no model.

Everything follows from `World(seed)`: which names belong to which split, and the stable facts. Every sample follows
from its own arguments and index, so that sample i is the same whether one asks for ten or for a thousand.

- Entities (people, companies, cities, countries, works) are named by a key and a companion word; dates are values.
- Stable entities have facts that never change: closed-book knowledge. All other names are dealt out to the train,
  validation and test splits; their facts are fresh, drawn anew for each sample, answerable only from its documents.
- Entities of one context differ in their key words, while the split has any left, unless near names are asked for.
"""

import random
from itertools import accumulate, pairwise

from floatscope.qa.samples import Sample
from floatscope.qa.world.draws import Draw
from floatscope.qa.world.kinds import SPLITS, SamplePlan, check_plan, make_sample
from floatscope.qa.world.relations import NAME_KINDS, RELATIONS, Entity, Fact

STABLE_PER_TYPE = 16


class World:
    """Names, splits and stable facts for one seed; the shipped twins were trained in `World(0)`."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.stable: dict[str, tuple[Entity, ...]] = {}
        self.fresh: dict[str, dict[str, tuple[Entity, ...]]] = {split: {} for split in SPLITS}
        rng = random.Random(f"floatscope world {seed}")
        for kind, words in NAME_KINDS.items():
            names = [Entity(kind, key, companion) for key in words.keys for companion in words.companions]
            rng.shuffle(names)
            if kind == "date":  # in all splits
                self.stable[kind] = tuple(names)
                for split in SPLITS:
                    self.fresh[split][kind] = tuple(names)
                continue
            first_of_key: dict[str, Entity] = {}
            for entity in names:
                first_of_key.setdefault(entity.key, entity)
            self.stable[kind] = tuple(first_of_key.values())[:STABLE_PER_TYPE]
            rest = [entity for entity in names if entity not in self.stable[kind]]
            edges = [0, *(round(share * len(rest)) for share in accumulate(SPLITS.values()))]
            for split, (start, stop) in zip(SPLITS, pairwise(edges), strict=True):
                self.fresh[split][kind] = tuple(rest[start:stop])
        self.stable_facts: tuple[Fact, ...] = tuple(
            Fact(subject, relation, rng.choice(self.stable[relation.object]))
            for relation in RELATIONS.values()
            for subject in self.stable[relation.subject]
        )

    def samples(
        self,
        kind: str,
        n: int,
        split: str = "test",
        documents: int = 0,
        seed: int = 0,
        gold_position: int | None = None,
        noise: str = "mixed",
        gap: int | None = None,
        answer_first: bool | None = None,
    ) -> list[Sample]:
        """`n` samples of one kind (see KINDS) with that many documents.

        `gold_position` counts from 1 (for two-hop questions: the place of the answer's document), None for any place.
        `noise` says what the other documents are (NOISES), for rag, stable-noise, counterfactual and unanswerable.
        `gap` is the number of documents between bridge and answer of a two-hop question, `answer_first` their order.
        """
        plan = SamplePlan(kind, split, documents, gold_position, noise, gap, answer_first)
        check_plan(plan, n)
        names = [f"{kind}-{split}-{documents}-{seed}-{index}" for index in range(n)]
        return [make_sample(Draw(self, split, random.Random(f"{self.seed}/{name}")), plan, name) for name in names]
