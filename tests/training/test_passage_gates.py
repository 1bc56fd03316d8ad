"""Gates of an adapter: what is counted, and beside which guess."""

from dataclasses import replace

import pytest

import floatscope as fs
from floatscope.qa.metrics import accuracy, exact_match
from floatscope.qa.readers import read_samples
from floatscope.qa.samples import Document, Sample
from floatscope.training import gates
from floatscope.training.gates import (
    ADAPTER_GATES,
    MASKED,
    ORACLE,
    answer,
    continue_text,
    guess_in_passages,
    measure_adapter,
    recover,
)
from floatscope.training.recipe import AdapterRecipe
from floatscope.training.runs import adapt

QUICK = AdapterRecipe(steps=3, batch=2, warmup=1, rank=2, window=16, held_out=14)


@pytest.fixture(scope="module")
def folder(parent, data_file, tmp_path_factory):
    return adapt(parent, "dream", [data_file], tmp_path_factory.mktemp("forks") / "dream", QUICK)


@pytest.fixture(scope="module")
def held_out(folder):
    return list(read_samples(folder / "held_out.jsonl"))


@pytest.mark.slow
def test_a_gate_counts_what_the_answers_give(folder, held_out):
    model, untrained = fs.load(folder), fs.load(f"{folder}-untrained", check=False)
    told = []
    results = measure_adapter(model, untrained, held_out, 6, lambda *now: told.append(now))
    assert told == [(name, place, 4) for place, name in enumerate(ADAPTER_GATES)]
    assert [result["gate"] for result in results] == list(ADAPTER_GATES)
    for gate, result in zip(ADAPTER_GATES[:2], results[:2], strict=True):
        samples = [s if gate == ORACLE else replace(s, documents=()) for s in held_out[:6]]
        said = answer(model, samples, 12, 4)
        right = [accuracy(text, s.answers) for text, s in zip(said, samples, strict=True)]
        exact = [exact_match(text, s.answers) for text, s in zip(said, samples, strict=True)]
        assert result["n"] == 6 and result["right"] == pytest.approx(sum(right) / 6, abs=1e-4)
        assert result["exact"] == pytest.approx(sum(exact) / 6, abs=1e-4)
        assert result["low"] <= result["right"] <= result["high"]
        assert (result["least"], result["passed"]) == (
            (0.5, result["right"] >= 0.5) if gate == ORACLE else (None, None)
        )
    before, after = (list(recover(one, held_out[:6])) for one in (untrained, model))
    assert results[2]["right"] == pytest.approx(sum(after) / 6, abs=1e-4)
    assert results[2]["least"] == pytest.approx(sum(before) / 6, abs=1e-4)
    assert results[2]["exact"] is results[2]["guess"] is None and isinstance(results[2]["passed"], bool)
    before, after = (list(continue_text(one, held_out[:6])) for one in (untrained, model))
    assert results[3]["right"] == pytest.approx(sum(after) / 6, abs=1e-4)
    assert results[3]["least"] == pytest.approx(sum(before) / 6, abs=1e-4)


@pytest.mark.slow
def test_each_gate_asks_what_it_says(held_out, monkeypatch):
    """With answers made up: half are right, with the gold passage all; training doubled what is recovered, or not."""
    asked = []

    def made_up(model, samples, slots, batch):
        asked.append([len(sample.documents) for sample in samples])
        return [s.answers[0] if s.documents or place % 2 else "no" for place, s in enumerate(samples)]

    monkeypatch.setattr(gates, "answer", made_up)
    monkeypatch.setattr(gates, "recover", lambda model, samples: [0.5, 0.7] if model == "after" else [0.2, 0.4])
    monkeypatch.setattr(gates, "continue_text", lambda model, samples: [0.1, 0.3] if model == "after" else [0.2, 0.4])
    closed, oracle, text, written = measure_adapter("after", "before", held_out, 4)  # pyright: ignore[reportArgumentType]
    assert asked == [[0] * 4, [1] * 4]
    assert (closed["right"], closed["n"], closed["exact"], closed["passed"]) == (0.5, 4, 0.5, None)
    assert (oracle["right"], oracle["passed"]) == (1.0, True)
    assert (text["right"], text["least"], text["passed"], text["n"]) == (0.6, 0.3, True, 2)
    assert (written["right"], written["least"], written["passed"]) == (0.2, 0.3, False)
    assert measure_adapter("before", "before", held_out, 4)[2]["passed"] is False  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(gates, "recover", lambda model, samples: [0.9, 0.1] if model == "after" else [0.2, 0.2])
    chance = measure_adapter("after", "before", held_out, 4)[2]  # pyright: ignore[reportArgumentType]
    assert chance["right"] > chance["least"] and chance["passed"] is False  # better, and may be so by chance


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fork", "parent"])
def test_an_answer_is_what_the_model_says_up_to_its_first_eos(folder, parent, held_out, kind):
    """Questions whose accepted answer is what a plain loop over single prompts gives are all right."""
    model = fs.load(folder if kind == "fork" else parent)
    mdm = model.mask_id is not None
    sampler = fs.LLaDASampler(steps=12, length=12, hold_eos=True) if mdm else fs.AutoregressiveSampler(length=12)
    samples = []
    for sample in held_out[:6]:
        prompt = fs.build_prompt(model.tokenizer, sample.question, sample.documents, raw=True)
        found = fs.generate(model, prompt.ids, sampler)
        assert not isinstance(found, list)
        ids = found.answer.tolist()
        said = []
        while ids and ids[0] not in model.eos_ids:
            said.append(ids.pop(0))
        samples.append(replace(sample, answers=(model.tokenizer.decode(said, skip_special_tokens=True).strip(),)))
    assert answer(model, samples, 12, 4) == [sample.answers[0] for sample in samples]


