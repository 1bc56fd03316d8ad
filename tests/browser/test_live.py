"""The live page in a browser: it denoises to the answer of `fs.generate`, as the page's policy and a phone allow."""

from collections.abc import Iterator

import pytest

import floatscope as fs
from floatscope.live.server import LiveServer
from floatscope.twins.world import World
from tests.browser.conftest import Opener
from tests.live.serving import serving

SAMPLERS = {
    "twin-llada": fs.LLaDASampler(steps=4, length=4),
    "twin-arm": fs.AutoregressiveSampler(length=4),
    "twin-dream": fs.DreamSampler(steps=4, length=4, alg="entropy"),
}
SAMPLE = World(0).samples("rag", 1, documents=3, seed=7)[0]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving([fs.load(name) for name in SAMPLERS]) as running:
        yield running


class LiveOpener(Opener):
    """Opens the live page and waits until its models are ready."""

    def __call__(self, width: int = 1280, dark: bool = False):
        page = super().__call__(self.home, width=width, dark=dark)
        page.locator("#status", has_text="are ready").wait_for()
        return page


@pytest.fixture(scope="module")
def open_live(browser, server) -> Iterator[LiveOpener]:
    opener = LiveOpener(browser, server.url)
    yield opener
    opener.close()


@pytest.fixture(scope="module")
def opened(open_live):
    """The page, opened once for the tests of this module."""
    return open_live()


@pytest.fixture
def page(opened, open_live) -> Iterator:
    """The opened page; nothing may go wrong in it."""
    yield opened
    assert open_live.complaints == []


def type_sample(page, question=SAMPLE.question):
    """Type a sample into the form as a person would."""
    page.locator("#question").fill(question)
    while page.locator(".document").count() > len(SAMPLE.documents):
        page.locator(".document .remove").last.click()
    while page.locator(".document").count() < len(SAMPLE.documents):
        page.locator("#add").click()
    for place, document in enumerate(SAMPLE.documents):
        item = page.locator(".document").nth(place)
        item.locator(".title").fill(document.title)
        item.locator(".text").fill(document.text)
        item.locator(".gold input").set_checked(document.gold)
    page.locator("#answers").fill("\n".join(SAMPLE.answers))
    page.locator("#slots").fill("4")
    page.locator("#steps").fill("4")


def denoise(page, model, other=""):
    page.locator("#model").select_option(model)
    page.locator("#other").select_option(other)
    page.locator("#start").click()
    page.locator("#status", has_text="done").wait_for()


def expected(server, name):
    """Generation, trace and texts of the same prompt without the page."""
    model = server.models[name]
    prompt = fs.build_prompt(model.tokenizer, SAMPLE.question, SAMPLE.documents, SAMPLE.answers)
    generation = fs.generate(model, prompt.ids, SAMPLERS[name])
    return generation, fs.trace(model, prompt, SAMPLERS[name]), model.tokenizer


@pytest.mark.parametrize("other", ["twin-arm", "twin-dream"])
def test_it_denoises_to_the_answer_of_generate(server, page, other):
    type_sample(page)
    denoise(page, "twin-llada", other)
    for place, name in enumerate(("twin-llada", other)):
        generation, trace, tokenizer = expected(server, name)
        text = tokenizer.decode(generation.answer, skip_special_tokens=True).strip()
        card = page.locator("#results li").nth(place)
        assert card.get_attribute("data-prediction") == text
        assert card.locator(".fs-slot").all_inner_texts() == tokenizer.convert_ids_to_tokens(generation.answer)
        assert ("✓ right" in card.inner_text()) is (SAMPLE.answers[0] in text)
        panel = page.locator(".fs-panel").nth(place)
        assert panel.locator(".fs-slot").all_inner_texts() == tokenizer.convert_ids_to_tokens(generation.answer)
        step, layer = trace.steps - 1, int(page.locator(".fs-slider-layer input").input_value())
        shown = panel.locator(".fs-token").evaluate_all("chips => chips.map((chip) => Number(chip.dataset.received))")
        received = trace.received[step].astype(float)
        assert shown == pytest.approx(received[layer].tolist(), abs=received.max() / 60_000)


def test_steps_can_be_gone_back_to(server, page):
    type_sample(page)
    denoise(page, "twin-dream")
    assert page.locator(".fs-panel").count() == 1
    generation, trace, _ = expected(server, "twin-dream")
    page.locator(".fs-player").focus()
    for step in range(trace.steps - 2, -1, -1):
        page.keyboard.press("ArrowLeft")
        states = page.locator(".fs-panel .fs-slot").evaluate_all("slots => slots.map((slot) => slot.dataset.state)")
        when = generation.commit_step
        assert states == ["open" if at > step else "commits" if at == step else "token" for at in when], step


def test_on_a_phone_nothing_is_wider_than_the_screen(open_live):
    page = open_live(width=390, dark=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    denoise(page, "twin-llada", "twin-arm")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    box = page.locator("#watch").bounding_box()
    assert box is not None and box["y"] < 450, "the player has come into view"
    assert open_live.complaints == []


def test_what_is_typed_is_text_and_nothing_else(server, page):
    markup = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    type_sample(page, question=markup)
    page.locator(".document .title").first.fill(markup)
    denoise(page, "twin-llada")
    assert page.title() == "floatscope live"
    assert page.locator(".fs-title").inner_text().startswith("<img src=x")
    assert page.locator("#player img, #player script, #results img").count() == 0
    assert "not in its vocabulary" in page.locator("#results").inner_text()


def test_a_refusal_is_shown_as_a_sentence_and_the_page_goes_on(server, page):
    type_sample(page)
    page.locator(".document .text").first.fill("Ada " * 1900)
    page.locator(".document .text").last.fill("Ada " * 1900)
    page.locator("#start").click()
    page.locator("#status.wrong", has_text="context of 2048").wait_for()
    type_sample(page)
    denoise(page, "twin-arm")


def test_stop_frees_the_queue(server, page):
    page.locator("#slots").fill("128")
    page.locator("#steps").fill("128")
    page.locator("#model").select_option("twin-llada")
    page.locator("#other").select_option("")
    page.locator("#start").click()
    page.locator(".card-state", has_text="step").wait_for()
    page.locator("#stop").click()
    page.locator("#status", has_text="stopped").wait_for()
    page.locator("#slots").fill("4")
    page.locator("#steps").fill("4")
    denoise(page, "twin-arm")
    assert page.locator("#results li").count() == 1
