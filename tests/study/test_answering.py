"""Answers as they are scored: all accepted answers count, slots keep their room, every guess draws for itself."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import floatscope as fs
from floatscope.qa.tasks import read_task
from floatscope.study.plan import Curve, ModelPlan, PromptPlan, TaskPlan
from floatscope.study.running import run_study
from tests.qa.tokenizers_made import byte_level
from tests.study.small_studies import small_study


def run_file(tmp_path, lines, documents, **changes):
    """Results of twin-llada on a file with these records, shown so many documents."""
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    study = small_study(
        models=(ModelPlan("twin-llada"),), tasks=(TaskPlan(str(file)),),
        conditions=(Curve("documents", str(documents)),), **changes,
    )  # fmt: skip
    return run_study(study, tmp_path / "run").run.results()


@pytest.mark.slow
def test_any_accepted_answer_is_right_for_models_and_guesses(tmp_path):
    samples = read_task("world:rag:3", limit=6).samples
    lines = [
        {
            "id": sample.id,
            "question": sample.question,
            "answers": ["nothing of the kind", *sample.answers],
            "documents": [vars(document) for document in sample.documents],
        }
        for sample in samples
    ]
    rows = run_file(tmp_path, lines, 3, limit=6)
    names = {sample.id: sample.answers[0].lower() for sample in samples}
    for model in ("twin-llada", "nearest-sentence"):
        found = rows.filter(model=model).select("sample", "prediction", "accuracy").rows()
        by_hand = [float(names[sample] in prediction.lower()) for sample, prediction, _ in found]
        assert [accuracy for *_, accuracy in found] == by_hand
        assert sum(by_hand) >= 3


@pytest.mark.slow
def test_a_prompt_is_cut_so_that_its_answer_slots_still_fit(tmp_path):
    context = 2048
    text = "The founder of Ferrox Steel is Ida Ritter. " * 400
    line = {"id": "long", "question": "Who is the founder of Ferrox Steel?", "answers": ["Ida Ritter"]}
    rows = run_file(tmp_path, [line | {"documents": [{"text": text, "gold": True}]}], 1, slots=40, steps=2)
    ((tokens, cut, error),) = rows.filter(model="twin-llada").select("prompt_tokens", "cut", "error").rows()
    assert error is None and cut > 1000
    assert context - 40 - 8 < tokens <= context - 40


@pytest.mark.slow
def test_every_guess_draws_for_itself(tmp_path):
    """With one draw for all, each guess would be the answer at one place in the list, or at the next."""
    lines = [{"id": str(n), "question": f"What is {n}?", "answers": [f"answer {n}"]} for n in range(16)]
    rows = run_file(tmp_path, lines, 0, limit=16, steps=1)
    guesses = rows.filter(model="other-answer")["prediction"].to_list()
    assert len(guesses) == 16 and len(set(guesses)) >= 6  # 16 draws of 15: 10 different ones are expected
    assert not any(guess == f"answer {place}" for place, guess in enumerate(guesses))


@pytest.mark.slow
@pytest.mark.parametrize(("end", "blank"), [("", " "), (" ", "")])
def test_the_right_answer_is_replayed_as_the_word_that_follows_the_prompt(tmp_path, end, blank):
    """To a byte-level tokenizer "Ida" and " Ida" are other tokens; after a blank in the prompt the word has none."""
    tokenizer = byte_level()
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    template, file = tmp_path / "mine.txt", tmp_path / "mine.jsonl"
    template.write_text("{documents}{text}\n{/documents}Q: {question} A:" + end)
    file.write_text(json.dumps({"question": "Who?", "answers": ["Ida"], "documents": [{"text": "Ida.", "gold": True}]}))
    study = small_study(
        models=(ModelPlan(str(tmp_path / "model")),), tasks=(TaskPlan(str(file)),), prompt=PromptPlan(str(template)),
        conditions=(Curve("edit", "block bos", options={"documents": 1}),),
    )  # fmt: skip
    (row,) = run_study(study, tmp_path / "run").run.results().filter(control="", condition="edit/none").to_dicts()
    model = fs.load(tmp_path / "model")
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f"Ida.\nQ: Who? A:{end}", f"{blank}Ida")]
    assert ids[1] != tokenizer("Ida" if blank else " Ida", add_special_tokens=False)["input_ids"]
    logs = model.logits([tokenizer.bos_token_id, *ids[0], *ids[1]])[0].log_softmax(-1)
    chances = [float(logs[len(ids[0]) + place, token]) for place, token in enumerate(ids[1][:4])]
    assert row["log_probability"] == pytest.approx(sum(chances), abs=1e-3)
