"""Objectives against a count by hand: which row predicts which token, what it weighs, what is masked."""

import math
from dataclasses import replace

import pytest
import torch

from floatscope.models.twins import TwinShape, make_model
from floatscope.qa.world.vocabulary import make_tokenizer
from floatscope.training.learner import AdapterLearner, TwinLearner
from floatscope.training.objective import T_MIN, draw_masks, loss_of, make_target
from floatscope.training.recipe import AdapterRecipe, TwinRecipe
from floatscope.training.stream import (
    ANSWER,
    FIRST,
    FIRST_EOS,
    GAP,
    HOP,
    LATER_EOS,
    PADDING,
    PROMPT,
    TEXT,
    Example,
    ExampleBatch,
    pack,
)

TWIN = TwinRecipe(steps=1, batch=1, rate=1.0)
ADAPTER = AdapterRecipe()
WEIGHTS = {PADDING: 0, PROMPT: 0, TEXT: 0.1, ANSWER: 1, FIRST_EOS: 1, LATER_EOS: 0.05, FIRST: 1, HOP: 4}
MASK = 3
#     bos   Q   A   a   b eos eos pad
IDS = [[1, 10, 11, 20, 21, 2, 2, 0]]
ROLES = [[TEXT, TEXT, TEXT, ANSWER, ANSWER, FIRST_EOS, LATER_EOS, PADDING]]
QUESTIONS = [[-1, -1, -1, 0, 0, 0, 0, -1]]
BATCH = ExampleBatch(
    torch.tensor(IDS), torch.tensor(ROLES), torch.tensor(QUESTIONS), torch.zeros(0, 2, dtype=torch.long)
)
TOTAL = sum(WEIGHTS[role] for role in ROLES[0])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_arm_predicts_every_token_but_bos_from_the_row_before():
    target = make_target("arm", BATCH, MASK, TWIN, generator())
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
        masked, weights = draw_masks(BATCH, TWIN, generator(seed))
        target = make_target(objective, BATCH, MASK, TWIN, generator(seed))
        positions = (target.inputs[0] == MASK).nonzero()[:, 0].tolist()
        assert positions == masked[0].nonzero()[:, 0].tolist()
        assert [row - 0 for _, row in target.rows.tolist()] == [p - shift for p in positions]
        assert target.labels.tolist() == [IDS[0][p] for p in positions]
        assert target.weights.tolist() == pytest.approx([float(weights[0, p]) / TOTAL for p in positions])
        assert 0 not in positions and 7 not in positions
        seen |= set(positions)
    assert seen == {1, 2, 3, 4, 5, 6}


def test_both_mdms_mask_the_same_tokens_of_the_same_stream():
    dream, llada = (make_target(name, BATCH, MASK, TWIN, generator(5)) for name in ("dream", "llada"))
    assert torch.equal(dream.inputs, llada.inputs) and torch.equal(dream.weights, llada.weights)


def test_the_mask_ratio_is_undone_by_the_weight():
    """Over many draws a slot's weight x mask averages to its role weight: E[1(u < t) w / t] = w, in answer maskings."""
    wide = ExampleBatch(*(tensor.expand(4000, -1) for tensor in (BATCH.ids, BATCH.roles, BATCH.questions)), BATCH.found)
    masked, weights = draw_masks(wide, TWIN, generator())
    whole = (masked[:, 1:3]).any(1) | (weights[:, 3] * T_MIN < 0.1001) & (weights[:, 3] < 1)
    expected = torch.tensor([WEIGHTS[ANSWER], WEIGHTS[ANSWER], WEIGHTS[FIRST_EOS], WEIGHTS[LATER_EOS]])
    mean = (weights * masked)[~whole][:, 3:7].mean(0)
    assert torch.allclose(mean, expected, rtol=0.1)
    assert TWIN.whole - 0.05 < whole.float().mean() < TWIN.whole + 0.05


