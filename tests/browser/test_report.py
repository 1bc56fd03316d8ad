"""The report in a real browser, from file:// and offline: the player's shading, keys, themes, files, widths, speed."""

import io
import re
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from playwright.sync_api import expect

from floatscope.analysis.anchors import detect
from floatscope.report.page import analysis_figures
from floatscope.report.player import asset, player_data, run_data, script_json
from tests.browser.conftest import TWINS, eventually
from tests.report.making import MODELS, made_results, made_scores

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


def expect_drawn(page) -> None:
    """Every figure of the report has its drawing."""
    expect(page.locator("figure")).to_have_count(8)
    expect(page.locator("figure .fs-svg")).to_have_count(8)


def test_it_opens_offline_with_every_section(page, report):
    expect(page.locator("h1")).to_have_text("Who <gains> more?")
    expect(page.locator("h2")).to_have_text(
        ["What documents add", "Watch it denoise", "Where attention goes", "Under stress", "How it was made"]
    )
    expect_drawn(page)
    assert report.stat().st_size < 10_000_000


@pytest.mark.parametrize(("step", "layer"), [(0, 0), (3, 2), (7, 4)])
def test_the_scrubber_shades_tokens_as_the_trace_says(page, twin_traces, step, layer):
    set_slider(page, "step", step)
    set_slider(page, "layer", layer)
    shown = [twin_traces[0], twin_traces[2]]
    assert [trace.model for trace in shown] == list(TWINS)
    peak = max(trace.received[:, layer].max() for trace in shown)
    for panel, trace in enumerate(shown):
        at = min(step, trace.steps - 1)
        values = trace.received[at, layer]
        expected = {
            "received": pytest.approx(values.tolist(), abs=2e-6),
            "opacity": pytest.approx((values / peak).tolist(), abs=2e-3),
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


def test_hovering_tells_numbers(page, twin_traces):
    set_slider(page, "step", 2)
    set_slider(page, "layer", 1)
    page.locator(".fs-panel").first.locator('.fs-token[data-token="5"]').hover()
    values = [100 * trace.received[min(2, trace.steps - 1), 1, 5] for trace in (twin_traces[0], twin_traces[2])]
    told = [re.compile(rf"token 5 .* received {value:.2f} %") for value in values]
    expect(page.locator(".fs-readout")).to_have_text(told)
    cell = page.locator("#figure-retrieval_heads .fs-cell").first
    cell.scroll_into_view_if_needed()
    cell.hover()
    expect(page.locator(".fs-tip")).to_contain_text("layer 0, head 0")


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


def test_csv_equals_the_table(page):
    for figure in analysis_figures(made_results(), MODELS):
        text = download(page, page.locator(f"#figure-{figure.name} [data-action=csv]"))
        assert pl.read_csv(io.StringIO(text), schema=figure.table.schema).equals(figure.table)
    table = made_scores().filter(stressor="documents")
    text = download(page, page.locator("[data-csv]"))
    assert pl.read_csv(io.StringIO(text), schema=table.schema).equals(table)


def test_svg_stands_alone(page):
    text = download(page, page.locator("#figure-absorption [data-action=svg]"))
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and "var(" not in text
    words = "".join(root.itertext())
    for word in ("What the first token", "diffuser", "writer", "untrained model", "layer"):
        assert word in words


def test_compat_mode_and_the_legend_change_the_drawing(page):
    figure = page.locator("#figure-absorption")
    titles = figure.locator(".fs-plot-title")
    expect_drawn(page)
    before = titles.all_text_contents()
    figure.locator(".fs-published input").check()
    expect(titles).not_to_have_text(before)
    assert "published" in download(page, figure.locator("[data-action=csv]")).splitlines()[0]
    figure.locator(".fs-published input").uncheck()
    expect(titles).to_have_text(before)
    seen = "[...document.querySelectorAll('#figure-absorption .fs-c-uniform')].filter(l => l.checkVisibility()).length"
    eventually(page.evaluate, f"{seen} > 0", equals=True)
    legend = figure.get_by_role("button", name="uniform attention")
    legend.click()
    expect(legend).to_have_attribute("aria-pressed", "false")
    eventually(page.evaluate, seen, equals=0)
    legend.click()
    eventually(page.evaluate, f"{seen} > 0", equals=True)
    figure.locator("summary").click()
    expect(figure.locator(".fs-data td").nth(20)).to_be_visible()


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_no_sideways_scrolling(open_page, report, width):
    page = open_page(report, width=width)
    expect_drawn(page)
    too_wide = f"""[document.documentElement, ...document.querySelectorAll('figure, .fs-player, .card')]
        .filter(e => e.getBoundingClientRect().right > {width} || e.scrollWidth > {width}).map(e => e.outerHTML)"""
    eventually(page.evaluate, too_wide, equals=[])


def test_nothing_shifts_and_every_step_is_quick(open_page, report):
    page = open_page(report)
    page.evaluate(
        """() => { window.shifts = [];
        new PerformanceObserver(list => window.shifts.push(...list.getEntries().map(entry => entry.value)))
        .observe({type: 'layout-shift', buffered: true}); }"""
    )
    expect_drawn(page)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # processor time: other work does not count

    def spent(script: str) -> float:
        before = _task_time(session)
        page.evaluate(f"() => {{ {script}; document.body.getBoundingClientRect(); }}")
        return _task_time(session) - before

    actions = [f"floatscope.player.go({step})" for step in range(1, 8)]
    actions += [f"floatscope.player.goLayer({layer})" for layer in range(5)]
    assert np.median([spent(action) for action in actions]) < 0.05
    assert spent("document.querySelector('#figure-absorption .fs-published input').click()") < 0.05
    # Shifts are told late but in order: once the one made on purpose, two frames later, is there, no other is to come.
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.evaluate("() => { document.body.style.paddingTop = '300px'; }")
    page.wait_for_function("window.shifts.length > 0")
    assert len(page.evaluate("window.shifts")) == 1


def _task_time(session) -> float:
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"]


def test_controls_have_names(page):
    expect_drawn(page)
    unnamed = """[...document.querySelectorAll('button, select, input, svg[role=img], canvas')].filter(e =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels[0]?.textContent.trim())))
        .map(e => e.outerHTML.slice(0, 80))"""
    eventually(page.evaluate, unnamed, equals=[])


def test_steps_can_be_pushed_as_they_arrive(open_page, tmp_path, twin_traces):
    trace = twin_traces[0]
    full = run_data(trace)
    sample = player_data([trace])["samples"][0]
    slots = len(trace.commit_step)
    empty = full | {"steps": [], "commit_step": [None] * slots, "confidence": [None] * slots}
    empty["tokens"] = full["tokens"][: trace.prompt_length] + [""] * slots
    path = tmp_path / "live.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><style>{asset('components.css')}</style><div id=here></div>"
        f"<script>{asset('canvas.js')}</script><script>{asset('player.js')}</script>"
        "<script>const player = new floatscope.Player(document.getElementById('here'), "
        f"{script_json({'samples': [sample | {'runs': [empty]}]})});</script>",
        encoding="utf-8",
    )
    page = open_page(path)
    for step, data in enumerate(full["steps"]):
        committed = [
            [slot, full["tokens"][trace.prompt_length + slot], 0.5, ""]
            for slot in np.flatnonzero(trace.commit_step == step).tolist()
        ]
        page.evaluate("step => player.push(0, step)", data | {"commits": committed})
        expect(output(page, "step")).to_have_text(f"{step} / {step}")
    words = page.locator(".fs-slot[data-state] .fs-word")
    eventually(words.all_inner_texts, equals=full["tokens"][trace.prompt_length :])
    set_slider(page, "layer", 3)
    eventually(page.evaluate, RECEIVED, 0, equals=pytest.approx(trace.received[-1, 3].tolist(), abs=2e-6))
