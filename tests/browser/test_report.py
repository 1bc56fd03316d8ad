"""The report in a real browser, from file:// and offline: the player's shading, keys, themes, files, widths, speed."""

import io
import re
from dataclasses import replace
from xml.etree import ElementTree

import altair as alt
import numpy as np
import polars as pl
import pytest
from playwright.sync_api import expect

from floatscope.analysis import draw
from floatscope.analysis.anchors import detect
from floatscope.analysis.figure import Figure
from floatscope.analysis.palette import DARK
from floatscope.analysis.palette import MODELS as COLOURS
from floatscope.reports.markup import asset, script_json
from floatscope.reports.page import build_page, figure_page
from floatscope.reports.player import player_data, run_data
from tests.browser.conftest import TWINS, Opener, eventually
from tests.reports.making import MODELS, made_content, made_results, made_scores

pytestmark = pytest.mark.slow

# What the tokens of a panel show, one list per property. A computed colour is rgb(), rgba() or color(srgb ... / alpha).
CHIPS = "[...document.querySelectorAll('.fs-panel')[panel].querySelectorAll('.fs-token')]"
RECEIVED = f"panel => {CHIPS}.map(chip => Number(chip.dataset.received))"
SHADES = f"""panel => {{ const chips = {CHIPS};
  const opacity = /(?:\\/|rgba\\(.*,)\\s*([\\d.e-]+)\\)/;
  return {{ received: chips.map(chip => Number(chip.dataset.received)),
    opacity: chips.map(chip => Number(getComputedStyle(chip).backgroundColor.match(opacity)?.[1] ?? 1)),
    anchor: chips.map(chip => chip.classList.contains('fs-anchor')) }}; }}"""
SLOTS = f"""panel => {{ const slots = {CHIPS}.filter(chip => chip.classList.contains('fs-slot'));
  return {{ state: slots.map(slot => slot.dataset.state),
    visibility: slots.map(slot => getComputedStyle(slot.firstChild).visibility) }}; }}"""


def set_slider(page, name: str, value: int) -> None:
    """As a drag does: the value, then an input event."""
    page.locator(f".fs-slider-{name} input").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


def output(page, name: str):
    """Where a slider says how far it is, as "2 / 7"."""
    return page.locator(f".fs-slider-{name} output")


FIGURES = 14  # the drift map, eleven analyses, the stress curves, the methods of attribution


def expect_drawn(page, name: str, theme: str = "light"):
    """The figure of that name, once it was gone to and is drawn."""
    figure = page.locator(f"#figure-{name}")
    figure.scroll_into_view_if_needed()
    expect(figure).to_have_attribute("data-drawn", theme)
    return figure


def expect_all_drawn(page) -> None:
    """Every figure of the report has its drawing, each panel of it."""
    expect(page.locator("figure")).to_have_count(FIGURES)
    for name in page.locator("figure").evaluate_all("all => all.map((one) => one.id.slice(7))"):
        expect_drawn(page, name)
    rooms = page.locator("figure .fs-chart:not([hidden]) .fs-view")
    expect(page.locator("figure .fs-chart:not([hidden]) .fs-view :is(svg, canvas)")).to_have_count(rooms.count())


def test_it_opens_offline_with_every_section(page, report):
    expect(page.locator("h1")).to_have_text("Who <gains> more?")
    expect(page.locator("h2")).to_have_text(
        ["What documents add", "Which document it came from", "Where attention goes", "Under stress", "How it was made"]
    )
    expect_all_drawn(page)
    links = page.locator(".contents a").evaluate_all("all => all.map((one) => one.getAttribute('href'))")
    assert (
        links == page.locator("figure").evaluate_all("all => all.map((one) => '#' + one.id)")[2:-1]
    )  # without map, attribution and stress
    assert report.stat().st_size < 10_000_000


