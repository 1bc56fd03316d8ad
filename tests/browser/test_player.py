"""The player on runs written down by hand: slots anywhere, unequal depths, every word and pixel in its place."""

import base64
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from floatscope.reports.markup import asset, script_json
from tests.browser.conftest import Opener, eventually

pytestmark = pytest.mark.slow

INK, HEAT, ACCENT = (31, 35, 40), (232, 89, 12), (184, 67, 15)


def made_run(received: np.ndarray, anchors: dict[tuple[int, int], list[int]], **data) -> dict:
    """A run from received attention [step, layer, token] and the anchors of (step, layer); none elsewhere."""
    scale = float(received.max())
    steps = []
    for number, step in enumerate(received):
        levels = np.round(step / scale * 65535).astype("<u2")
        steps.append(
            {
                "received": {"scale": scale, "data": base64.b64encode(levels.tobytes()).decode()},
                "anchors": [anchors.get((number, layer), []) for layer in range(len(step))],
            }
        )
    about = {
        "model": "diffuser",
        "kind": "mdm",
        "visibility": "bidirectional",
        "gold": [],
        "marked": [],
        "special": [0],
    }
    about |= {"gold": [], "marked": [], "glued": []}
    return about | {"layers": received.shape[1], "steps": steps} | data


def numbers(steps: int, layers: int, tokens: int, seed: int) -> np.ndarray:
    """[step, layer, token] from 1 % to 20 %, no two neighbours alike."""
    return np.random.default_rng(seed).integers(1, 21, (steps, layers, tokens)) / 100


GAP = made_run(
    GAP_RECEIVED := numbers(4, 3, 8, 0),
    # first to last: layer 0 keeps its anchor, layer 1 exchanges one of three, layer 2 both
    {(0, 0): [1], (3, 0): [1], (0, 1): [1, 2], (3, 1): [2, 4], (0, 2): [1, 6], (1, 2): [3, 6], (3, 2): [3, 4]},
    tokens=["<bos>", "Who", "is", "Ida", "Rit", "ter", "at", "home"],
    glued=[5],
    regions=[["bos", 0, 1], ["before", 1, 3], ["answer", 3, 6], ["after", 6, 8]],
    slots=[3, 4, 5],
    commit_step=[2, 0, 1],
    confidence=[0.5, 0.25, 0.75],
)
DOCUMENTS = {
    "tokens": ["<bos>", "Doc", "Ann", ".", "Doc", "Ida", "rules", ".", "Who", "?", "Ida", "."],
    "glued": [3, 7, 9, 11],
    "regions": [["bos", 0, 1], ["scaffold", 1, 2], ["doc 1", 2, 4], ["scaffold", 4, 5], ["doc 2", 5, 8],
                ["query", 8, 10], ["answer", 10, 12]],
    "gold": ["doc 2"], "marked": [5], "slots": [10, 11], "commit_step": [0, 1], "confidence": [0.5, 0.25],
}  # fmt: skip
ONE_STEP = made_run(
    np.array([[[0.1, 0.2], [0.1, 0.4], [0.3, 0.1]]]), {}, tokens=["a", "b"],
    regions=[["query", 0, 1], ["answer", 1, 2]],
    slots=[1], commit_step=[0], confidence=[1],
)  # fmt: skip
SHALLOW, DEEP = numbers(2, 3, 12, 1), numbers(2, 5, 12, 2)
SAMPLES = [
    {"id": "g", "condition": "left", "question": "a gap", "answers": ["Ida Ritter"], "runs": [GAP]},
    {
        "id": "d",
        "condition": "documents/2",
        "question": "Who?",
        "answers": ["Ida", "Ann"],
        "runs": [
            made_run(DEEP, {(0, 3): [2]}, **DOCUMENTS, correct=False) | {"model": "writer", "kind": "arm"},
            made_run(SHALLOW, {(1, 1): [5]}, **DOCUMENTS, correct=True),
        ],
    },
    {"id": "o", "condition": "left", "question": "one step", "answers": [], "runs": [ONE_STEP]},
]


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    path = tmp_path_factory.mktemp("player") / "player.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><style>{asset('components.css')}</style><div id=here></div>"
        f"<script>{asset('run.js')}</script><script>{asset('canvas.js')}</script><script>{asset('player.js')}</script>"
        f"<script>const player = new floatscope.Player(here, {script_json({'samples': SAMPLES})});</script>",
        encoding="utf-8",
    )
    opener = Opener(browser)
    yield opener(path)
    opener.close()
    assert opener.complaints == []


