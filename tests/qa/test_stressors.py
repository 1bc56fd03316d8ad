"""Stressors: each condition does to a sample what its labels say, and the same in every process."""

import pickle
import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from floatscope.errors import UserError
from floatscope.qa.metrics import mentions
from floatscope.qa.samples import Document, Sample
from floatscope.qa.stressors import (
    BASELINES,
    CLOSED_BOOK,
    ORACLE,
    STRESSORS,
    Condition,
    Pool,
    check_conditions,
    derived_seed,
    stress,
)
from floatscope.qa.stressors.baselines import changed_documents

TOWNS = ("Arle", "Brimm", "Corvo", "Dunmere", "Eskel", "Farrow", "Gault", "Hythe", "Ister", "Jorun", "Kesh", "Lorne")


def one_hop(number: int) -> Sample:
    text = f"The mill number {number} was built in {TOWNS[number]}, on the east bank of {TOWNS[number]}."
    gold = Document(f"Mill {number}", text, gold=True)
    return Sample(f"m{number}", f"Where was the mill number {number} built?", (TOWNS[number],), (gold,))


def two_hop(number: int) -> Sample:
    """The document with the answer stands first in the data."""
    documents = (
        Document(f"Maker {number}", f"Maker {number} was born in {TOWNS[number]}.", gold=True),
        Document("Bells", "Bells ring."),
        Document(f"Bell {number}", f"The bell {number} was cast by maker {number}.", gold=True),
    )
    return Sample(f"b{number}", f"Where was the caster of bell {number} born?", (TOWNS[number],), documents)


TEXTS = [Sample("t", "", ("a gap",), before="Before ", after=" after.")]
ONE = [one_hop(number) for number in range(len(TOWNS))]
TWO = [two_hop(number) for number in range(len(TOWNS))]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path))


def conditions(stressor: str, values: str, **options) -> tuple[Condition, ...]:
    row = STRESSORS.named(stressor)
    return row.conditions(values, row.options(**options))


def gold_places(sample: Sample) -> list[int]:
    return [place for place, document in enumerate(sample.documents) if document.gold]


def others(sample: Sample) -> tuple[Document, ...]:
    return tuple(document for document in sample.documents if not document.gold)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRESSORS)
def test_every_stressor_makes_labelled_conditions_of_its_example(name: str) -> None:
    row = STRESSORS[name]
    settings = {"documents": 4, "kinds": ("random", "topical", "counterfactual")}
    made = conditions(name, row.example, **{key: settings[key] for key in settings if hasattr(row.options, key)})
    assert made and len({condition.name for condition in made}) == len(made)
    assert len({tuple(condition.labels.values()) for condition in made}) == len(made)
    for condition in made:
        assert condition.stressor == name
        assert condition.labels.keys() == row.labels.keys()
        assert all(value is None or type(value) is row.labels[key] for key, value in condition.labels.items())
        assert row.axis is None or "{" not in row.axis.panel.format_map(condition.labels)
        pickle.loads(pickle.dumps(condition))  # conditions travel to other processes
        for sample in {"layout": TWO, "passage": TEXTS}.get(name, ONE):
            stressed = stress(sample, condition, Pool(ONE + TWO), 0)
            assert (stressed.id, stressed.question, stressed.answers) == (sample.id, sample.question, sample.answers)
            assert not any(mentions(f"{d.title} {d.text}", sample.answers) for d in others(stressed))


def test_baselines_are_what_they_say() -> None:
    assert BASELINES == (CLOSED_BOOK, ORACLE)
    assert stress(TWO[0], CLOSED_BOOK, Pool(TWO), 0).documents == ()
    assert stress(TWO[0], ORACLE, Pool(TWO), 0).documents == (TWO[0].documents[0], TWO[0].documents[2])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "topical", "counterfactual"])