@pytest.mark.parametrize(("step", "layer"), [(0, 0), (3, 2), (7, 4)])
def test_the_scrubber_shades_tokens_as_the_trace_says(page, twin_traces, step, layer):
    set_slider(page, "step", step)
    set_slider(page, "layer", layer)
    shown = [twin_traces[0], twin_traces[2]]
    assert [trace.model for trace in shown] == list(TWINS)
    for panel, trace in enumerate(shown):
        at = min(step, trace.steps - 1)
        values = trace.received[at, layer]
        expected = {
            "received": pytest.approx(values.tolist(), abs=2e-6),
            "opacity": pytest.approx(np.sqrt(values / trace.received[:, layer].max()).tolist(), abs=2e-3),
            "anchor": detect(trace, "zscore(3)")[at, layer].tolist(),
        }
        eventually(page.evaluate, SHADES, panel, equals=expected)
    assert detect(twin_traces[0], "zscore(3)").any()


def test_commits_appear_as_they_happen(page, twin_traces):
    trace = twin_traces[0]
    for step in range(trace.steps):
        set_slider(page, "step", step)
        states = ["open" if when > step else "commits" if when == step else "token" for when in trace.commit_step]
        visibility = ["hidden" if state == "open" else "visible" for state in states]
        eventually(page.evaluate, SLOTS, 0, equals={"state": states, "visibility": visibility})


def test_keys_move(page, twin_traces):
    last = twin_traces[0].steps - 1
    set_slider(page, "layer", 2)
    page.locator(".fs-player").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    expect(output(page, "step")).to_have_text(f"1 / {last}")
    page.keyboard.press("ArrowUp")
    expect(output(page, "layer")).to_have_text("3 / 4")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(output(page, "layer")).to_have_text("1 / 4")
    page.keyboard.press("End")
    expect(output(page, "step")).to_have_text(f"{last} / {last}")
    expect(page.locator(".fs-live")).to_contain_text(f"Step {last} of {last}, layer 1")
    page.keyboard.press("Home")
    expect(output(page, "step")).to_have_text(f"0 / {last}")


def test_space_plays_and_pauses(open_page, report, twin_traces):
    """On a clock that the test moves, so that a slow machine misses no step."""
    page = open_page(report)
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    last, step_time = twin_traces[0].steps - 1, 900
    button, step = page.locator(".fs-play"), output(page, "step")
    page.locator(".fs-player").focus()
    page.keyboard.press("Space")
    expect(button).to_have_attribute("aria-label", "Pause")
    page.clock.run_for(2 * step_time)
    expect(step).to_have_text(f"2 / {last}")
    page.keyboard.press("Space")
    expect(button).to_have_attribute("aria-label", "Play")
    page.clock.run_for(2 * step_time)
    expect(step).to_have_text(f"2 / {last}")
    page.keyboard.press("Space")
    expect(button).to_have_attribute("aria-label", "Pause")
    page.clock.run_for(last * step_time)
    expect(step).to_have_text(f"{last} / {last}")
    expect(button).to_have_attribute("aria-label", "Play")  # it stops at the end
    page.keyboard.press("Space")
    expect(step).to_have_text(f"0 / {last}")  # and begins again


SEEN_AGAIN = """() => new Promise(done => new IntersectionObserver((entries, own) => {
    if (entries.some(entry => entry.isIntersecting)) { own.disconnect(); done(); } }, { threshold: 0.2 })
    .observe(document.getElementById('player-root')))"""


def test_it_plays_once_when_it_is_first_seen(open_page, report, twin_traces):
    page = open_page(report, motion=True)
    last, button, step = twin_traces[0].steps - 1, page.locator(".fs-play"), output(page, "step")
    page.clock.run_for((last + 1) * 900)
    expect(step).to_have_text(f"{last} / {last}")  # nobody touched it
    expect(button).to_have_attribute("aria-label", "Play")
    page.evaluate("() => { floatscope.player.play = () => { window.again = true; }; }")
    page.evaluate("scrollTo({top: document.body.scrollHeight, behavior: 'instant'})")
    expect(page.locator("#made")).to_be_in_viewport()
    page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    page.evaluate(SEEN_AGAIN)  # observers are told in the order in which they were made
    assert page.evaluate("window.again === undefined")


def test_who_wants_no_motion_gets_none(open_page, report, twin_traces):
    page = open_page(report, motion=False)
    page.evaluate(SEEN_AGAIN)
    page.clock.run_for(3 * 900)
    expect(output(page, "step")).to_have_text(f"0 / {twin_traces[0].steps - 1}")
    expect(page.locator(".fs-play")).to_have_attribute("aria-label", "Play")
    expect(page.locator("html")).to_have_css("scroll-behavior", "auto")


