"""Where the parts of a model are found."""

from floatscope.models.loading import locate


def test_every_file_that_decides_an_answer_is_among_those_that_a_run_hashes(tmp_path):
    deciding = {
        "config.json", "generation_config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
        "vocab.json", "merges.txt", "spiece.model", "chat_template.json", "chat_template.jinja",
    }  # fmt: skip
    for name in deciding | {"README.md", "gates.json", "log.jsonl"}:
        (tmp_path / name).write_text("{}")
    assert {file.name for file in locate(tmp_path).files()} == deciding
