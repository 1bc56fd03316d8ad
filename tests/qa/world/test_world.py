"""The world keeps its promises: splits share nothing, gold stands where asked, distractors never hold the answer."""

import re

import pytest

import floatscope as fs
from floatscope.errors import UserError
from floatscope.qa.prompts import build_prompt
from floatscope.qa.world import KINDS, NOISES, SPLITS, World, read_facts
from floatscope.qa.world.kinds import MAX_DOCUMENTS
from floatscope.qa.world.relations import PATHS, RELATIONS, UNANSWERABLE
from floatscope.qa.world.vocabulary import CONTEXT, make_tokenizer

WORLD = World(0)
TYPES = {
    entity.name: kind for pools in (WORLD.stable, *WORLD.fresh.values()) for kind in pools for entity in pools[kind]
}
LEARNT = {(fact.subject.name, fact.relation.name): fact.object.name for fact in WORLD.stable_facts}
OPEN = [kind for kind in KINDS if not kind.startswith(("closed", "passages"))]


def holds(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def test_splits_and_stable_names_are_disjoint():
    for kind in WORLD.stable:
        if kind == "date":
            continue
        pools = [set(WORLD.stable[kind]), *(set(WORLD.fresh[split][kind]) for split in SPLITS)]
        assert all(pools)
        assert len(set().union(*pools)) == sum(map(len, pools))


def test_fresh_subjects_of_a_sample_come_from_its_split():
    for split in SPLITS:
        names = {entity.name for pool in WORLD.fresh[split].values() for entity in pool}
        for sample in WORLD.samples("rag", 50, split=split, documents=6):
            assert {document.title for document in sample.documents} <= names


def test_the_same_arguments_give_the_same_samples_whatever_their_number():
    few, many = WORLD.samples("rag", 5, documents=4, seed=3), World(0).samples("rag", 20, documents=4, seed=3)
    assert few == many[:5]
    assert few != WORLD.samples("rag", 5, documents=4, seed=4)
    assert World(1).stable_facts != WORLD.stable_facts
    assert len({sample.id for sample in many}) == 20


@pytest.mark.parametrize("kind", ["binding", "rag", "counterfactual"])
@pytest.mark.parametrize("position", [1, 3, 5])
def test_gold_stands_where_it_is_asked_to_and_alone_holds_the_answer(kind, position):
    for sample in WORLD.samples(kind, 60, documents=5, gold_position=position):
        assert [document.gold for document in sample.documents] == [place == position for place in range(1, 6)]
        assert [holds(document.text, sample.answers[0]) for document in sample.documents] == [
            place == position for place in range(1, 6)
        ]


@pytest.mark.parametrize("noise", NOISES)
def test_no_noise_document_holds_the_answer(noise):
    for sample in WORLD.samples("rag", 60, documents=8, noise=noise):
        for document in sample.documents:
            assert document.gold == holds(document.text, sample.answers[0])


def test_kinds_of_noise_are_what_they_are_called():
    for sample in WORLD.samples("rag", 30, documents=4, noise="counterfactual"):
        assert {document.title for document in sample.documents} == {sample.metadata["subject"]}
    shared = 0
    for sample in WORLD.samples("rag", 30, documents=3, noise="near"):
        words = set(sample.metadata["subject"].split()) - {"The", "of"}
        shared += sum(bool(words & set(d.title.split())) for d in sample.documents if not d.gold)
    assert shared > 50  # of 60; a key word can be used up
    for sample in WORLD.samples("binding", 30, documents=6):
        statements = RELATIONS[sample.metadata["relation"]].statements
        for document in sample.documents:
            patterns = [re.escape(s.format(s=document.title, o="@")).replace("@", ".+") for s in statements]
            assert any(re.search(pattern, document.text) for pattern in patterns)


def test_topical_noise_tells_other_things_of_the_subject_and_none_twice():
    """The same relation of the same subject twice would be two documents that contradict each other."""
    told = 0
    for sample in WORLD.samples("rag", 60, documents=8, noise="topical"):
        stated = [fact[:2] for document in sample.documents for fact in read_facts(document.text)]
        assert len(stated) == len(set(stated)) == 8
        relations = [relation for subject, relation in stated if subject == sample.metadata["subject"]]
        assert sample.metadata["relation"] in relations
        told += len(relations) - 1
    assert told > 60


def test_unanswerable_samples_state_the_fact_nowhere():
    for sample in WORLD.samples("unanswerable", 80, documents=6):
        assert sample.answers == (UNANSWERABLE,)
        relation = RELATIONS[sample.metadata["relation"]]
        for document in sample.documents:
            if document.title == sample.metadata["subject"]:
                for statement in relation.statements:
                    stated = re.escape(statement.format(s=document.title, o="@")).replace("@", "(.+?)")
                    found = re.search(stated, document.text)
                    assert not found or TYPES[found[1]] != relation.object


def test_two_hops_go_through_the_bridge():
    for sample in WORLD.samples("twohop", 80, documents=6, gap=2):
        bridge, answer = sample.metadata["bridge_position"], sample.metadata["gold_position"]
        assert abs(bridge - answer) == 3
        first, second = sample.documents[bridge - 1], sample.documents[answer - 1]
        assert first.gold and second.gold and sum(d.gold for d in sample.documents) == 2
        assert holds(first.text, sample.metadata["bridge"]) and second.title == sample.metadata["bridge"]
        assert [holds(d.text, sample.answers[0]) for d in sample.documents].count(True) == 1
        assert holds(sample.question, sample.metadata["subject"])
        assert not holds(sample.question, sample.metadata["bridge"])
    for sample in WORLD.samples("twohop", 20, documents=6, answer_first=True):
        assert sample.metadata["gold_position"] < sample.metadata["bridge_position"]


def test_paths_fit_their_relations():
    for path in PATHS:
        assert RELATIONS[path.first].object == RELATIONS[path.second].subject


def test_stable_questions_have_the_stable_answer_and_counterfactual_ones_another():
    for sample in WORLD.samples("closed-stable", 40):
        assert LEARNT[sample.metadata["subject"], sample.metadata["relation"]] == sample.answers[0]
        assert not sample.documents
    for sample in WORLD.samples("counterfactual", 40, documents=3):
        assert LEARNT[sample.metadata["subject"], sample.metadata["relation"]] == sample.metadata["memory"]
        assert sample.answers[0] != sample.metadata["memory"]
        assert not any(holds(document.text, sample.metadata["memory"]) for document in sample.documents)


@pytest.mark.slow
def test_the_most_documents_fit_the_context():
    tokenizer = make_tokenizer()
    for kind in OPEN:
        for sample in WORLD.samples(kind, 20, documents=MAX_DOCUMENTS):
            assert len(build_prompt(tokenizer, sample.question, sample.documents).ids) + 32 <= CONTEXT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "riddle", "n": 1}, "Unknown kind"),
        ({"kind": "rag", "n": 0, "documents": 3}, "one or more"),
        ({"kind": "rag", "n": 10**12, "documents": 3}, "at most 1,000,000"),
        ({"kind": "rag", "n": 1}, "at least 1"),
        ({"kind": "twohop", "n": 1, "documents": 1}, "at least 2"),
        ({"kind": "rag", "n": 1, "documents": -1}, "at least"),
        ({"kind": "rag", "n": 1, "documents": 3, "split": "dev"}, "Unknown split"),
        ({"kind": "rag", "n": 1, "documents": 3, "noise": "loud"}, "Unknown noise"),
        ({"kind": "rag", "n": 1, "documents": MAX_DOCUMENTS + 1}, "context"),
        ({"kind": "closed-stable", "n": 1, "documents": 2}, "closed-book"),
        ({"kind": "passages", "n": 1, "documents": 4}, "tell 5 to 8 facts, not 4"),
        ({"kind": "passages-infill", "n": 1, "documents": 9}, "tell 5 to 8 facts, not 9"),
        ({"kind": "rag", "n": 1, "documents": 3, "gold_position": 4}, "gold_position"),
        ({"kind": "unanswerable", "n": 1, "documents": 3, "gold_position": 1}, "gold_position"),
        ({"kind": "rag", "n": 1, "documents": 3, "gap": 1}, "twohop"),
        ({"kind": "twohop", "n": 1, "documents": 3, "gap": 5}, "layout"),
    ],
)
def test_mistakes_are_sentences(arguments, words):
    with pytest.raises(UserError, match=words):
        WORLD.samples(**arguments)


def test_the_world_is_part_of_the_public_interface():
    assert fs.world.World(seed=0).samples("rag", 2, documents=3) == WORLD.samples("rag", 2, documents=3)


@pytest.mark.slow
def test_a_prompt_that_does_not_fit_is_refused_by_name():
    model = fs.load("twin-arm")
    documents = tuple(d for s in WORLD.samples("rag", 10, documents=MAX_DOCUMENTS) for d in s.documents)
    prompt = build_prompt(model.tokenizer, "Who wrote The Silver River?", documents)
    with pytest.raises(UserError, match=str(CONTEXT)):
        fs.generate(model, prompt.ids, fs.AutoregressiveSampler(length=8))