def test_half_of_the_answer_maskings_leave_no_answer_in_sight():
    wide = ExampleBatch(*(tensor.expand(4000, -1) for tensor in (BATCH.ids, BATCH.roles, BATCH.questions)), BATCH.found)
    masked, weights = draw_masks(wide, TWIN, generator())
    full = (weights[:, 3] == WEIGHTS[ANSWER]) & masked[:, 3:7].all(1)
    assert abs(float(full.float().mean()) - 0.5 * (1 - TWIN.whole)) < 0.03
    masked, _ = draw_masks(wide, replace(TWIN, full=1.0, whole=0.0), generator())
    assert masked[:, 3:7].all() and not masked[:, :3].any()


def test_a_sequence_masked_as_a_whole_has_one_ratio_and_weighs_as_text_does():
    masked, weights = draw_masks(BATCH, replace(TWIN, whole=1.0), generator(3))
    drawn = generator(3)
    torch.rand(1, 1, generator=drawn)  # the lot by which it is masked as a whole
    t = 0.1 + 0.9 * float(torch.rand(1, 1, generator=drawn))
    expected = [min(WEIGHTS[role], 0.1) / t for role in ROLES[0]]
    assert weights[0].tolist() == pytest.approx(expected) and not masked[0, 0] and not masked[0, 7]


@pytest.mark.parametrize("objective", ["arm", "dream", "llada"])
def test_the_loss_is_the_weighted_cross_entropy_of_plain_logits(objective):
    model = make_model(make_tokenizer(), 1, TwinShape(width=32, layers=2, heads=2, hidden=32)).eval()
    learner = TwinLearner(model, objective, make_tokenizer())
    target = make_target(objective, BATCH, MASK, TWIN, generator(2))
    loss, _ = loss_of(learner, target, None if objective == "arm" else BATCH.roles != PADDING)
    logits = model(input_ids=target.inputs[:, :7]).logits.detach().log_softmax(-1)  # without the pad
    by_hand = -sum(
        float(weight) * float(logits[b, row, label])
        for (b, row), label, weight in zip(
            target.rows.tolist(), target.labels.tolist(), target.weights.tolist(), strict=True
        )
    )
    assert math.isclose(float(loss.detach()), by_hand, rel_tol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "shift"), [("arm", 1), ("dream", 1), ("llada", 0)])
def test_hints_are_read_from_the_rows_that_predict_first_tokens(objective, shift):
    """Two layers before the end the words found first, one layer before it the token, each by norm and head."""
    roles = [[TEXT, TEXT, TEXT, FIRST, ANSWER, FIRST_EOS, HOP, PADDING]]
    batch = ExampleBatch(BATCH.ids, torch.tensor(roles), BATCH.questions, torch.tensor([[30, 31], [40, 41]]))
    model = make_model(make_tokenizer(), 1, TwinShape(width=32, layers=3, heads=2, hidden=32)).eval()
    learner = TwinLearner(model, objective, make_tokenizer())
    for seed in range(20):
        target = make_target(objective, batch, MASK, TWIN, generator(seed))
        visible = None if objective == "arm" else batch.roles != PADDING
        plain, hinted = (float(loss_of(learner, target, visible, hint)[0].detach()) for hint in (0.0, 1.0))
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


@pytest.mark.parametrize("twin", ["parent", "arm", "dream", "llada"])
def test_a_twin_in_training_sees_what_it_should(twin):
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 1, TwinShape(width=32, layers=2, heads=2, hidden=32)).eval()
    learner = TwinLearner(model, twin, tokenizer)
    ids = torch.randint(5, len(tokenizer), (1, 12))
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1 - 5) % (len(tokenizer) - 5) + 5
    with torch.no_grad():
        first, second = (learner.states(given, None)[-1][:, :-1] for given in (ids, changed))
    assert torch.allclose(first, second, atol=1e-6) is (twin in ("parent", "arm"))


EOS = 1
QUESTION = Example(
    [0, 30, 31, 32, 40, 41, EOS, EOS, EOS],
    [PROMPT] * 4 + [ANSWER] * 2 + [FIRST_EOS] + [LATER_EOS] * 2,
    [-1] * 4 + [0] * 5,
)
# a text with a gap of five tokens to be written
WRITTEN = Example([0, *range(70, 82)], [PROMPT] + [TEXT] * 4 + [GAP] * 5 + [TEXT] * 3, [-1] * 5 + [0] * 5 + [-1] * 3)
RUNNING = Example([0, *range(50, 64)], [PROMPT] + [TEXT] * 14, [-1] + [0] * 14)
WEIGHT = {**WEIGHTS, TEXT: 0.05, GAP: 0.2}


