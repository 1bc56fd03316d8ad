"""Gates of a twin: guesses counted by hand, answers cut at eos, verdicts that can go either way."""

import pytest

import floatscope as fs
from floatscope.qa.samples import Document, Sample
from floatscope.qa.world import World
from floatscope.training import gates
from floatscope.training.gates import (
    GATES,
    HARDER,
    PASSAGES,
    Gate,
    answer,
    guess_in_world,
    judge_answers,
    judge_passages,
    measure_twin,
    write,
)

WORLD = World(0)


def test_the_relation_guess_counts_the_documents_that_state_the_asked_relation():
    documents = (
        Document("Mara Voss", "Many visitors ask about it. The employer of Mara Voss is Orbis Mills."),
        Document("Ada Hale", "Ada Hale works for Calyx Bank."),
        Document("Ada Hale", "Ada Hale was born in Port Alden."),
        Document("Corvus Steel", "Little else is on record."),
    )
    sample = Sample(
        "1", "Which company employs Ada Hale?", ("Calyx Bank",), documents, {"kind": "rag", "relation": "employer"}
    )
    by_type, by_relation = guess_in_world(sample, WORLD)
    assert by_relation == 1 / 2
    assert by_type == 1 / len(WORLD.fresh["test"]["company"])


def test_a_question_of_two_hops_asks_for_what_the_second_one_states():
    """Three documents state an employer, one a seat: whoever knows what is asked for has one candidate."""
    texts = ("Mara Voss works for Orbis Mills.", "Ada Hale works for Calyx Bank.", "Ida Kern works for Orbis Mills.",
             "Orbis Mills is based in Port Alden.")  # fmt: skip
    about = {"kind": "twohop", "relation": "employer headquarters"}
    documents = tuple(Document("", text) for text in texts)
    sample = Sample("1", "Where is the employer of Mara Voss based?", ("Port Alden",), documents, about)
    assert guess_in_world(sample, WORLD) == (1 / len(WORLD.fresh["test"]["city"]), 1)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_in_binding_samples_every_document_is_a_candidate(k):
    for sample in WORLD.samples("binding", 30, documents=k):
        assert guess_in_world(sample, WORLD)[1] == 1 / k


def test_no_guess_from_documents_is_right_where_none_states_the_answer():
    samples = WORLD.samples("stable-noise", 30, documents=5)
    assert all(guess_in_world(sample, WORLD)[1] == 0 < guess_in_world(sample, WORLD)[0] for sample in samples)


def test_verdicts_follow_the_bar():
    gate = Gate("binding", "binding", 2, least=0.6)
    samples = WORLD.samples("binding", 4, documents=2)
    right = [sample.answers[0] for sample in samples]
    assert judge_answers(gate, 8, samples, right, WORLD)["passed"] is True
    half = judge_answers(gate, 8, samples, [*right[:2], "", "not stated"], WORLD)
    assert (half["right"], half["passed"]) == (0.5, False)
    assert half["low"] <= 0.5 <= half["high"] and half["n"] == 4


def test_a_gate_of_fresh_facts_is_met_at_guess_level_only():
    gate = Gate("fresh", "closed-fresh", at_most_guess=True)
    samples = WORLD.samples("closed-fresh", 20)
    right = [sample.answers[0] for sample in samples]
    assert judge_answers(gate, 8, samples, right, WORLD)["passed"] is False  # it knows what it cannot know
    assert judge_answers(gate, 8, samples, ["nothing"] * 20, WORLD)["passed"] is True
    lucky = judge_answers(gate, 8, samples, [right[0], *["nothing"] * 19], WORLD)
    assert lucky["low"] == 0 < lucky["guess_type"] < lucky["right"] and lucky["passed"] is True  # may be chance


