"""Causal and masked LMs of transformers load, prove themselves and trace without a line of code of their own."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import floatscope as fs
from tests.models.native_models import CAUSAL, EVERY, MASKED, tiny

MASK = 90


@pytest.fixture(scope="module", params=EVERY)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    tiny(request.param).save_pretrained(folder)
    return request.param, folder


def load(name: str, folder: Path, **others: Any) -> fs.Model:
    return fs.load(folder, mask_id=MASK if name in MASKED else None, **others)


def eager_logits(name: str, folder: Path, ids: torch.Tensor) -> torch.Tensor:
    auto = transformers.AutoModelForCausalLM if name in CAUSAL else transformers.AutoModelForMaskedLM
    model = auto.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(input_ids=ids).logits


@pytest.mark.slow
def test_recognised_and_equal_to_transformers_eager(saved: tuple[str, Path]) -> None:
    name, folder = saved
    model = load(name, folder)
    assert model.family.name == ("causal" if name in CAUSAL else "bert")
    assert all(finding.passed for finding in fs.check(model))
    ids = torch.randint(3, 90, (2, 25), generator=torch.Generator().manual_seed(1))
    expected = eager_logits(name, folder, ids)
    assert float((model.logits(ids) - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.slow
def test_traces(saved: tuple[str, Path]) -> None:
    name, folder = saved
    model = load(name, folder)
    prompts = [list(range(3, 16)), list(range(20, 27))]
    sampler = fs.AutoregressiveSampler(length=3) if name in CAUSAL else fs.LLaDASampler(steps=3, length=3, block=3)
    traces = fs.trace(model, prompts, sampler)
    assert isinstance(traces, list)
    for trace, prompt in zip(traces, prompts, strict=True):
        steps = trace.received.shape[0]
        assert trace.received.shape == (steps, 3, len(trace.canvas))
        assert trace.canvas[: len(prompt)].tolist() == prompt
        torch.testing.assert_close(torch.from_numpy(trace.received.sum(-1)), torch.ones(steps, 3), atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("pad", [0, 4])
@pytest.mark.parametrize("name", CAUSAL)
def test_extend_equals_the_whole_forward(name: str, pad: int) -> None:
    """Token by token, past the sliding window, with pads of the shorter prompt on the left and without any."""
    model = fs.Model(tiny(name), fs.FAMILIES["causal"])
    ids = torch.randint(3, 90, (2, 20), generator=torch.Generator().manual_seed(2))
    pads = torch.tensor([0, pad])
    with torch.inference_mode():
        logits, cache = model.extend(ids[:, :8], pads, None)
        for width in range(8, 20):
            for sample, left in enumerate(pads.tolist()):
                alone = model.logits(ids[sample, left:width])[0, -1]
                assert float((logits[sample] - alone).abs().max()) < 1e-4 * float(alone.abs().max())
            logits, cache = model.extend(ids[:, width, None], pads, cache)


def test_roberta_counts_positions_after_its_pad_id() -> None:
    model = fs.Model(tiny("roberta"), fs.FAMILIES["bert"], mask_id=MASK)
    assert model.context == 64  # of 66 rows of the table, two are never used
    assert model.logits([5] * 64).shape == (1, 64, 96)
    with pytest.raises(fs.UserError, match="context of 64"):
        model.logits([5] * 65)


def test_half_precision_passes_its_own_check(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    model = fs.load(tmp_path, dtype=torch.bfloat16)
    assert all(finding.passed for finding in fs.check(model))
