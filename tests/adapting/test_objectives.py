"""The objectives against plain loops: which tokens are masked, which row predicts them, what each weighs."""

import math

import pytest
import torch

from floatscope.adapting.forks import Fork
from floatscope.adapting.objectives import draw_masks, loss_of, make_target
from floatscope.adapting.stream import ANSWER, FIRST_EOS, LATER_EOS, PADDING, PROMPT, TEXT, Batch, pack

EOS = 1
QUESTION = ([0, 30, 31, 32, 40, 41, EOS, EOS, EOS], [PROMPT] * 4 + [ANSWER] * 2 + [FIRST_EOS] + [LATER_EOS] * 2)
RUNNING = ([0, *range(50, 64)], [PROMPT] + [TEXT] * 14)
WEIGHT = {PADDING: 0, PROMPT: 0, TEXT: 0.05, ANSWER: 1, FIRST_EOS: 1, LATER_EOS: 0.05}


def batch():
    return pack([QUESTION, RUNNING], EOS)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def fork(parent):
    made = Fork(parent, "llada", 4, seed=0)
    for parameter in made.parameters().values():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator(1))
    return made


@pytest.mark.parametrize("objective", ["arm", "dream", "llada"])
def test_the_loss_is_the_plain_weighted_sum(fork, objective):
    given = batch()
    target = make_target(objective, given, fork.mask_id, generator())
    visible = given.roles != PADDING
    with torch.no_grad():
        loss, right, answers = loss_of(fork, target, visible)
        expected, total, seen = 0.0, 0.0, 0
        if objective == "arm":
            masked, ratio = torch.ones_like(given.ids, dtype=torch.bool), torch.ones(2, 1)
        else:
            masked, ratio = draw_masks(given, generator())
            assert torch.equal(target.inputs, torch.where(masked, fork.mask_id, given.ids))
        for b, (ids, roles) in enumerate((QUESTION, RUNNING)):
            # one sequence at a time, without padding
            inputs = target.inputs[b : b + 1, : len(ids)]
            rows = torch.tensor([[0, place] for place in range(len(ids))])
            scores = fork.logits(inputs, rows, None).double().log_softmax(-1)
            for place, (label, role) in enumerate(zip(ids, roles, strict=True)):
                total += WEIGHT[role]
                if place == 0 or not masked[b, place] or not WEIGHT[role]:
                    continue
                row = place if objective == "llada" else place - 1
                expected -= WEIGHT[role] / float(ratio[b]) * float(scores[row, label])
                seen += role == ANSWER
    assert float(loss) == pytest.approx(expected / total, rel=1e-4)
    assert answers == seen and 0 <= right <= seen


def test_prompts_and_padding_are_never_masked_and_half_of_the_questions_are_masked_whole():
    whole, shares = 0, []
    many = pack([QUESTION] * 300 + [RUNNING] * 300, EOS)
    masked, ratio = draw_masks(many, generator())
    assert not masked[(many.roles == PROMPT) | (many.roles == PADDING)].any()
    for row in range(300):
        slots = many.roles[row] >= ANSWER
        whole += float(ratio[row]) == 1.0
        assert float(ratio[row]) < 1 or masked[row, slots].all()
    assert 0.4 < whole / 300 < 0.6
    for row in range(300, 600):
        assert 0.1 <= float(ratio[row]) < 1
        shares.append(float(masked[row].sum()) / 14 - float(ratio[row]))
    assert abs(sum(shares) / 300) < 0.02


def test_weights_sum_to_about_one_whatever_the_objective():
    given = pack([QUESTION] * 200 + [RUNNING] * 200, EOS)
    sums = [float(make_target(to, given, 3, generator()).weights.sum()) for to in ("arm", "dream", "llada")]
    assert sums[0] == pytest.approx(1) and all(math.isclose(one, 1, abs_tol=0.05) for one in sums)


def test_a_text_without_bos_never_asks_for_its_first_token():
    given = Batch(torch.arange(10, 20)[None], torch.full((1, 10), TEXT))
    for objective in ("arm", "dream", "llada"):
        target = make_target(objective, given, 3, generator(2))
        assert (target.rows >= 0).all() and 10 not in target.labels and target.inputs[0, 0] == 10