def ratios(running, seed=0):
    """The mask ratio of each sequence [B, 1], drawn by hand: t ~ U(0.1, 1), but 1 in half of the questions."""
    drawn = generator(seed)
    t = 0.1 + 0.9 * torch.rand(len(running), 1, generator=drawn)
    full = torch.rand(len(running), 1, generator=drawn) < 0.5
    return torch.where(full & ~torch.tensor(running)[:, None], 1.0, t)


@pytest.fixture(scope="module")
def fork(parent):
    made = AdapterLearner(parent, "llada", 4, seed=0)
    for parameter in made.parameters().values():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator(1))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["arm", "dream", "llada"])
def test_an_adapters_loss_is_the_plain_weighted_sum(fork, objective):
    given = pack([QUESTION, RUNNING, WRITTEN], EOS)
    target = make_target(objective, given, fork.mask_id, ADAPTER, generator())
    visible = given.roles != PADDING
    with torch.no_grad():
        loss, counts = loss_of(fork, target, visible)
        expected, total, right, seen = 0.0, 0.0, {ANSWER: 0, GAP: 0}, {ANSWER: 0, GAP: 0}
        if objective == "arm":
            masked, ratio = torch.ones_like(given.ids, dtype=torch.bool), torch.ones(3, 1)
        else:
            masked, ratio = draw_masks(given, ADAPTER, generator())[0], ratios([False, True, False])
            assert torch.equal(target.inputs, torch.where(masked, fork.mask_id, given.ids))
        for b, (ids, roles) in enumerate((one.ids, one.roles) for one in (QUESTION, RUNNING, WRITTEN)):
            # one sequence at a time, without padding
            inputs = target.inputs[b : b + 1, : len(ids)]
            rows = torch.tensor([[0, place] for place in range(len(ids))])
            states = fork.states(inputs, None)[-1]
            scores = fork.head(states[rows[:, 0], rows[:, 1]]).double().log_softmax(-1)
            for place, (label, role) in enumerate(zip(ids, roles, strict=True)):
                total += WEIGHT[role]
                if place == 0 or not masked[b, place] or not WEIGHT[role]:
                    continue
                row = place if objective == "llada" else place - 1
                expected -= WEIGHT[role] / float(ratio[b]) * float(scores[row, label])
                if role in seen:
                    seen[role] += 1
                    right[role] += int(scores[row].argmax()) == label
    assert float(loss) == pytest.approx(expected / total, rel=1e-4)
    assert counts.tolist() == [[right[role], seen[role]] for role in (ANSWER, GAP)] and seen[GAP] > 0


def test_prompts_and_padding_are_never_masked_and_half_of_the_questions_are_masked_whole():
    whole, shares = 0, []
    many = pack([QUESTION] * 300 + [RUNNING] * 300, EOS)
    masked, weights = draw_masks(many, ADAPTER, generator())
    ratio = ratios([False] * 300 + [True] * 300)
    roles = torch.tensor([[WEIGHT[role] for role in row] for row in many.roles.tolist()])
    torch.testing.assert_close(weights, roles / ratio)
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
    sums = [float(make_target(to, given, 3, ADAPTER, generator()).weights.sum()) for to in ("arm", "dream", "llada")]
    assert sums[0] == pytest.approx(1) and all(math.isclose(one, 1, abs_tol=0.05) for one in sums)


def test_a_text_without_bos_never_asks_for_its_first_token():
    given = pack([Example([*range(10, 20)], [TEXT] * 10, [0] * 10)], EOS)
    for objective in ("arm", "dream", "llada"):
        target = make_target(objective, given, 3, ADAPTER, generator(2))
        assert (target.rows >= 0).all() and 10 not in target.labels and target.inputs[0, 0] == 10
