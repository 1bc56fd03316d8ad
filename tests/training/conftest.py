"""A tiny parent with a tokenizer made on the spot, and made-up questions with passages."""

import json
import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NAMES = ("Ada", "Bela", "Cora", "Dina", "Edda", "Fina", "Gala", "Hana", "Iris", "Jana", "Kira", "Lena")
PLACES = ("Oslo", "Paris", "Quito", "Riga", "Sofia", "Tunis", "Ulm", "Vienna", "Wells", "York", "Zurich", "Bonn")
FILLER = "and many people say that life was quiet there for years until the old river rose again in spring".split()


def make_rows(count):
    """Passages of sixty words, each with one city; the question asks for it."""
    rng = random.Random(0)
    rows = []
    for number in range(count):
        name, place = f"{NAMES[number % 12]} {NAMES[number // 12 % 12]}{number}", PLACES[number * 7 % 12]
        words = [rng.choice(FILLER) for _ in range(60)]
        words.insert(rng.randint(0, 60), f"{name} was born in {place}{number},")
        document = {"title": name, "text": " ".join(words), "gold": True}
        rows.append({"question": f"where was {name} born", "answers": [f"{place}{number}"], "documents": [document]})
    return rows


@pytest.fixture(scope="session")
def rows():
    return make_rows(60)


@pytest.fixture(scope="session")
def data_file(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def parent(rows, tmp_path_factory):
    """A folder with a two-layer Llama and a byte-level BPE."""
    folder = tmp_path_factory.mktemp("parent")
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<s>", "</s>", "<free>", "<mask-to-be>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    inner.train_from_iterator([json.dumps(row) for row in rows] + ["Document 1: Question: Answer:"] * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)  # logits that are not all alike
    model.save_pretrained(folder)
    return folder