@pytest.mark.parametrize("gold", ["kept", "removed"])
def test_noise_levels_are_nested_and_gold_is_kept_or_removed(kind: str, gold: str) -> None:
    made = conditions("noise", "0..6", kinds=(kind,), gold=(gold,))
    assert [condition.labels["level"] for condition in made] == list(range(7))
    for sample in ONE:
        stressed = [stress(sample, condition, Pool(ONE), 3) for condition in made]
        for level, result in enumerate(stressed):
            assert len(others(result)) == level
            assert len(set(result.documents)) == len(result.documents)
            assert [d for d in result.documents if d.gold] == (list(sample.documents) if gold == "kept" else [])
        for fewer, more in pairwise(stressed):
            assert [d for d in more.documents if d in fewer.documents] == list(fewer.documents)


@pytest.mark.parametrize("kind", ["random", "topical", "counterfactual"])
def test_noise_without_gold_is_the_same_noise_in_the_same_order(kind: str) -> None:
    """Two curves, with gold kept and removed, differ in the gold documents and in nothing else."""
    for sample in (*ONE, *TWO):
        pool = Pool(ONE + TWO)
        kept, removed = (
            stress(sample, *conditions("noise", "5", kinds=(kind,), gold=(gold,)), pool, 3)
            for gold in ("kept", "removed")
        )
        assert removed.documents == others(kept)


def test_noise_puts_gold_at_every_place_about_equally() -> None:
    (condition,) = conditions("noise", "3", kinds=("random",))
    counts = [0] * 4
    for seed in range(50):
        for sample in ONE:
            counts[gold_places(stress(sample, condition, Pool(ONE), seed))[0]] += 1
    assert all(abs(count - 150) < 40 for count in counts)  # 600 draws, standard deviation 10.6


def test_topical_noise_is_nearer_to_the_question_than_random_noise() -> None:
    corpus = [Document("", f"Mills of type {n} were built in stone.") for n in range(5)]
    corpus += [Document("", f"Unrelated matter {n}.") for n in range(50)]
    pool = Pool(ONE, corpus=corpus)
    (topical,) = conditions("noise", "5", kinds=("topical",))
    (drawn,) = conditions("noise", "5", kinds=("random",))
    assert set(others(stress(ONE[0], topical, pool, 0))) == set(corpus[:5])
    assert set(others(stress(ONE[0], drawn, pool, 0))) != set(corpus[:5])


def test_the_samples_own_distractors_are_topical_first_but_never_with_an_answer() -> None:
    own = (Document("x", "My own distractor."), Document("y", "It lies near Arle."))
    sample = Sample("own", ONE[0].question, ONE[0].answers, (*own, *ONE[0].documents))
    (condition,) = conditions("position", "1", documents=3)
    stressed = stress(sample, condition, Pool(ONE), 0)
    assert stressed.documents[0].gold and stressed.documents[1] == own[0]
    assert own[1] not in stressed.documents


def test_counterfactual_noise_states_other_answers_everywhere() -> None:
    (condition,) = conditions("noise", "4", kinds=("counterfactual",))
    for sample in ONE:
        copies = others(stress(sample, condition, Pool(ONE), 1))
        towns = [[town for town in TOWNS if town in document.text] for document in copies]
        assert all(len(found) == 1 for found in towns)  # both mentions replaced by the same town
        assert len({found[0] for found in towns}) == 4
        assert all(document.text.startswith(f"The mill number {sample.id[1:]} was") for document in copies)


def test_counterfactual_noise_changes_every_document_that_states_the_answer_in_turn() -> None:
    gold = [Document(title, f"{title}: the mill stands in Arle.", gold=True) for title in ("Map", "Letter")]
    silent = Document("Deed", "The mill is old.", gold=True)
    sample = Sample("s", "Where is the mill?", ("Arle",), (gold[0], silent, gold[1]))
    (condition,) = conditions("noise", "5", kinds=("counterfactual",), gold=("removed",))
    copies = stress(sample, condition, Pool([sample, *ONE[1:]]), 0).documents
    assert sorted(document.title for document in copies) == ["Letter"] * 2 + ["Map"] * 3
    assert all(document.text.startswith(f"{document.title}: the mill") for document in copies)