def test_hovering_tells_numbers(page, twin_traces):
    set_slider(page, "step", 2)
    set_slider(page, "layer", 1)
    page.locator(".fs-panel").first.locator('.fs-token[data-token="5"]').hover()
    values = [100 * trace.received[min(2, trace.steps - 1), 1, 5] for trace in (twin_traces[0], twin_traces[2])]
    told = [re.compile(rf"token 5 .* received {value:.2f} %") for value in values]
    expect(page.locator(".fs-readout")).to_have_text(told)
    expect_drawn(page, "retrieval_heads").locator(".mark-rect path").first.hover()
    expect(page.locator(".fs-tip")).to_contain_text(re.compile(r"layer: \d\s*head: \d"))


def test_samples_models_and_the_control_can_be_chosen(page, twin_traces):
    set_slider(page, "layer", 2)
    page.locator(".fs-sample").select_option("1")
    eventually(page.evaluate, RECEIVED, 0, equals=pytest.approx(twin_traces[1].received[0, 2].tolist(), abs=2e-6))
    page.locator(".fs-sample").select_option("0")
    page.locator(".fs-switch input").check()
    eventually(page.evaluate, RECEIVED, 0, equals=pytest.approx(twin_traces[4].received[0, 2].tolist(), abs=2e-6))
    expect(page.locator(".fs-about").first).to_contain_text("untrained")


