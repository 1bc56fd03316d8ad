"""Tables become dataclasses; every mistake names its key, its line and the nearest name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from floatscope.errors import UserError
from floatscope.validation import Mistake, key_lines, mistakes_in, read_toml, validated


@dataclass(frozen=True)
class Size:
    width: int

    @classmethod
    def parse(cls, text: str) -> "Size":
        if not text.isdigit():
            raise UserError(f"no size {text!r}")
        return cls(int(text))


@dataclass(frozen=True)
class Leaf:
    name: str
    colour: Literal["green", "red"] = "green"
    veins: tuple[int, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise Mistake("This name is bad.", "name")


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    size: Size = Size(1)
    names: tuple[str, ...] = ()
    height: float | None = None
    first: Leaf | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def test_tables_become_dataclasses():
    table = {"leaves": [{"name": "a", "veins": [1, 2]}], "size": "7", "names": "x", "height": 3, "extra": {"k": [1]}}
    made = validated(Tree, table, "a tree")
    assert made == Tree((Leaf("a", veins=(1, 2)),), Size(7), ("x",), 3.0, None, {"k": [1]})
    assert isinstance(made.height, float) and isinstance(made.leaves[0].veins, tuple)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("leafs = []", "line 1: There is no key 'leafs' in a tree: did you mean 'leaves'?"),
        ("names = []", "line 1: a tree needs the key 'leaves'."),
        ("\n[[leaves]]\nname = 'a'\n[[leaves]]\nnane = 'b'", "line 5: There is no key 'nane' in [leaves]: did you"),
        ("[[leaves]]\ncolour = 'red'", "line 1: [leaves] needs the key 'name'."),
        ("[[leaves]]\nname = 3", "line 2: name should be a text, not 3."),
        ("[[leaves]]\nname = 'a'\ncolour = 'blue'", "line 3: colour should be one of green, red, not 'blue'."),
        ("[[leaves]]\nname = 'a'\nveins = [1, '2']", "line 3: veins should be a list of whole numbers, not [1, '2']."),
        ("[[leaves]]\nname = 'a'\nveins = [true]", "line 3: veins should be a list of whole numbers, not [True]."),
        ("[[leaves]]\nname = 'a'\ntags = {b = 1}", "line 3: tags should be a table of texts, not {'b': 1}."),
        ("[[leaves]]\nname = 'a'\n[[leaves]]\n\nname = 'bad'", "line 5: This name is bad."),
        ("[leaves]\nname = 'a'", "line 1: leaves should be tables: write [[leaves]] before each."),
        ("leaves = [1]", "line 1: leaves should be tables: write [[leaves]] before each."),
        ("leaves = []\nsize = 'wide'", "line 2: no size 'wide'"),
        ("leaves = []\nsize = 4", "line 2: size should be a text, not 4."),
        ("leaves = []\nheight = 'tall'", "line 2: height should be a number, not 'tall'."),
        ("leaves = []\nextra = 1", "line 2: extra should be a table, not 1."),
        ("leaves = []\nnames = 2024-01-01", "line 2: names should be a list of texts, not datetime.date(2024, 1, 1)."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_with_its_line(tmp_path, text, told):
    path = tmp_path / "tree.toml"
    path.write_text(text)
    with pytest.raises(UserError) as error, mistakes_in(path):
        validated(Tree, read_toml(path), "a tree")
    assert str(error.value).startswith(f"{path}, {told}")


def test_a_file_that_is_no_toml_is_one_sentence(tmp_path):
    path = tmp_path / "tree.toml"
    for content, told in (
        (b"a = = 1", "not valid TOML: .*line 1"),
        (b"\xff", "UTF-8"),
        (b"a = " + b"[" * 10**5, "TOML"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=told):
            read_toml(path)
    with pytest.raises(UserError, match=r"other\.toml cannot be read: No such file"):
        read_toml(tmp_path / "other.toml")


def test_lines_of_keys_survive_brackets_in_values():
    lines = key_lines('a = "x]["\nb = [\n  1,  # [\n  "c = 3",\n]\nc = 1\n[t]\nd = 1\n[[u]]\n[[u]]\ne = {f = 1}\n')
    assert lines[("a",)] == 1 and lines[("c",)] == 6 and lines[("t", "d")] == 8
    assert lines[("u", 1)] == 10 and lines[("u", 1, "e")] == 11