@pytest.mark.parametrize(
    ("text", "answers", "wrong", "expected"),
    [
        ("North Goa is in the north.", ("North Goa", "North"), "Xu", "Xu is in the Xu."),
        ("Two sacroiliac joints.", ("the sacroiliac joint",), "x ray", "Two x ray."),
        ("Ro\u0308ntgen, 1901", ("R\u00f6ntgen",), "Xu", "Xu, 1901"),
        ("In 1925, 2 men.", ("2",), "7", "In 1925, 7 men."),
        ("It cost $5 (five).", ("$5",), "$70", "It cost $70 (five)."),
        ("the Arms, of the Ireland", ("the arms of Ireland",), "x ray", "the x ray"),
    ],
)
def test_counterfactual_swaps_whole_answers(text: str, answers: tuple[str, ...], wrong: str, expected: str) -> None:
    sample = Sample("s", "Q?", answers, (Document("", text, gold=True),))
    (condition,) = conditions("noise", "1", kinds=("counterfactual",), gold=("removed",))
    (document,) = stress(sample, condition, Pool([sample, Sample("w", "Q?", (wrong,))]), 0).documents
    assert document.text == expected


def test_wrong_answers_are_of_the_same_relation() -> None:
    samples = [
        Sample(f"{relation}{n}", "Q?", (f"{relation} {n}",), metadata={"relation": relation})
        for relation in ("City", "Person")
        for n in range(5)
    ]
    drawn = Pool(samples).wrong_answers(samples[0], 4, random.Random(0))
    assert sorted(drawn) == ["City 1", "City 2", "City 3", "City 4"]


def test_a_wrong_answer_never_stands_in_the_gold_text_already() -> None:
    """Corvo would be wrong, yet the gold document says it of something else: a copy with it would not contradict."""
    gold = Document("Mill", "The mill of Arle stands on the road from Corvo to Dunmere.", gold=True)
    shown = Sample("s", "Where is the mill?", ("Arle",), (gold, Document("", "Brimm is far.")))
    others = [Sample(town, "Where is it?", (town,)) for town in ("Corvo", "Dunmere", "Brimm", "Arles", "Eskel")]
    for seed in range(20):
        drawn = Pool([shown, *others]).wrong_answers(shown, 2, random.Random(seed))
        assert sorted(drawn) == ["Brimm", "Eskel"]  # what other documents say may be taken; Arles contains Arle
    with pytest.raises(UserError, match="the others have 2"):
        Pool([shown, *others]).wrong_answers(shown, 3, random.Random(0))
    whole = replace(shown, answers=("Brimm on Sea",))
    with pytest.raises(UserError, match="the others have 2"):  # Arles and Eskel: Brimm is part of the right answer
        Pool([whole, *others]).wrong_answers(whole, 3, random.Random(0))


def test_own_documents_are_shown_as_they_are_given() -> None:
    own, none = TWO[0], replace(TWO[1], documents=())
    nothing, two, given = conditions("documents", "own, 0,2")
    assert [condition.name for condition in (nothing, two, given)] == ["documents/0", "documents/2", "documents/own"]
    assert given.labels == {"documents": None} and conditions("documents", "own")[0] == given
    assert stress(own, given, Pool(TWO), 0) == own
    with pytest.raises(UserError, match="'b1' has no documents of its own: ask without them"):
        stress(none, given, Pool(TWO), 0)


def test_gold_documents_stand_anywhere_among_those_that_are_added() -> None:
    """A model that reads the first document best would gain from a place that no retrieval gave."""
    (three,) = conditions("documents", "3")
    shown = [stress(sample, three, Pool(ONE), 0) for sample in ONE]
    assert {len(sample.documents) for sample in shown} == {3}
    assert {place for sample in shown for place in gold_places(sample)} == {0, 1, 2}


