"""The report in a real browser, from file:// and offline: the player's shading, keys, themes, files, widths, speed."""

import io
import re
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

from floatscope.analysis.anchors import detect
from floatscope.report.page import analysis_figures
from floatscope.report.player import asset, player_data, run_data, script_json
from tests.browser.conftest import TWINS
from tests.report.making import MODELS, made_headline, made_results

TOKENS = """panel => [...document.querySelectorAll('.fs-panel')[panel].querySelectorAll('.fs-token')].map(chip => ({
  received: Number(chip.dataset.received), anchor: chip.classList.contains('fs-anchor'), state: chip.dataset.state,
  colour: getComputedStyle(chip).backgroundColor, seen: getComputedStyle(chip.firstChild).visibility }))"""


def set_slider(page, name: str, value: int) -> None:
    """As a drag does: the value, then an input event."""
    page.locator(f".fs-slider-{name} input").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


def outputs(page) -> tuple[str, str]:
    return (
        page.locator(".fs-slider-step output").inner_text(),
        page.locator(".fs-slider-layer output").inner_text(),
    )


def alpha(colour: str) -> float:
    """The opacity of a computed colour, rgb(...), rgba(...) or color(srgb ... / a)."""
    found = re.search(r"(?:/|rgba\(.*,)\s*([\d.e-]+)\)", colour)
    return float(found[1]) if found else 1.0


def test_it_opens_offline_with_every_section(page, report):
    assert page.locator("h1").inner_text() == "Who <gains> more?"
    assert page.locator("h2").all_inner_texts() == [
        "What documents add",
        "Watch it denoise",
        "Where attention goes",
        "Under stress",
        "How it was made",
    ]
    drawn = page.locator("figure .fs-svg")
    assert drawn.count() == page.locator("figure").count() == 8
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
        chips = page.evaluate(TOKENS, panel)
        values = trace.received[at, layer]
        assert [chip["received"] for chip in chips] == pytest.approx(values.tolist(), abs=2e-6)
        assert [alpha(chip["colour"]) for chip in chips] == pytest.approx((values / peak).tolist(), abs=2e-3)
        assert [chip["anchor"] for chip in chips] == detect(trace, "zscore(3)")[at, layer].tolist()
    assert detect(twin_traces[0], "zscore(3)").any()


def test_commits_appear_as_they_happen(page, twin_traces):
    trace = twin_traces[0]
    for step in range(trace.steps):
        set_slider(page, "step", step)
        slots = page.evaluate(TOKENS, 0)[trace.prompt_length :]
        expected = ["open" if when > step else "commits" if when == step else "token" for when in trace.commit_step]
        assert [slot["state"] for slot in slots] == expected
        assert [slot["seen"] == "visible" for slot in slots] == [state != "open" for state in expected]


def test_keys_play_and_move(page, twin_traces):
    page.locator(".fs-player").focus()
    page.keyboard.press("Home")
    start = int(outputs(page)[1].split(" / ")[0])
    last = twin_traces[0].steps - 1
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert outputs(page)[0] == f"1 / {last}"
    page.keyboard.press("ArrowUp" if start < 4 else "ArrowDown")
    assert int(outputs(page)[1].split(" / ")[0]) == (start + 1 if start < 4 else 3)
    page.keyboard.press("End")
    assert outputs(page)[0] == f"{last} / {last}"
    assert f"Step {last}" in page.locator(".fs-live").inner_text()
    page.keyboard.press("Space")
    assert page.locator(".fs-play").get_attribute("aria-label") == "Pause"
    page.wait_for_function("document.querySelector('.fs-slider-step output').textContent.startsWith('1 /')")
    page.keyboard.press("Space")
    assert page.locator(".fs-play").get_attribute("aria-label") == "Play"


