"""Who sees whom: the masks against a triple loop, and through a model by changing one token at a time."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import floatscope as fs
from floatscope.models.families import read_family
from tests.models.native_models import tiny

KINDS = ("bidirectional", "causal", "block_causal(1)", "block_causal(3)", "block_causal(4)", "block_causal(64)")


def may_see(visibility: str, row: int, column: int) -> bool:
    """The definition, for positions counted from the canvas's own start."""
    if visibility == "bidirectional":
        return True
    size = 1 if visibility == "causal" else int(visibility.split("(")[1][:-1])
    return column // size <= row // size


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    visibility=st.sampled_from(KINDS),
    tokens=st.integers(1, 13),
    data=st.data(),
)
def test_masks_equal_the_triple_loop(visibility: str, tokens: int, data: st.DataObject) -> None:
    pads = data.draw(st.lists(st.integers(0, tokens - 1), min_size=1, max_size=3))
    mask = fs.Visibility.parse(visibility).mask(tokens, torch.tensor(pads))
    assert mask.shape == (len(pads), 1, tokens, tokens)
    for sample, pad in enumerate(pads):
        for i in range(tokens):
            for j in range(tokens):
                seen = i == j if min(i, j) < pad else may_see(visibility, i - pad, j - pad)
                assert bool(mask[sample, 0, i, j]) == seen, (sample, i, j)


@pytest.mark.parametrize("visibility", KINDS)
def test_written_form_is_read_back(visibility: str) -> None:
    assert str(fs.Visibility.parse(visibility)) == visibility


@pytest.mark.parametrize("wrong", ["", "both", "block_causal", "block_causal(0)", "causal(4)", "block_causal(-1)"])
def test_anything_else_is_refused(wrong: str) -> None:
    with pytest.raises(fs.UserError, match="visibility"):
        fs.Visibility.parse(wrong)


def declared(folder: Path, visibility: str, logits: str, backbone: str = "LlamaForCausalLM") -> fs.Family:
    file = folder / "own.toml"
    fields = {"backbone": backbone, "visibility": visibility, "logits": logits}
    lines = [f'{name} = "{value}"' for name, value in fields.items()]
    file.write_text("\n".join([*lines, "mask_id = 90", 'sampler = { name = "llada" }']))
    return read_family(file)


@pytest.mark.slow
@pytest.mark.parametrize("logits", ["same", "shifted"])
@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("visibility", ["bidirectional", "causal", "block_causal(4)"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_token_moves_the_rows_that_see_it_and_no_other(
    tmp_path: Path, name: str, visibility: str, pad: int, logits: str
) -> None:
    """The upper triangle, block edges and pads, whatever the shift: rows of the forward know nothing of it."""
    tokens = 11
    model = fs.Model(tiny(name), declared(tmp_path, visibility, logits))
    ids = torch.randint(3, 80, (1, pad + tokens), generator=torch.Generator().manual_seed(3))
    pads, rows = torch.tensor([pad]), pad + torch.arange(tokens)[None]
    with torch.inference_mode():
        before = model.forward(ids, pads, rows)[0]
        for column in range(pad + tokens):
            other = ids.clone()
            other[0, column] += 1
            after = model.forward(other, pads, rows)[0]
            moved = ((after - before).abs().amax(-1) > 1e-6).tolist()
            expected = [column >= pad and may_see(visibility, row, column - pad) for row in range(tokens)]
            assert moved == expected, column


def test_the_shift_moves_scores_and_not_sight(tmp_path: Path) -> None:
    backbone = tiny("llama")
    ids = torch.randint(3, 80, (11,), generator=torch.Generator().manual_seed(4))
    same = fs.Model(backbone, declared(tmp_path, "block_causal(4)", "same")).logits(ids)[0]
    shifted = fs.Model(backbone, declared(tmp_path, "block_causal(4)", "shifted")).logits(ids)[0]
    torch.testing.assert_close(shifted[1:], same[:-1])
    torch.testing.assert_close(shifted[0], same[0])
