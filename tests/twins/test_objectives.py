"""Objectives against a count by hand: which row predicts which token, what it weighs, what is masked."""

import math

import pytest
import torch

from floatscope.twins.architecture import Shape, make_model, set_visibility
from floatscope.twins.objectives import ALL_MASKED, T_MIN, WEIGHTS, WHOLE_SEQUENCE, draw_masks, loss_of, make_target
from floatscope.twins.stream import ANSWER, FIRST, FIRST_EOS, HOP, LATER_EOS, PADDING, TEXT, Batch
from floatscope.twins.tokenizer import make_tokenizer

MASK = 3
#            bos   Q   A   a   b eos eos pad
IDS = [[1, 10, 11, 20, 21, 2, 2, 0]]
ROLES = [[TEXT, TEXT, TEXT, ANSWER, ANSWER, FIRST_EOS, LATER_EOS, PADDING]]
QUESTIONS = [[-1, -1, -1, 0, 0, 0, 0, -1]]
BATCH = Batch(torch.tensor(IDS), torch.tensor(ROLES), torch.tensor(QUESTIONS), torch.zeros(0, 2, dtype=torch.long))
TOTAL = sum(WEIGHTS[role] for role in ROLES[0])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_arm_predicts_every_token_but_bos_from_the_row_before():
    target = make_target("arm", BATCH, MASK, generator())
    assert target.inputs.tolist() == IDS
    assert target.rows.tolist() == [[0, i] for i in range(6)]
    assert target.labels.tolist() == IDS[0][1:7]
    expected = [WEIGHTS[role] / TOTAL for role in ROLES[0][1:7]]
    assert target.weights.tolist() == pytest.approx(expected)
    assert target.answers.tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize(("objective", "shift"), [("dream", 1), ("llada", 0)])
def test_mdms_predict_masked_tokens_only_by_their_own_row_or_the_one_before(objective, shift):
    seen = set()
    for seed in range(60):
        masked, weights = draw_masks(BATCH, generator(seed))
        target = make_target(objective, BATCH, MASK, generator(seed))
        positions = (target.inputs[0] == MASK).nonzero()[:, 0].tolist()
        assert positions == masked[0].nonzero()[:, 0].tolist()
        assert [row - 0 for _, row in target.rows.tolist()] == [p - shift for p in positions]
        assert target.labels.tolist() == [IDS[0][p] for p in positions]
        assert target.weights.tolist() == pytest.approx([float(weights[0, p]) / TOTAL for p in positions])
        assert 0 not in positions and 7 not in positions
        seen |= set(positions)
    assert seen == {1, 2, 3, 4, 5, 6}


def test_both_mdms_mask_the_same_tokens_of_the_same_stream():
    dream, llada = (make_target(name, BATCH, MASK, generator(5)) for name in ("dream", "llada"))
    assert torch.equal(dream.inputs, llada.inputs) and torch.equal(dream.weights, llada.weights)


def test_the_mask_ratio_is_undone_by_the_weight():
    """Over many draws a slot's weight x mask averages to its role weight: E[1(u < t) w / t] = w, in answer maskings."""
    wide = Batch(*(tensor.expand(4000, -1) for tensor in (BATCH.ids, BATCH.roles, BATCH.questions)), BATCH.found)
    masked, weights = draw_masks(wide, generator())
    whole = (masked[:, 1:3]).any(1) | (weights[:, 3] * T_MIN < 0.1001) & (weights[:, 3] < 1)
    expected = torch.tensor([WEIGHTS[ANSWER], WEIGHTS[ANSWER], WEIGHTS[FIRST_EOS], WEIGHTS[LATER_EOS]])
    mean = (weights * masked)[~whole][:, 3:7].mean(0)
    assert torch.allclose(mean, expected, rtol=0.1)
    assert WHOLE_SEQUENCE - 0.05 < whole.float().mean() < WHOLE_SEQUENCE + 0.05


def test_half_of_the_answer_maskings_leave_no_answer_in_sight():
    wide = Batch(*(tensor.expand(4000, -1) for tensor in (BATCH.ids, BATCH.roles, BATCH.questions)), BATCH.found)
    masked, weights = draw_masks(wide, generator())
    full = (weights[:, 3] == WEIGHTS[ANSWER]) & masked[:, 3:7].all(1)
    assert abs(float(full.float().mean()) - ALL_MASKED * (1 - WHOLE_SEQUENCE)) < 0.03


@pytest.mark.parametrize("objective", ["arm", "dream", "llada"])
def test_the_loss_is_the_weighted_cross_entropy_of_plain_logits(objective):
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 1, Shape(width=32, layers=2, heads=2, hidden=32)).eval()
    set_visibility(model, bidirectional=objective != "arm")
    target = make_target(objective, BATCH, MASK, generator(2))
    loss, _ = loss_of(model, target, None if objective == "arm" else BATCH.roles != PADDING)
    logits = model(input_ids=target.inputs[:, :7]).logits.detach().log_softmax(-1)  # without the pad
    by_hand = -sum(
        float(weight) * float(logits[b, row, label])
        for (b, row), label, weight in zip(
            target.rows.tolist(), target.labels.tolist(), target.weights.tolist(), strict=True
        )
    )
    assert math.isclose(float(loss.detach()), by_hand, rel_tol=1e-4)


@pytest.mark.parametrize(("objective", "shift"), [("arm", 1), ("dream", 1), ("llada", 0)])
def test_hints_are_read_from_the_rows_that_predict_first_tokens(objective, shift):
    """Two layers before the end the words found first, one layer before it the token, each by norm and head."""
    roles = [[TEXT, TEXT, TEXT, FIRST, ANSWER, FIRST_EOS, HOP, PADDING]]
    batch = Batch(BATCH.ids, torch.tensor(roles), BATCH.questions, torch.tensor([[30, 31], [40, 41]]))
    model = make_model(make_tokenizer(), 1, Shape(width=32, layers=3, heads=2, hidden=32)).eval()
    set_visibility(model, bidirectional=objective != "arm")
    for seed in range(20):
        target = make_target(objective, batch, MASK, generator(seed))
        visible = None if objective == "arm" else batch.roles != PADDING
        plain, hinted = (float(loss_of(model, target, visible, hint)[0].detach()) for hint in (0.0, 1.0))
        with torch.no_grad():
            states = model.model(target.inputs[:, :7], output_hidden_states=True).hidden_states
        chosen = [p for p in (3, 6) if objective == "arm" or target.inputs[0, p] == MASK]
        found, token = [], []
        for position in chosen:
            with torch.no_grad():
                early, late = (model.lm_head(model.model.norm(states[i][0, position - shift])) for i in (1, 2))
            found += [-float(early.log_softmax(0)[word]) for word in ([30, 31] if position == 3 else [40, 41])]
            token.append(-float(late.log_softmax(0)[IDS[0][position]]))
        expected = len(chosen) / 32 * (sum(found) / len(found) + sum(token) / len(token)) if chosen else 0.0
        assert hinted - plain == pytest.approx(expected, abs=1e-4)


def test_visibility_is_what_it_says():
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 1, Shape(width=32, layers=2, heads=2, hidden=32)).eval()
    ids = torch.randint(5, len(tokenizer), (1, 12))
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1 - 5) % (len(tokenizer) - 5) + 5
    for bidirectional in (False, True, False):
        set_visibility(model, bidirectional)
        with torch.no_grad():
            same = torch.allclose(
                model(input_ids=ids).logits[:, :-1], model(input_ids=changed).logits[:, :-1], atol=1e-6
            )
        assert same is not bidirectional