def test_hovering_tells_numbers(page, twin_traces):
    set_slider(page, "step", 2)
    set_slider(page, "layer", 1)
    page.locator(".fs-panel").first.locator('.fs-token[data-token="5"]').hover()
    values = [100 * trace.received[min(2, trace.steps - 1), 1, 5] for trace in (twin_traces[0], twin_traces[2])]
    for told, value in zip(page.locator(".fs-readout").all_inner_texts(), values, strict=True):
        assert "token 5" in told and f"received {value:.2f} %" in told
    cell = page.locator("#figure-retrieval_heads .fs-cell").first
    cell.scroll_into_view_if_needed()
    cell.hover()
    assert "layer 0, head 0" in page.locator(".fs-tip").inner_text()


def test_samples_models_and_the_control_can_be_chosen(page, twin_traces):
    set_slider(page, "layer", 2)
    page.locator(".fs-sample").select_option("1")
    chips = page.evaluate(TOKENS, 0)
    assert [chip["received"] for chip in chips] == pytest.approx(twin_traces[1].received[0, 2].tolist(), abs=2e-6)
    page.locator(".fs-sample").select_option("0")
    page.locator(".fs-switch input").check()
    chips = page.evaluate(TOKENS, 0)
    assert [chip["received"] for chip in chips] == pytest.approx(twin_traces[4].received[0, 2].tolist(), abs=2e-6)
    assert "untrained" in page.locator(".fs-about").first.inner_text()


def test_dark_follows_the_system_and_the_switch(open_page, report):
    page = open_page(report, dark=True)
    paper = "getComputedStyle(document.querySelector('.page')).backgroundColor"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    dark = page.evaluate(paper)
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    light = page.evaluate(paper)
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (dark, light)]
    assert brightness[0] < 120 < 700 < brightness[1]


def download(page, button) -> str:
    with page.expect_download() as waiting:
        button.click()
    return open(waiting.value.path(), encoding="utf-8").read()


def test_csv_equals_the_table(page):
    for figure in analysis_figures(made_results(), MODELS):
        text = download(page, page.locator(f"#figure-{figure.name} [data-action=csv]"))
        assert pl.read_csv(io.StringIO(text), schema=figure.table.schema).equals(figure.table)
    table = made_headline()
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
    before = figure.locator(".fs-plot-title").all_inner_texts()
    figure.locator(".fs-published input").check()
    assert figure.locator(".fs-plot-title").all_inner_texts() != before
    assert "published" in download(page, figure.locator("[data-action=csv]")).splitlines()[0]
    figure.locator(".fs-published input").uncheck()
    seen = "[...document.querySelectorAll('#figure-absorption .fs-c-uniform')].filter(l => l.checkVisibility()).length"
    assert page.evaluate(seen) > 0
    legend = figure.get_by_role("button", name="uniform attention")
    legend.click()
    assert page.evaluate(seen) == 0 and legend.get_attribute("aria-pressed") == "false"
    legend.click()
    figure.locator("summary").click()
    assert figure.locator(".fs-data td").count() > 20


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_no_sideways_scrolling(open_page, report, width):
    page = open_page(report, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.evaluate(
        "[...document.querySelectorAll('figure, .fs-player, .card')].map(b => b.getBoundingClientRect().right)"
    )
    assert max(boxes) <= width


def test_nothing_shifts_and_every_step_is_quick(open_page, report):
    page = open_page(report)
    page.evaluate(
        """() => { window.shifts = [];
        new PerformanceObserver(list => window.shifts.push(...list.getEntries().map(entry => entry.value)))
        .observe({type: 'layout-shift', buffered: true}); }"""
    )
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
    assert sum(page.evaluate("window.shifts")) == 0


def _task_time(session) -> float:
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"]


def test_controls_have_names(page):
    unnamed = page.evaluate(
        """[...document.querySelectorAll('button, select, input, svg[role=img], canvas')].filter(e =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels[0]?.textContent.trim())))
        .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []


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
        assert outputs(page)[0] == f"{step} / {step}"
    slots_shown = page.locator(".fs-slot[data-state] .fs-word").all_inner_texts()
    assert slots_shown == full["tokens"][trace.prompt_length :]
    values = [chip["received"] for chip in page.evaluate(TOKENS, 0)]
    layer = int(outputs(page)[1].split(" / ")[0])
    assert values == pytest.approx(trace.received[-1, layer].tolist(), abs=2e-6)