def test_it_is_told_what_a_number_of_documents_changes() -> None:
    nothing, two, three, four, own = conditions("documents", "0,2,3,4,own")
    samples = [*TWO[:2], replace(TWO[2], documents=TWO[2].documents[:1])]  # three documents, three, one
    assert [changed_documents(samples, condition) for condition in (nothing, own)] == ["", ""]
    assert changed_documents(samples[:2], three) == ""
    fewer = "have fewer and are shown others beside their gold ones, shuffled"
    assert changed_documents(samples, two) == (
        f"2 documents are asked for: of 3 samples 1 {fewer} and 2 have more and are shown their first 2; 'own' in "
        "place of 2 shows them as they are given."
    )
    assert f"of 3 samples 3 {fewer}; 'own'" in changed_documents(samples, four)
    assert changed_documents(samples, conditions("slots", "8")[0]) == ""


@pytest.mark.parametrize("source", ["topical", "random"])
def test_position_moves_the_gold_document_and_nothing_else(source: str) -> None:
    made = conditions("position", "all", documents=5, distractors=source)
    assert [condition.labels["place"] for condition in made] == [1, 2, 3, 4, 5]
    for sample in ONE:
        stressed = [stress(sample, condition, Pool(ONE), 9) for condition in made]
        assert [gold_places(result) for result in stressed] == [[0], [1], [2], [3], [4]]
        assert len({others(result) for result in stressed}) == 1
        assert all(len(result.documents) == 5 for result in stressed)


def titles(sample: Sample) -> list[str]:
    return [document.title.split()[0] for document in sample.documents if document.gold]


def test_layouts_of_two_hop_evidence() -> None:
    made = conditions("layout", "all", documents=6)
    by_value = {(c.labels["layout"], c.labels["value"]): stress(TWO[3], c, Pool(TWO), 0) for c in made}
    places = {key: gold_places(sample) for key, sample in by_value.items()}
    orders = {key: titles(sample) for key, sample in by_value.items()}
    assert all(len(sample.documents) == 6 for sample in by_value.values())
    assert {value: places["gap", value] for layout, value in places if layout == "gap"} == {
        "0": [2, 3],
        "1": [1, 3],
        "2": [1, 4],
        "4": [0, 5],
    }
    assert all(orders["gap", str(gap)] == ["Bell", "Maker"] for gap in (0, 1, 2, 4))
    assert (orders["order", "bridge-first"], orders["order", "answer-first"]) == (["Bell", "Maker"], ["Maker", "Bell"])
    assert places["order", "bridge-first"] == places["order", "answer-first"] == [1, 4]
    joined = by_value["split", "joined"].documents[places["split", "joined"][0]]
    assert joined == Document(
        "Bell 3, Maker 3", "The bell 3 was cast by maker 3. Maker 3 was born in Dunmere.", gold=True
    )
    assert orders["split", "apart"] == ["Bell", "Maker"]
    assert orders["duplicated", "none"] == ["Bell", "Maker"]
    assert orders["duplicated", "bridge"] == ["Bell", "Maker", "Bell"]
    assert orders["duplicated", "answer"] == ["Maker", "Bell", "Maker"]
    assert orders["duplicated", "both"] == ["Bell", "Maker", "Bell", "Maker"]


def test_slots_and_question_leave_the_sample_alone() -> None:
    slots = conditions("slots", "8..256")
    assert [condition.slots for condition in slots] == [8, 16, 32, 64, 128, 256]
    question = conditions("question", "all")
    assert [condition.placement for condition in question] == ["before", "after"]
    for condition in (*slots, *question):
        assert stress(TWO[0], condition, Pool(TWO), 0) is TWO[0]


def test_documents_are_the_first_as_given_or_filled_up() -> None:
    made = conditions("documents", "0,2,5")
    none, two, five = (stress(TWO[0], condition, Pool(TWO), 0).documents for condition in made)
    assert none == () and two == TWO[0].documents[:2]
    assert len(five) == 5 and set(TWO[0].documents) <= set(five)