@pytest.fixture
def page(opened):
    """The player at step 0 of the first sample, at the layer where it opens."""
    opened.evaluate("() => { player.models = null; player.step = 0; player.openSample(0); player.goLayer(2); }")
    expect(opened.locator(".fs-slider-step output")).to_have_text("0 / 3")
    return opened


def show(page, sample: int, step: int, layer: int) -> None:
    page.evaluate(
        f"() => {{ player.models = null; player.openSample({sample}); player.go({step}); player.goLayer({layer}); }}"
    )
    expect(page.locator(".fs-slider-layer output")).to_have_text(re.compile(f"^{layer} / "))


def boxes(page, panel: int = 0) -> list[tuple[str, str]]:
    """The label and the text of each region, as they are read."""
    script = (
        "all => all.map(box => [box.querySelector('.fs-label').textContent, box.querySelector('.fs-text').textContent])"
    )
    return [tuple(box) for box in page.locator(".fs-panel").nth(panel).locator(".fs-region").evaluate_all(script)]


def test_samples_of_several_conditions_are_told_apart(page):
    options = page.locator(".fs-sample option")
    expect(options).to_have_text(
        ["1 of 3: a gap (left)", "2 of 3: Who? (documents/2) ✗ writer", "3 of 3: one step (left)"]
    )
    page.evaluate("() => { player.samples.forEach((sample) => { sample.condition = 'one'; }); player.openSample(0); }")
    expect(options).to_have_text(["1 of 3: a gap", "2 of 3: Who? ✗ writer", "3 of 3: one step"])
    page.evaluate(
        "() => { player.samples.forEach((sample, n) => { sample.condition = ['left', 'documents/2', 'left'][n]; }); }"
    )


def test_it_opens_where_the_anchors_of_first_and_last_step_differ_most(opened):
    assert opened.evaluate("[player.sample, player.layer]") == [0, 2]
    assert opened.evaluate("player.tellingLayer()") == 2
    assert opened.evaluate("[0, 1, 2].map(layer => player.run(0).exchanged(layer))") == [0, 2, 4]


def test_where_nothing_moves_it_opens_where_most_is_received(page):
    page.evaluate("() => { player.models = null; player.openSample(2); }")
    assert page.evaluate("player.tellingLayer()") == 1


def test_a_step_that_arrives_is_shown_unless_the_reader_has_gone_back(page):
    show(page, 2, 0, 1)
    push = "() => { player.push(0, player.run(0).steps[0]); return player.step; }"
    assert page.evaluate(push) == 1
    page.evaluate("() => player.go(0)")
    assert page.evaluate(push) == 0
    page.evaluate("() => { player.run(0).steps.length = 1; player.measure(); player.openSample(2); }")


def test_slots_in_the_middle_stand_between_the_texts(page):
    show(page, 0, 3, 2)
    assert boxes(page) == [("text before", " <bos> Who is"), ("answer", " Ida Ritter"), ("text after", " at home")]
    slots = page.locator(".fs-slot[data-token]")
    assert slots.evaluate_all("all => all.map(slot => Number(slot.dataset.token))") == [3, 4, 5]


@pytest.mark.parametrize(
    ("step", "states", "answer"),
    [
        (0, ["open", "commits", "open"], "▁ Rit ▁"),
        (1, ["open", "token", "commits"], "▁ Ritter"),
        (2, ["commits", "token", "token"], "Ida Ritter"),
        (3, ["token", "token", "token"], "Ida Ritter"),
    ],
)
def test_slots_are_filled_at_their_steps(page, step, states, answer):
    show(page, 0, step, 1)
    eventually(
        page.locator(".fs-slot[data-token]").evaluate_all, "all => all.map(slot => slot.dataset.state)", equals=states
    )
    expect(page.locator(".fs-status")).to_have_text(f"step {step} of 3 · layer 1 · answer: {answer}")


