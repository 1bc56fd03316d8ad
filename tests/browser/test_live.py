"""The live page in a browser: it denoises to the answer of `fs.generate`, as the page's policy and a phone allow."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

import floatscope as fs
from floatscope.live.examples import sample_groups
from floatscope.live.server import LiveServer
from floatscope.qa.world import World
from tests.browser.conftest import Opener, eventually
from tests.live.serving import serving

pytestmark = pytest.mark.slow

SAMPLERS = {
    "twin-llada": fs.LLaDASampler(steps=4, length=4),
    "twin-arm": fs.AutoregressiveSampler(length=4),
    "twin-dream": fs.DreamSampler(steps=4, length=4, alg="entropy", top_k=50, mask_is_candidate=True),
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
        expect(page.locator("#status")).to_contain_text("are ready")
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
    documents = page.locator(".document")
    for left in reversed(range(documents.count())):
        page.locator(".document .remove").last.click()
        expect(documents).to_have_count(left)
    for place, document in enumerate(SAMPLE.documents):
        page.locator("#add").click()
        expect(documents).to_have_count(place + 1)
        item = documents.nth(place)
        item.locator(".title").fill(document.title)
        item.locator(".text").fill(document.text)
        item.locator(".gold input").set_checked(document.gold)
    page.locator("#answers").fill("\n".join(SAMPLE.answers))
    page.locator("#slots").fill("4")
    page.locator("#steps").fill("4")


def denoise(page, model, other=""):
    page.locator("#model").select_option(model)
    page.locator("#other").select_option(other)
    with page.expect_request("**/jobs"):  # from here on the status is no longer that of the job before
        page.locator("#start").click()
    expect(page.locator("#status")).to_contain_text("done")


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
        tokens = tokenizer.convert_ids_to_tokens(generation.answer)
        expect(card).to_have_attribute("data-prediction", text)
        eventually(card.locator(".fs-slot").all_inner_texts, equals=tokens)
        expect(card).to_contain_text("✓ right" if SAMPLE.answers[0] in text else "✗ wrong")
        panel = page.locator(".fs-panel").nth(place)
        eventually(panel.locator(".fs-slot").all_inner_texts, equals=tokens)
        step, layer = trace.steps - 1, int(page.locator(".fs-slider-layer input").input_value())
        received = trace.received[step].astype(float)
        eventually(
            panel.locator(".fs-token").evaluate_all,
            "chips => chips.map((chip) => Number(chip.dataset.received))",
            equals=pytest.approx(received[layer].tolist(), abs=received.max() / 60_000),
        )


def test_what_is_typed_is_what_is_sent(server, page):
    type_sample(page)
    page.locator("#answers").fill(" Ida \n\nAnn")
    page.locator("#seed").fill("7")
    page.locator("#steps").fill("2")
    page.locator("#model").select_option("twin-dream")
    page.locator("#other").select_option("twin-llada")
    with page.expect_request("**/jobs") as sent:
        page.locator("#start").click()
    assert sent.value.post_data_json == {
        "question": SAMPLE.question,
        "documents": [{"title": one.title, "text": one.text, "gold": one.gold} for one in SAMPLE.documents],
        "answers": ["Ida", "Ann"],
        "models": ["twin-dream", "twin-llada"],
        "slots": 4,
        "steps": 2,
        "seed": 7,
        "hidden": [],
    }
    expect(page.locator("#status")).to_contain_text("done")
    gold = [f"doc {number}" for number, document in enumerate(SAMPLE.documents, 1) if document.gold]
    for panel in page.locator(".fs-panel").all():
        assert panel.locator(".fs-is-gold").evaluate_all("all => all.map(box => box.dataset.region)") == gold
    page.locator("#seed").fill("0")


def test_a_hidden_document_and_token_change_the_answer_beside_the_first_run(server, page):
    model = server.models["twin-llada"]
    type_sample(page)
    denoise(page, "twin-llada", "twin-arm")
    expect(page.locator("#hiding")).to_be_hidden()
    gold = 1 + [document.gold for document in SAMPLE.documents].index(True)
    page.get_by_label(f"Hide document {gold}").check()
    chip = page.locator(".fs-panel").first.locator(".fs-token").nth(3)
    word = chip.inner_text()
    chip.click()
    expect(chip).to_have_class(re.compile("fs-hidden"))
    expect(page.locator("#hidden-names")).to_have_text(f"document {gold}, “{word}”")
    with page.expect_request("**/jobs") as sent:
        page.locator("#again").click()
    assert sent.value.post_data_json["hidden"] == [f"doc {gold}", "3"]
    expect(page.locator("#status")).to_contain_text("done")
    prompt = fs.build_prompt(model.tokenizer, SAMPLE.question, SAMPLE.documents, SAMPLE.answers)
    sampler = model.sampler({"steps": 4}, length=4)
    edit = fs.Edit("block", keys=f"doc {gold} or 3")
    first, second = (model.text(fs.generate(model, prompt, sampler, edits=edits).answer) for edits in ([], [edit]))
    assert first != second
    expect(page.locator("#status")).to_have_text(f"done: the answer changes from “{first}” to “{second}”")
    eventually(lambda: page.locator("#results li b").all_inner_texts(), equals=["twin-llada", "twin-llada, edited"])
    expect(page.locator("#results li").nth(1)).to_contain_text(f"changed from “{first}”")
    page.locator("#unhide").click()
    expect(page.locator("#hiding")).to_be_hidden()
    expect(chip).not_to_have_class(re.compile("fs-hidden"))


def test_a_text_with_a_gap_is_filled_where_the_gap_is(server, page, open_live):
    model = server.models["twin-llada"]
    before, after = "The author of ", " is Tilda Moreau ."
    type_sample(page, question=f"{before}{{answer}}{after}")
    page.locator("#start").click()
    expect(page.locator("#status.wrong")).to_contain_text("remove the documents, or put them into it")
    eventually(lambda: len(open_live.complaints), equals=1)
    assert "400 (Bad Request)" in open_live.complaints.pop()  # which a browser notes by itself
    for _ in SAMPLE.documents:
        page.locator(".document .remove").last.click()
    denoise(page, "twin-llada")
    trace = fs.trace(model, fs.build_canvas(model, before, 4, after), SAMPLERS["twin-llada"])
    words = [model.tokenizer.convert_ids_to_tokens(int(token)) for token in trace.canvas]
    expect(page.locator(".fs-label")).to_have_text(["text before", "answer", "text after"])
    eventually(page.locator(".fs-panel .fs-word").all_inner_texts, equals=words)
    slots = page.locator(".fs-panel .fs-slot").evaluate_all("all => all.map(slot => Number(slot.dataset.token))")
    assert slots == trace.slots.tolist() == [4, 5, 6, 7]


def test_a_passage_brings_its_slots_and_leaves_the_arm_out(server, page):
    groups = page.locator("#samples optgroup")
    page.locator("#other").select_option("twin-arm")
    page.locator("#samples").select_option(index=page.locator("#samples option").count() - 1)
    expect(groups.last).to_have_attribute("label", "What stood before these notes")
    sample = sample_groups(SAMPLERS)[-1]["samples"][-1]
    expect(page.locator("#question")).to_have_value(sample["question"])
    expect(page.locator("#slots")).to_have_value(str(sample["slots"]))
    expect(page.locator("#steps")).to_have_value(str(sample["slots"]))
    expect(page.locator("#other")).to_have_value("")
    denoise(page, "twin-llada")
    expect(page.locator(".fs-label")).to_have_text(["answer", "text after"])
    expect(page.locator(".fs-panel .fs-slot")).to_have_count(sample["slots"])


WATCH_THE_CARD = """() => {
  window.seen = {};
  window.watch = new MutationObserver(() => {
    const card = document.querySelector("#results li");
    const states = card ? [...card.querySelectorAll(".fs-slot")].map((slot) => slot.dataset.state) : [];
    if (card) window.seen[card.querySelector(".card-state").textContent] = states;
  });
  window.watch.observe(document.getElementById("results"), { subtree: true, childList: true, attributes: true });
}"""


def test_the_card_marks_what_commits_at_each_step(server, page):
    type_sample(page)
    page.evaluate(WATCH_THE_CARD)
    denoise(page, "twin-llada")
    seen = page.evaluate("() => { window.watch.disconnect(); return window.seen; }")
    when = expected(server, "twin-llada")[0].commit_step
    for step in range(4):
        states = ["open" if at > step else "commits" if at == step else "token" for at in when]
        assert seen[f"step {step + 1} of 4"] == states


def test_steps_can_be_gone_back_to(server, page):
    type_sample(page)
    denoise(page, "twin-dream")
    expect(page.locator(".fs-panel")).to_have_count(1)
    generation, trace, _ = expected(server, "twin-dream")
    page.locator(".fs-player").focus()
    for step in range(trace.steps - 2, -1, -1):
        page.keyboard.press("ArrowLeft")
        when = generation.commit_step
        eventually(
            page.locator(".fs-panel .fs-slot").evaluate_all,
            "slots => slots.map((slot) => slot.dataset.state)",
            equals=["open" if at > step else "commits" if at == step else "token" for at in when],
        )


def test_on_a_phone_nothing_is_wider_than_the_screen(open_live):
    page = open_live(width=390, dark=True)
    eventually(page.evaluate, "document.documentElement.scrollWidth", equals=390)
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    denoise(page, "twin-llada", "twin-arm")
    eventually(page.evaluate, "document.documentElement.scrollWidth", equals=390)
    in_view = "document.getElementById('watch').getBoundingClientRect().top < 450"
    eventually(page.evaluate, in_view, equals=True)
    assert open_live.complaints == []


def test_what_is_typed_is_text_and_nothing_else(server, page):
    markup = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    type_sample(page, question=markup)
    page.locator(".document .title").first.fill(markup)
    denoise(page, "twin-llada")
    expect(page.locator(".fs-title")).to_have_text(re.compile("^<img src=x"))
    expect(page.locator("#results")).to_contain_text("not in its vocabulary")
    expect(page.locator("#player img, #player script, #results img")).to_have_count(0)
    expect(page).to_have_title("floatscope live")


def test_a_refusal_is_shown_as_a_sentence_and_the_page_goes_on(server, page):
    type_sample(page)
    page.locator(".document .text").first.fill("Ada " * 1900)
    page.locator(".document .text").last.fill("Ada " * 1900)
    page.locator("#start").click()
    expect(page.locator("#status.wrong")).to_contain_text("context of 2048")
    type_sample(page)
    denoise(page, "twin-arm")


def test_stop_frees_the_queue(server, page):
    page.locator("#slots").fill("128")
    page.locator("#steps").fill("128")
    page.locator("#model").select_option("twin-llada")
    page.locator("#other").select_option("")
    page.locator("#start").click()
    expect(page.locator(".card-state")).to_contain_text(re.compile(r"step \d+ of 128"))
    page.locator("#stop").click()
    expect(page.locator("#status")).to_have_text("stopped")
    page.locator("#slots").fill("4")
    page.locator("#steps").fill("4")
    denoise(page, "twin-arm")
    expect(page.locator("#results li")).to_have_count(1)


def test_a_run_can_be_saved_as_trace_picture_and_film(server, page, tmp_path):
    type_sample(page)
    denoise(page, "twin-llada")
    buttons = page.locator("#player .fs-tools button")
    expect(buttons).to_have_text(["PNG", "WebM", "twin-llada.safetensors"])
    starts = {"PNG": b"\x89PNG", "WebM": b"\x1a\x45\xdf\xa3"}
    for name, start in starts.items():
        with page.expect_download() as download:
            buttons.filter(has_text=name).click()
        assert download.value.path().read_bytes().startswith(start)
    with page.expect_download() as download:
        buttons.last.click()
    download.value.save_as(tmp_path / "t.safetensors")
    _, trace, _ = expected(server, "twin-llada")
    saved = fs.Trace.load(tmp_path / "t.safetensors")
    assert (saved.canvas == trace.canvas).all() and saved.metadata["question"] == SAMPLE.question


def test_what_was_typed_outlives_a_reload(page):
    type_sample(page, "Who was here before?")
    page.locator("#model").select_option("twin-arm")
    page.reload()
    expect(page.locator("#question")).to_have_value("Who was here before?")
    expect(page.locator("#model")).to_have_value("twin-arm")
    expect(page.locator("#slots")).to_have_value("4")
    expect(page.locator(".document .text").first).to_have_value(SAMPLE.documents[0].text)
    page.evaluate("sessionStorage.clear()")