def test_dark_follows_the_system_and_the_switch(open_page, report):
    page = open_page(report, dark=True)
    dark, light = r"[1-3]?\d", r"2[3-5]\d"  # of each of red, green and blue
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator(".page")).to_have_css("background-color", re.compile(rf"^rgb\({dark}, {dark}, {dark}\)$"))
    page.locator("#theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    expect(page.locator(".page")).to_have_css("background-color", re.compile(rf"^rgb\({light}, {light}, {light}\)$"))


def download(page, button) -> str:
    with page.expect_download() as waiting:
        button.click()
    return open(waiting.value.path(), encoding="utf-8").read()


# Keeps what the page next hands to the browser as a file. Chromium takes ten downloads a second of a page and drops
# further ones, so a test that saves more than that cannot wait for the downloads themselves.
KEEP_SAVED = """() => { const made = URL.createObjectURL; window.saved = new Promise(keep => {
    URL.createObjectURL = blob => { URL.createObjectURL = made; keep(blob.text()); return made(blob); }; }); }"""


def saved(page, button) -> str:
    page.evaluate(KEEP_SAVED)
    button.click()
    return page.evaluate("window.saved")


def test_csv_equals_the_table(page):
    for name, made in made_results().items():
        figure = draw(name, {name: made}, MODELS)
        text = saved(page, page.locator(f"#figure-{name} [data-action=csv]"))
        assert pl.read_csv(io.StringIO(text), schema=figure.table.schema).equals(figure.table)
    table = made_scores().filter(stressor="documents")
    text = saved(page, page.locator("[data-csv]"))
    assert pl.read_csv(io.StringIO(text), schema=table.schema).equals(table)


def test_a_name_is_no_formula_in_a_saved_csv(open_page, tmp_path):
    names = ['=1+"2",\n3', "@x", "-y", "plain"]
    table = pl.DataFrame({"model": names, "value": [-1.5, 2.0, -0.25, None]})
    chart = alt.Chart(table).mark_point().encode(x="value:Q", color="model:N")
    scores = made_scores().filter(stressor="documents").with_columns(model=pl.lit("=1"))
    for name, text in (
        ("figure", figure_page(Figure("own", "Mine", chart, table, "See."))),
        ("report", build_page(replace(made_content(), scores=scores, results={}, traces=()))),
    ):
        path = tmp_path / f"{name}.html"
        path.write_text(text, encoding="utf-8")
        page = open_page(path)
        if name == "figure":
            read = pl.read_csv(io.StringIO(download(page, page.locator("[data-action=csv]"))), schema=table.schema)
            assert read["model"].to_list() == ['\'=1+"2",\n3', "'@x", "'-y", "plain"]
            assert read["value"].equals(table["value"])
        else:
            read = pl.read_csv(io.StringIO(download(page, page.locator("[data-csv]"))), schema=scores.schema)
            assert set(read["model"]) == {"'=1"} and read.drop("model").equals(scores.drop("model"))


def test_figures_are_drawn_when_they_come_near(open_page, report):
    page = open_page(report)
    expect(page.locator("#player-root .fs-panel").first).to_be_visible()
    expect(page.locator("#figure-stress")).not_to_have_attribute("data-drawn", re.compile(".*"))
    expect(page.locator("#figure-stress .fs-view svg")).to_have_count(0)
    expect_drawn(page, "stress")
    expect(page.locator("#figure-stress .fs-view svg")).to_have_count(1)


# The points of a panel: what each says and where it stands.
POINTS = """panel => [...panel.querySelectorAll('.mark-symbol path')].map(path => [
  Object.fromEntries(path.getAttribute('aria-label').split('; ').map(pair => pair.split(': '))),
  ...path.getAttribute('transform').match(/[-\\d.]+/g).map(Number)])"""


def test_points_stand_at_the_values_of_the_table(page):
    panel = expect_drawn(page, "absorption").locator(".fs-view").first
    found = panel.evaluate(POINTS)
    table = made_results()["absorption"].of().table.filter(set="bos", rows="all")
    values = {(row["model"], str(row["layer"])): row["value"] for row in table.iter_rows(named=True)}
    assert len(found) == len(values) and {(say["model"], say["layer"]) for say, _, _ in found} == set(values)
    known = [(int(say["layer"]), values[say["model"], say["layer"]], x, y) for say, x, y in found]
    for of, place in ((0, 2), (1, 3)):  # layers run to the right, values run up, both evenly
        slope, start = np.polyfit([one[of] for one in known], [one[place] for one in known], 1)
        assert (slope > 0) == (of == 0)
        assert [one[place] for one in known] == pytest.approx([start + slope * one[of] for one in known], abs=0.01)


def test_hovering_tells_the_numbers(page):
    figure = expect_drawn(page, "absorption")
    figure.locator(".mark-symbol path").first.hover()
    expect(page.locator(".fs-tip")).to_contain_text(
        re.compile(r"model: \w+\s*layer: 0\s*value: .*uniform: ", re.DOTALL)
    )
    page.mouse.move(0, 0)
    expect(page.locator(".fs-tip")).to_be_hidden()


def test_svg_stands_alone(page):
    expect_drawn(page, "absorption")
    text = download(page, page.locator("#figure-absorption [data-action=svg]"))
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and "var(" not in text
    words = "".join(root.itertext())
    for word in ("What the first token", "diffuser", "writer", "untrained", "layer"):
        assert word in words


def test_the_layer_of_the_map_can_be_chosen(page, twin_traces):
    figure = expect_drawn(page, "drift_map")
    choice, shown = figure.locator(".fs-layer"), figure.locator(".fs-chart:not([hidden])")
    trace = twin_traces[0]
    layers = [str(layer) for layer in range(trace.layers)]
    eventually(choice.locator("option").all_inner_texts, equals=layers)
    first = choice.evaluate("choice => choice.selectedOptions[0].text")
    for layer in ("0", "3", first):
        choice.select_option(label=layer)
        titles = shown.locator(".fs-plot-title")
        expect(titles).to_have_text([re.compile(rf", layer {layer}$")] * titles.count())
        expect(shown.locator(".fs-view :is(svg, canvas)")).to_have_count(titles.count())
        table = pl.read_csv(io.StringIO(saved(page, figure.locator("[data-action=csv]"))))
        own = table.filter(model=trace.model).sort("step", "position")
        assert set(own["layer"]) == {int(layer)} and own.height == trace.received[:, 0].size
        assert own["received"].to_list() == pytest.approx(trace.received[:, int(layer)].ravel().tolist(), rel=1e-3)


def test_compat_mode_and_the_legend_change_the_drawing(page):
    figure = expect_drawn(page, "absorption")
    titles = figure.locator(".fs-chart:not([hidden]) .fs-plot-title")
    before = titles.all_text_contents()
    figure.locator(".fs-published input").check()
    expect(titles).to_have_text(["absolute threshold, % absorbed", "last forward only, % absorbed"])
    expect(figure.locator(".fs-chart:not([hidden]) [aria-label*='published: ']").first).to_be_attached()
    assert "published" in download(page, figure.locator("[data-action=csv]")).splitlines()[0]
    figure.locator(".fs-published input").uncheck()
    expect(titles).to_have_text(before)
    uniform = figure.locator(".fs-chart:not([hidden]) [aria-label*='control: uniform']")
    drawn = uniform.count()
    points = figure.locator(".fs-chart:not([hidden]) .mark-symbol path").evaluate_all(
        "all => all.map(p => p.outerHTML)"
    )
    assert drawn == len(MODELS) * len(before)
    legend = figure.locator(".fs-chart:not([hidden])").get_by_role("button", name="uniform")
    legend.click()
    expect(legend).to_have_attribute("aria-pressed", "false")
    expect(uniform).to_have_count(0)
    kept = figure.locator(".fs-chart:not([hidden]) .mark-symbol path")
    eventually(kept.evaluate_all, "all => all.map(p => p.outerHTML)", equals=points)  # nothing else has moved
    assert "control: uniform" not in download(page, figure.locator("[data-action=svg]"))
    legend.click()
    expect(uniform).to_have_count(drawn)
    figure.locator("summary").click()
    expect(figure.locator(".fs-data td").nth(20)).to_be_visible()
    figure.locator("summary").click()


def test_figures_follow_the_theme(open_page, report):
    page = open_page(report, dark=True)
    figure = expect_drawn(page, "drift", "dark")
    colours = """all => [...new Set(all.map((path) => path.getAttribute('fill')))]
        .filter((colour) => colour !== 'transparent')"""  # controls are outlines
    light = list(COLOURS[len(TWINS) : len(TWINS) + len(MODELS)])  # the twins have no numbers here, but their places
    eventually(figure.locator(".mark-symbol path").evaluate_all, colours, equals=[DARK[one] for one in light])
    page.evaluate("document.getElementById('theme').click()")
    expect(figure).to_have_attribute("data-drawn", "light")
    eventually(figure.locator(".mark-symbol path").evaluate_all, colours, equals=light)


WICKED = '</script><script>document.title = "it ran"</script><img src=x onerror="document.title = 2">'


def test_no_name_is_run_and_nothing_is_evaluated(browser, tmp_path):
    results = {
        name: replace(
            made, tables={key: table.with_columns(model=pl.lit(WICKED)) for key, table in made.tables.items()}
        )
        for name, made in made_results().items()
    }
    content = replace(made_content(), models=(WICKED,), results=results, missing={"own": WICKED})
    opener = Opener(browser)
    figure = draw("drift", results, (WICKED,))
    for name, text in (("report", build_page(content)), ("figure", figure_page(figure, "light"))):
        path = tmp_path / f"{name}.html"
        path.write_text(text, encoding="utf-8")
        page = opener(path)
        title = page.title()
        drawn = expect_drawn(page, "drift")
        expect(drawn.locator(".fs-figure-legend button").first).to_have_text(WICKED)
        assert page.title() == title and page.locator("img").count() == 0
        assert opener.complaints == []
        # a script that came in by another way would not run either, nor would a text become one
        page.evaluate(
            """() => { const script = document.createElement('script'); script.textContent = 'window.ran = 1';
            document.body.append(script); setTimeout('window.ran = 2', 0); }"""
        )
        eventually(lambda: len(opener.complaints), equals=2)
        assert all("Content Security Policy" in complaint for complaint in opener.complaints)
        assert page.evaluate("window.ran") is None
        opener.complaints.clear()
    opener.close()


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_no_sideways_scrolling(open_page, report, width):
    page = open_page(report, width=width)
    expect_all_drawn(page)
    too_wide = f"""[document.documentElement, ...document.querySelectorAll('figure, .fs-player, .card')]
        .filter(e => e.getBoundingClientRect().right > {width} || e.scrollWidth > {width}).map(e => e.outerHTML)"""
    eventually(page.evaluate, too_wide, equals=[])
    # names of models are not broken, and the bars of gains not cut
    whole = """[...document.querySelectorAll('.headline tbody th')].every(e => {
        const name = document.createRange();
        name.selectNodeContents(e);
        return name.getClientRects().length === 1; })"""
    eventually(page.evaluate, whole, equals=True)
    cut = """[...document.querySelectorAll('.headline .bar')].filter(e => e.checkVisibility() &&
        e.getBoundingClientRect().right > e.closest('.wide').getBoundingClientRect().right).length"""
    eventually(page.evaluate, cut, equals=0)
    # the names of versions and hashes leave room for them
    eventually(page.evaluate, "[...document.querySelectorAll('.made td')].every(e => e.clientWidth > 150)", equals=True)


def test_nothing_shifts_and_every_step_is_quick(open_page, report):
    page = open_page(report)
    page.evaluate(
        """() => { window.shifts = [];
        new PerformanceObserver(list => window.shifts.push(...list.getEntries().map(entry => entry.value)))
        .observe({type: 'layout-shift', buffered: true}); }"""
    )
    expect_all_drawn(page)
    page.evaluate("scrollTo(0, 0)")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # processor time: other work does not count

    def spent(script: str) -> float:
        before = _task_time(session)
        page.evaluate(f"() => {{ {script}; document.body.getBoundingClientRect(); }}")
        return _task_time(session) - before

    actions = [f"floatscope.player.go({step})" for step in range(1, 8)]
    actions += [f"floatscope.player.goLayer({layer})" for layer in range(5)]
    assert np.median([spent(action) for action in actions]) < 0.05
    assert spent("document.querySelector('#figure-absorption .fs-published input').click()") < 0.15
    # Shifts are told late but in order: once the one made on purpose, two frames later, is there, no other is to come.
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.evaluate("() => { document.body.style.paddingTop = '300px'; }")
    eventually(page.evaluate, "window.shifts.length > 0", equals=True)
    assert len(page.evaluate("window.shifts")) == 1


def _task_time(session) -> float:
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"]


def test_controls_have_names(page):
    expect_all_drawn(page)
    unnamed = """[...document.querySelectorAll('button, select, input, svg[role=img], canvas')].filter(e =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels[0]?.textContent.trim())
        || e.closest('.fs-view')?.getAttribute('aria-label')))
        .map(e => e.outerHTML.slice(0, 80))"""
    eventually(page.evaluate, unnamed, equals=[])


def test_steps_can_be_pushed_as_they_arrive(open_page, tmp_path, twin_traces):
    trace = twin_traces[0]
    full = run_data(trace)
    sample = player_data([trace])["samples"][0]
    slots = len(trace.commit_step)
    empty = full | {"steps": [], "commit_step": [None] * slots, "confidence": [None] * slots}
    empty["tokens"] = full["tokens"][: trace.slots[0]] + [""] * slots
    path = tmp_path / "live.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><style>{asset('components.css')}</style><div id=here></div>"
        f"<script>{asset('run.js')}</script><script>{asset('canvas.js')}</script><script>{asset('player.js')}</script>"
        "<script>const player = new floatscope.Player(document.getElementById('here'), "
        f"{script_json({'samples': [sample | {'runs': [empty]}]})});</script>",
        encoding="utf-8",
    )
    page = open_page(path)
    for step, data in enumerate(full["steps"]):
        committed = [
            [slot, full["tokens"][trace.slots[0] + slot], 0.5, ""]
            for slot in np.flatnonzero(trace.commit_step == step).tolist()
        ]
        page.evaluate("step => player.push(0, step)", data | {"commits": committed})
        expect(output(page, "step")).to_have_text(f"{step} / {step}")
    words = page.locator(".fs-slot[data-state] .fs-word")
    eventually(words.all_inner_texts, equals=full["tokens"][trace.slots[0] :])
    set_slider(page, "layer", 3)
    eventually(page.evaluate, RECEIVED, 0, equals=pytest.approx(trace.received[-1, 3].tolist(), abs=2e-6))