@pytest.mark.slow
@pytest.mark.parametrize("twin", ["twin-arm", "twin-dream"])
def test_answers_are_what_a_plain_loop_gives_up_to_eos(twin):
    model = fs.load(twin)
    samples = WORLD.samples("rag", 4, documents=2)
    sampler = fs.AutoregressiveSampler(length=6) if twin == "twin-arm" else fs.LLaDASampler(steps=6, length=6)
    expected = []
    for sample in samples:
        prompt = fs.build_prompt(model.tokenizer, sample.question, sample.documents)
        words = model.tokenizer.convert_ids_to_tokens(fs.generate(model, prompt.ids, sampler).answer)
        expected.append(" ".join(words[: words.index("<eos>")] if "<eos>" in words else words))
    assert answer(model, samples, 6, 3, None if twin == "twin-arm" else "llada") == expected and all(expected)


def test_all_cells_are_measured_and_those_of_dreams_own_schedule_with_its_sampler(monkeypatch):
    monkeypatch.setattr(gates, "SLOTS", (3, 4))
    asked = []
    monkeypatch.setattr(gates, "answer", lambda model, samples, *how: asked.append(how) or [""] * len(samples))
    told = []
    results = measure_twin(fs.load("twin-dream", check=False), 5, lambda *now: told.append(now))
    passages, results = results[-4:], results[:-4]
    assert [(r["gate"], r["n"], r["right"]) for r in passages] == [(gate.name, 2, 0.0) for gate in PASSAGES]
    assert told[-4:] == [(gate.name, len(results) + place, len(told)) for place, gate in enumerate(PASSAGES)]
    written = asked[len(results) :]  # each passage in as many slots as it has tokens
    assert written and all(slots >= 32 and (batch, name) == (50, "llada") for slots, batch, name in written)
    told, asked = told[:-4], asked[: len(results)]
    cells = [(r["gate"], r["slots"], r["n"]) for r in results]
    expected = [(gate.name, slots, 5) for slots in (3, 4) for gate in GATES] + [(g.name, 3, 2) for g in HARDER]
    assert cells[:-2] == expected and [n for *_, n in cells[-2:]] == [2, 2]
    assert told == [(f"{name}, {slots} slots", place, len(cells) + 4) for place, (name, slots, _) in enumerate(cells)]
    assert asked[:-2] == [(slots, 50, "llada") for _, slots, _ in cells[:-2]] and asked[-2:] == 2 * [(3, 50, None)]


@pytest.mark.slow
@pytest.mark.parametrize(("twin", "kind"), [("twin-arm", "passages"), ("twin-llada", "passages-infill")])
def test_passages_are_written_into_as_many_slots_as_their_text_has_tokens(twin, kind):
    """As a plain loop over single canvases writes them."""
    model = fs.load(twin)
    samples = WORLD.samples(kind, 3, documents=5)
    expected = []
    for sample in samples:
        slots = len(model.tokenizer.tokenize(sample.answers[0]))
        mdm = model.mask_id is not None
        sampler = fs.LLaDASampler(steps=slots, length=slots) if mdm else fs.AutoregressiveSampler(length=slots)
        canvas = fs.build_canvas(model.tokenizer, sample.before, slots, sample.after)
        ids = fs.generate(model, canvas, sampler).answer.tolist()
        said = ids[: ids.index(2)] if 2 in ids else ids
        expected.append(model.tokenizer.decode(said).strip())
    assert write(model, samples, "llada" if twin == "twin-llada" else None) == expected and any(expected)


def test_passages_are_judged_by_their_facts():
    gate = Gate("passages", "passages", 5, least=0.6)
    samples = WORLD.samples("passages", 4, documents=5)
    told = [sample.answers[0] for sample in samples]
    wrong = told[0].replace(told[0].split(". ")[0], told[1].split(". ")[0])  # one fact for one of another passage
    result = judge_passages(gate, samples, [wrong, told[1], "", told[3]])
    assert result["right"] == pytest.approx((0.8 + 1 + 0 + 1) / 4) and result["passed"] is True and result["n"] == 4
    assert (result["wrong"], result["invented"]) == (0.0, 0.05)
    assert 0.2 <= result["guess_relation"] < 1
    assert judge_passages(gate, samples, ["", "", *told[2:]])["passed"] is False