@pytest.mark.parametrize(
    ("step", "states", "words", "answer"),
    [
        (0, ["commits", "open", "open"], ["Ada", "", ""], "Ada ▁"),
        (1, ["revised", "commits", "open"], ["Ida", "Rat", ""], "Ida Rat ▁"),
        (2, ["token", "renoised", "commits"], ["Ida", "Rat", "ter"], "Ida ▁ter"),
        (3, ["token", "commits", "token"], ["Ida", "Rit", "ter"], "Ida Ritter"),
    ],
)
def test_changed_and_withdrawn_tokens_are_shown_at_their_steps(page, step, states, words, answer):
    page.evaluate(
        """() => {
          const run = player.samples[0].runs[0];
          run.history = run.replay([
            [[0, "commits", "Ada"]], [[0, "revised", "Ida"], [1, "commits", "Rat"]],
            [[1, "renoised", "Rat"], [2, "commits", "ter"]], [[1, "commits", "Rit"]],
          ]);
        }"""
    )
    try:
        show(page, 0, step, 1)
        slots = page.locator(".fs-slot[data-token]")
        eventually(slots.evaluate_all, "all => all.map(slot => slot.dataset.state)", equals=states)
        assert slots.evaluate_all("all => all.map(slot => slot.textContent)") == words
        expect(page.locator(".fs-status")).to_have_text(f"step {step} of 3 · layer 1 · answer: {answer}")
        expect(page.locator(".fs-legend")).to_contain_text("is withdrawn")
    finally:
        page.evaluate("() => { player.samples[0].runs[0].history = undefined; player.show(); }")


def test_the_most_attended_token_is_told(page):
    for step, layer in ((0, 0), (1, 2), (3, 1)):
        show(page, 0, step, layer)
        page.mouse.move(0, 0)
        row = GAP_RECEIVED[step, layer]
        top = int(row.argmax())
        place = next(label for label, start, stop in GAP["regions"] if start <= top < stop)
        is_open = top in GAP["slots"] and GAP["commit_step"][GAP["slots"].index(top)] > step
        word = "a masked slot" if is_open else f"“{GAP['tokens'][top]}”"
        share = f"{100 * row[top]:.1f}" if row[top] >= 0.0995 else f"{100 * row[top]:.2f}"
        count = len(GAP["steps"][step]["anchors"][layer])
        told = f"most attended {word} ({place}) with {share} %, {count} anchor{'' if count == 1 else 's'}"
        expect(page.locator(".fs-readout")).to_have_text(told)
        expect(page.locator(".fs-live")).to_contain_text(f"Step {step} of 3, layer {layer}. diffuser: {told}; answer")


def test_a_token_tells_its_own_numbers(page):
    show(page, 0, 1, 2)
    for token, told in (
        (6, "at · token 6 · after · received {} · anchor"),
        (5, "ter · token 5 · answer · received {} · committed at step 1 with 75.0 %"),
        (4, "Rit · token 4 · answer · received {} · committed at step 0 with 25.0 %"),
        (3, "masked slot · token 3 · answer · received {} · anchor"),
    ):
        page.locator(f'.fs-token[data-token="{token}"]').hover()
        value = GAP_RECEIVED[1, 2, token]
        share = f"{100 * value:.1f} %" if value >= 0.0995 else f"{100 * value:.2f} %"
        expect(page.locator(".fs-readout")).to_have_text(told.format(share))