def test_results_depend_on_seed_sample_and_condition_only() -> None:
    (condition,) = conditions("noise", "4", kinds=("random",))
    results = {seed: [stress(sample, condition, Pool(ONE), seed) for sample in ONE] for seed in (0, 1)}
    assert results[0] != results[1]
    assert results[0][::-1] == [stress(sample, condition, Pool(ONE), 0) for sample in ONE[::-1]]


@pytest.mark.slow
def test_seeds_do_not_depend_on_the_process() -> None:
    code = "from floatscope.qa.stressors import derived_seed; print(derived_seed(7, 'sample é', 'noise'))"
    outputs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment).stdout
        for environment in ({"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)} for seed in ("1", "2"))
    }
    assert outputs == {f"{derived_seed(7, 'sample é', 'noise')}\n"}
    assert derived_seed(1, "a", "bc") != derived_seed(1, "ab", "c")


def test_worlds_can_forbid_documents_with_the_same_title() -> None:
    rival = Sample("r", "Q?", ("Zorn",), (Document("Mill 0", "The mill number 0 was built in Zorn.", gold=True),))
    (condition,) = conditions("noise", "1", kinds=("topical",))
    assert rival.documents[0].text in [d.text for d in stress(ONE[0], condition, Pool([*ONE, rival]), 0).documents]
    strict = Pool([*ONE, rival], same_title=False)
    for kind in ("topical", "random"):
        (condition,) = conditions("noise", "8", kinds=(kind,))
        assert rival.documents[0].text not in [d.text for d in stress(ONE[0], condition, strict, 0).documents]


BARE = Sample("bare", "Q?", ("A b",), (Document("", "text"),))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: stress(BARE, conditions("position", "1")[0], Pool([BARE]), 0), "no gold document, which the position"),
        (lambda: stress(TWO[0], conditions("position", "1")[0], Pool(TWO), 0), "2 gold documents, but the position"),
        (lambda: stress(ONE[0], conditions("layout", "gap")[0], Pool(ONE), 0), "1 gold document, but the layout"),
        (lambda: stress(BARE, ORACLE, Pool([BARE]), 0), "no gold document, which the oracle"),
        (lambda: stress(BARE, conditions("noise", "0")[0], Pool([BARE]), 0), "no gold document, which noise"),
        (
            lambda: stress(ONE[0], conditions("noise", "12")[0], Pool(ONE), 0),
            "12 distractors, but of 12 documents only 11",
        ),
        (
            lambda: stress(ONE[0], conditions("noise", "12", kinds=("random",))[0], Pool(ONE), 0),
            "12 distractors, but of 12 documents only 11",
        ),
        (
            lambda: stress(ONE[0], conditions("noise", "12", kinds=("counterfactual",))[0], Pool(ONE), 0),
            r"12 wrong answers of its kind \(name\), the others have 11",
        ),
        (lambda: conditions("position", "11"), "no place 11 among 10 documents: places are 1 to 10"),
        (lambda: conditions("position", "0"), "lowest value here is 1"),
        (lambda: conditions("layout", "gaps"), "no 'gaps' here"),
        (lambda: conditions("layout", "gap", documents=1), "at least 2 documents"),
        (lambda: conditions("layout", "duplicated", documents=3), "at least 4 documents"),
        (lambda: conditions("slots", "0"), "lowest value here is 1"),
        (lambda: conditions("positions", "1"), "did you mean 'position'"),
        (lambda: conditions("noise", "0", kinds=("loud",)), "no kind of noise 'loud'"),
        (lambda: conditions("noise", "0", gold=()), "At least one"),
        (lambda: conditions("layout", "gap", documents=0), "too few"),
    ],
)
def test_impossible_combinations_are_sentences(call, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        call()


def test_a_condition_that_fits_no_sample_is_refused_before_a_run() -> None:
    check_conditions(conditions("position", "all", documents=4), [*TWO, *ONE], Pool(ONE), 0)
    with pytest.raises(UserError, match=r"No sample fits the condition 'layout/10/gap/0'\. Sample 'm0' has 1 gold"):
        check_conditions(conditions("layout", "gap"), ONE, Pool(ONE), 0)