@pytest.mark.slow
def test_recovered_tokens_are_those_that_one_forward_names(folder, held_out):
    model = fs.load(folder)
    assert len(list(recover(model, held_out[:4]))) == 4
    ids = model.tokenizer(held_out[0].documents[0].text, add_special_tokens=False)["input_ids"]
    first = round(MASKED * len(ids))

    class Knows:
        """Says the right token everywhere, from the same canvas."""

        tokenizer, mask_id = model.tokenizer, model.mask_id

        def rows(self, positions, pads):
            return positions

        def forward(self, tokens, pads, positions):
            assert (tokens[0, positions[0]] == self.mask_id).all() and positions.shape == (1, first)
            import torch

            truth = torch.tensor([model.tokenizer.bos_token_id, *ids])[positions[0]]
            truth[0] = (truth[0] + 1) % model.vocabulary  # all but one
            return torch.nn.functional.one_hot(truth, model.vocabulary)[None].float()

    (found,) = recover(Knows(), held_out[:1])  # pyright: ignore[reportArgumentType]
    assert found == pytest.approx(1 - 1 / first)


def test_a_passage_is_continued_from_its_middle(held_out, folder, monkeypatch):
    """F1 by hand: the model sees the first half, and is scored by the words of the other."""
    model = fs.load(folder)
    text = "the old river rose again in spring"
    sample = replace(held_out[0], documents=(Document("", text, True),))
    seen = []

    def made_up(model, samples, slots, batch, sampler):
        (passage,) = samples
        seen.append((passage.before, passage.answers[0], slots))
        words = passage.answers[0].split()
        return [" ".join(["wrong", *words[1:]])]  # all words but one

    monkeypatch.setattr(gates, "answer", made_up)
    (found,) = continue_text(model, [sample])
    (before, rest, slots), count = seen[0], len(model.tokenizer.tokenize(text))
    assert before + rest == text and slots == len(model.tokenizer.tokenize(rest))
    assert len(model.tokenizer.tokenize(before)) == count // 2
    words = len(rest.split())
    assert found == pytest.approx((words - 1) / words)  # as many said as wanted, one of them wrong


def test_a_guess_takes_any_name_or_number():
    document = Document("", "In 1815 the Duke of Wellington met Blücher near Waterloo.", True)
    sample = Sample("1", "who", ("Wellington",), (document,))
    assert guess_in_passages(sample, [sample]) == pytest.approx(
        1 / 5
    )  # In, 1815, Duke of Wellington, Blücher, Waterloo.
    bare = Sample("2", "who", ("Ada",))
    assert guess_in_passages(bare, [bare, Sample("3", "who", ("Ada",)), Sample("4", "who", ("Bela",))]) == 1.0


def test_every_text_is_masked_at_places_of_its_own_that_stay(held_out, folder):
    """The same for every model and every run, and other ones for another question about the same text."""
    model, places = fs.load(folder), []

    class Watched:
        tokenizer, mask_id = model.tokenizer, model.mask_id

        def rows(self, positions, pads):
            places.append(positions[0].tolist())
            return model.rows(positions, pads)

        def forward(self, *given):
            return model.forward(*given)

    twice = [held_out[0], replace(held_out[0], id="another")]
    first, second = (list(recover(Watched(), twice)) for _ in range(2))  # pyright: ignore[reportArgumentType]
    assert places[:2] == places[2:] and places[0] != places[1] and first == second
    tokens = len(model.tokenizer.tokenize(held_out[0].documents[0].text))
    assert all(found == sorted(set(found)) and len(found) == round(0.15 * tokens) for found in places)
    assert min(map(min, places)) >= 1  # bos is never asked for