# The colours of the map of the first panel: near the top of each cell, at its middle, at its left edge, and below it.
PIXELS = """([steps, tokens]) => { const map = document.querySelector('.fs-map');
  const copy = Object.assign(document.createElement('canvas'), {width: map.width, height: map.height});
  const pen = copy.getContext('2d', {willReadFrequently: true});
  pen.drawImage(map, 0, 0);
  const image = pen.getImageData(0, 0, map.width, map.height).data;
  const at = (x, y) => [...image.slice(4 * (map.width * Math.floor(y) + Math.floor(x))).slice(0, 4)];
  const across = map.width / tokens, down = (map.height - 5) / steps;
  const each = (count, read) => Array.from({length: count}, (_, place) => read(place));
  const cells = (inside) => each(steps, (s) => each(tokens, (t) => at((t + inside) * across, (s + inside) * down)));
  return { shade: cells(0.3), middle: cells(0.5), edge: each(steps, (s) => at(0, (s + 0.5) * down)),
    below: each(tokens, (t) => at((t + 0.5) * across, map.height - 1)) }; }"""


def test_the_map_has_a_row_for_each_step_and_marks_anchors_and_slots(page):
    for layer, step in ((2, 1), (0, 3)):
        show(page, 0, step, layer)
        found = {name: np.array(pixels) for name, pixels in page.evaluate(PIXELS, [4, 8]).items()}
        peak = GAP_RECEIVED[:, layer].max()
        np.testing.assert_allclose(found["shade"][..., 3] / 255, np.sqrt(GAP_RECEIVED[:, layer] / peak), atol=0.01)
        bright = found["shade"][..., 3] > 128
        assert np.abs(found["shade"][bright][:, :3] - HEAT).max() <= 3
        anchors = [[t in GAP["steps"][s]["anchors"][layer] for t in range(8)] for s in range(4)]
        assert (found["middle"] == [*INK, 255]).all(axis=-1).tolist() == anchors
        assert (found["edge"] == [*INK, 255]).all(axis=-1).tolist() == [s == step for s in range(4)]
        assert (found["below"] == [*ACCENT, 255]).all(axis=-1).tolist() == [t in (3, 4, 5) for t in range(8)]


def test_a_click_on_the_map_goes_to_its_step(page):
    box = page.locator(".fs-map").bounding_box()
    for step in (2, 0, 3):
        page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + (step + 0.5) / 4 * (box["height"] - 5))
        expect(page.locator(".fs-slider-step output")).to_have_text(f"{step} / 3")


def test_the_mdm_stands_first_and_gold_and_answers_are_marked(page):
    show(page, 1, 1, 2)
    expect(page.locator(".fs-about")).to_have_text(["MDM, bidirectional", "ARM, bidirectional"])
    expect(page.locator(".fs-verdict")).to_have_text(["✓ right", "✗ wrong"])
    expect(page.locator(".fs-answers")).to_have_text("right answer: Ida or Ann")
    for panel in (0, 1):
        assert boxes(page, panel) == [
            ("document 1", " <bos> Doc Ann."),
            ("document 2gold", " Doc Ida rules."),
            ("question", " Who?"),
            ("answer", " Ida."),
        ]
        part = page.locator(".fs-panel").nth(panel)
        assert part.locator(".fs-is-gold").evaluate_all("all => all.map(box => box.dataset.region)") == ["doc 2"]
        assert part.locator(".fs-marked").evaluate_all("all => all.map(chip => chip.dataset.token)") == ["5"]


def test_models_of_unequal_depth_are_shown_at_the_same_relative_depth(page):
    """Of three layers and of five: layer 2 of 0 to 4 is layer 1 of 0 to 2."""
    values = "all => all.map(chip => Number(chip.dataset.received))"
    for deep, shallow in ((0, 0), (2, 1), (4, 2)):
        show(page, 1, 1, deep)
        for panel, expected in ((0, SHALLOW[1, shallow]), (1, DEEP[1, deep])):
            chips = page.locator(".fs-panel").nth(panel).locator(".fs-token")
            eventually(chips.evaluate_all, values, equals=pytest.approx(expected.tolist(), abs=1e-5))
        anchors = page.locator(".fs-panel .fs-anchor").evaluate_all("all => all.map(chip => chip.dataset.token)")
        assert anchors == (["5"] if shallow == 1 else [])
