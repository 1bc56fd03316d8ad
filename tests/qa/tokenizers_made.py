"""Real tokenizers of every kind, made on the spot, with and without special tokens and chat templates of their own."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from floatscope.qa.world.vocabulary import make_tokenizer

CORPUS = [
    "Document 1: The Silver River. It was born in Port Alden.\nQuestion: Who, where?\nAnswer:",
    "Café naïve e\u0301 שלום مرحبا 👩‍🚀 <s> <|im_end|> [SEP] 1984\n\n",
] * 4
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMING = (
    "{{ bos_token }}{% for message in messages %}{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}{% endfor %}"
)


def trained(model, trainer, pre_tokenizer, decoder=None, normalizer=None, **special) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level(**special) -> PreTrainedTokenizerFast:
    """As GPT-2, Llama 3, Qwen and Dream have it."""
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|mdm_mask|>"],
        show_progress=False,
    )
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(models.BPE(), trainer, level, decoders.ByteLevel(), **{"bos_token": "<s>", **special})


def sentencepiece_like() -> PreTrainedTokenizerFast:
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    return trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), decoders.Metaspace(), unk_token="<unk>")


def wordpiece() -> PreTrainedTokenizerFast:
    """As BERT has it: lower case, no accents, [CLS] before and [SEP] after."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"]
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    made = trained(
        models.WordPiece(unk_token="[UNK]"),
        trainer,
        pre_tokenizers.BertPreTokenizer(),
        normalizer=normalizers.BertNormalizer(),
        **names,
    )
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return made


def adding_bos_and_eos() -> PreTrainedTokenizerFast:
    """As Llama 2 has it, with the eos that some checkpoints ask for."""
    made = byte_level(eos_token="</s>")
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return made


def chatting(template: str) -> PreTrainedTokenizerFast:
    made = byte_level()
    made.chat_template = template
    return made


TOKENIZERS = {
    "bpe": byte_level(),
    "unigram": sentencepiece_like(),
    "wordpiece": wordpiece(),
    "words": make_tokenizer(),
    "bos-eos": adding_bos_and_eos(),
    "chatml": chatting(CHATML),
    "trimming": chatting(TRIMMING),
}
"""Tokens that each puts around a prompt, by the account of its kind: before the text, after it."""
AROUND = {
    "bpe": (["<s>"], []),
    "unigram": ([], []),
    "wordpiece": (["[CLS]"], ["[SEP]"]),
    "words": (["<bos>"], []),
    "bos-eos": (["<s>"], []),
    "chatml": ([], []),
    "trimming": ([], []),
}
