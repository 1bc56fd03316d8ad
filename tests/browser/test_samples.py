"""The list of samples and the views of the player, on real traces and 5,000 units, against frame and traces."""

import re

import numpy as np
import polars as pl
import pytest
from playwright.sync_api import expect

from floatscope.reports.page import Content, build_page
from tests.browser.conftest import TWINS, Opener, eventually

pytestmark = pytest.mark.slow
UNITS = 5_000


@pytest.fixture(scope="module")
def units(twin_traces) -> pl.DataFrame:
    """2,500 samples under two models; the first two are those of the traces. Right and places by a fixed draw."""
    draw = np.random.default_rng(0)
    known = list(dict.fromkeys(trace.metadata["sample"] for trace in twin_traces))
    rows = []
    for number in range(UNITS // 2):
        right = draw.random(2) < 0.7
        for model, good in zip(TWINS, right.tolist(), strict=True):
            place = "gold" if good else str(draw.choice(["another document", "nowhere", "gold"]))
            traced = number < len(known)
            rows.append(
                {
                    "task": "" if traced else "ab"[number % 2],
                    "condition": "" if traced else f"documents/{number % 3}",
                    "sample": known[number] if traced else f"s{number}",
                    "model": model,
                    "question": f"Who is number {number}?",
                    "answers": [f"Ann {number}"],
                    "prediction": f"Ann {number}" if good else "Bob",
                    "accuracy": float(good),
                    "gold": [1],
                    "stands_in": {"gold": [1], "another document": [2, 3], "nowhere": []}[place],
                    "place": place,
                }
            )
    return pl.DataFrame(rows)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory, twin_traces, units):
    path = tmp_path_factory.mktemp("samples") / "report.html"
    own = tuple(trace for trace in twin_traces if not trace.metadata["control"])
    content = Content("t", "Who?", models=TWINS, traces=own, units=units)
    path.write_text(build_page(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def opened(browser, page_file):
    opener = Opener(browser)
    yield opener(page_file)
    opener.close()
    assert opener.complaints == []


@pytest.fixture
def page(opened):
    opened.evaluate(
        """() => { for (const one of document.querySelectorAll('[data-filter]')) one.value = '';
        const { samples, player } = floatscope;
        samples.filter(); player.openSample(0); player.see({view: 'all'}); player.go(0); player.goLayer(2); }"""
    )
    return opened


def count(page) -> int:
    return int(page.locator(".fs-count").inner_text().split(" ")[0])


def choose(page, name: str, value: str) -> None:
    page.locator(f'[data-filter="{name}"]').select_option(value)


def test_filters_leave_what_they_say(page, units):
    right = pl.col("accuracy") > 0.5
    by_sample = units.group_by("task", "condition", "sample").agg(
        wrong=(~right).any(), both=right.any() & (~right).any(), a=right.first(), b=right.last(),
        other=(pl.col("place") == "another document").any(),
        lost=((pl.col("place") == "nowhere") & ~right).any(), misread=((pl.col("place") == "gold") & ~right).any(),
    )  # fmt: skip
    expected = {
        (("answers", "wrong"),): by_sample["wrong"].sum(),
        (("answers", "disagree"),): by_sample["both"].sum(),
        ((TWINS[0], "1"), (TWINS[1], "0")): by_sample.filter(pl.col("a") & ~pl.col("b")).height,
        (("prediction stands", "another document"),): by_sample["other"].sum(),
        (("answers", "wrong"), ("prediction stands", "nowhere")): by_sample["lost"].sum(),
        (("answers", "wrong"), ("prediction stands", "gold")): by_sample["misread"].sum(),
        (("task", "a"), ("condition", "documents/1")): by_sample.filter(task="a", condition="documents/1").height,
        (("traced", "1"),): 2,
    }
    for chosen, number in expected.items():
        for name, value in chosen:
            choose(page, name, value)
        eventually(count, page, equals=number)
        for name, _ in chosen:
            choose(page, name, "")
    eventually(count, page, equals=UNITS // 2)


def test_a_line_tells_question_answers_and_documents(page, units):
    place = next(n for n in range(2, 200) if units["place"][2 * n] == "another document")
    page.evaluate("place => { floatscope.samples.view.scrollTop = place * floatscope.samples.tall; }", place)
    line = page.locator(f'.fs-lines .fs-line[data-place="{place}"]')
    expect(line).to_contain_text(f"Who is number {place}?")
    expect(line.locator(".fs-right")).to_have_text(f"Ann {place}")
    expect(line.locator(".fs-said").first).to_have_text(re.compile("^✗Bobdocument 2, 3$"))


def test_a_click_opens_the_player_where_it_was_traced(page, twin_traces):
    second = list(dict.fromkeys(trace.metadata["sample"] for trace in twin_traces))[1]
    page.locator('.fs-lines .fs-line[data-place="1"] button').click()
    eventually(page.evaluate, "floatscope.player.samples[floatscope.player.sample].id", equals=second)
    eventually(page.evaluate, "document.activeElement === floatscope.player.root", equals=True)
    page.locator('.fs-lines .fs-line[data-place="3"] button').click()
    expect(page.locator(".fs-note")).to_contain_text("--trace-wrong")


def test_thousands_of_lines_are_drawn_as_they_come_into_view(page, units):
    found = page.evaluate(
        """async () => { const { view, lines, found, tall } = floatscope.samples, seen = [];
        for (let part = 0; part <= 40; part++) {
          view.scrollTop = part / 40 * (view.scrollHeight - view.clientHeight);
          floatscope.samples.paint();
          const middle = Math.floor((view.scrollTop + view.clientHeight / 2) / tall);
          seen.push([lines.size, lines.get(middle).querySelector('.fs-right').textContent === found[middle].right[0]]);
        }
        return [seen, view.scrollHeight >= 0.99 * tall * found.length]; }"""
    )
    seen, high = found
    assert high and max(number for number, _ in seen) < 60 and all(same for _, same in seen)


def bars(page, panel: int) -> dict[str, float]:
    script = "all => Object.fromEntries(all.map(one => [one.dataset.region, Number(one.dataset.mass)]))"
    return page.locator(".fs-panel").nth(panel).locator(".fs-bar-line").evaluate_all(script)


@pytest.mark.parametrize(
    ("view", "array"), [("all", "received"), ("answer", "received_answer"), ("masked", "received_masked")]
)
def test_seen_from_shades_and_sums_what_these_rows_look_at(page, twin_traces, view, array):
    trace = twin_traces[0]
    page.evaluate("view => { floatscope.player.see({view}); floatscope.player.go(3); }", view)
    row = trace.arrays[array][3, 2]
    shown = page.locator(".fs-panel").first.locator(".fs-token[data-token]")
    close = 2e-6 if view == "all" else 0.004 * float(trace.arrays[array][3].max())  # shades are bytes, on a root scale
    eventually(
        shown.evaluate_all,
        "all => all.map(one => Number(one.dataset.received))",
        equals=pytest.approx(row.tolist(), abs=close),
    )
    labels = np.concatenate([[region.label] * (region.stop - region.start) for region in trace.regions])
    sums = {label: float(row[labels == label].sum()) for label in ("doc 1", "doc 2", "doc 3", "query", "answer")}
    found = bars(page, 0)
    assert {label: found[label] for label in sums} == pytest.approx(sums, abs=2e-4)
    assert sum(found.values()) == pytest.approx(1, abs=1e-3)


def test_a_slot_shows_the_keys_of_the_row_that_filled_it(page, twin_traces):
    trace, slot, layer = twin_traces[0], 1, 2
    page.evaluate("floatscope.player.go(floatscope.player.steps - 1)")
    page.locator(".fs-panel").first.locator(".fs-slot[data-token]").nth(slot).click()
    keys, mass = trace.commit_keys[slot, layer], trace.commit_key_mass[slot, layer]  # [head, rank]
    total = np.zeros(len(trace.canvas))
    for own, weights in zip(keys, mass, strict=True):
        total[own.astype(int)] += weights / len(keys)
    arcs = page.locator(".fs-panel").first.locator(".fs-arcs path")
    expect(arcs).to_have_count(6)
    found = dict(arcs.evaluate_all("all => all.map(one => [one.dataset.token, Number(one.dataset.mass)])"))
    assert sorted(found.values()) == pytest.approx(sorted(np.sort(total)[-6:]), abs=1e-4)
    assert found == pytest.approx({token: total[int(token)] for token in found}, abs=1e-4)
    expected = dict(zip(trace.region_labels, trace.commit_mass[slot, layer].mean(0), strict=False))
    told = bars(page, 0)
    for label in ("doc 1", "doc 2", "doc 3"):
        assert told[label] == pytest.approx(expected[label], abs=1e-4)
    expect(page.locator(".fs-chooser select").first).to_have_value("slot")


def test_candidates_stand_under_open_slots(page, twin_traces):
    trace = twin_traces[0]
    open_slot = int(np.flatnonzero(trace.commit_step > 0)[0])
    chip = page.locator(".fs-panel").first.locator(".fs-slot[data-token]").nth(open_slot)
    sure = trace.candidate_probability[0, open_slot, 0]
    expect(chip.locator(".fs-maybe")).to_have_text(re.compile(rf" {round(100 * float(sure))} %$"))
    chip.hover()
    entropy = trace.candidate_entropy[0, open_slot]
    expect(page.locator(".fs-readout").first).to_contain_text(f"entropy {entropy:.2f} nats")


def test_the_strongest_can_be_left_out_and_scales_chosen(page, twin_traces):
    trace = twin_traces[0]
    values, tops = trace.received[0, 2], trace.received[:, 2].argmax(axis=1)
    top = int(tops[0])
    shades = "all => all.map(one => Number(one.style.getPropertyValue('--fs-shade')))"
    chips = page.locator(".fs-panel").first.locator(".fs-token[data-token]")
    page.locator(".fs-leave").set_checked(True)
    rest = max(np.delete(row, strongest).max() for row, strongest in zip(trace.received[:, 2], tops, strict=True))
    expected = np.sqrt(np.minimum(1, values / rest))
    expected[top] = 0
    eventually(chips.evaluate_all, shades, equals=pytest.approx(expected.tolist(), abs=2e-3))
    left = re.compile(rf"left out: .* with {100 * values[top]:.2f} %$")
    expect(page.locator(".fs-scale").first).to_have_text(left)
    page.locator(".fs-leave").set_checked(False)
    page.locator('.fs-chooser select[aria-label="shade"]').select_option("rank")
    ranks = np.searchsorted(np.sort(values), values) / (len(values) - 1)
    eventually(chips.evaluate_all, shades, equals=pytest.approx(np.where(values > 0, ranks, 0).tolist(), abs=2e-2))
    page.locator('.fs-chooser select[aria-label="shade"]').select_option("root")


def test_on_a_phone_nothing_is_cut(open_page, page_file):
    page = open_page(page_file, width=390)
    eventually(page.evaluate, "document.documentElement.scrollWidth <= innerWidth", equals=True)
    line = page.locator(".fs-lines .fs-line").first
    expect(line).to_be_visible()
    for part in (".fs-question", ".fs-right", ".fs-said"):
        box, outer = line.locator(part).last.bounding_box(), line.bounding_box()
        assert outer["y"] <= box["y"] and box["y"] + box["height"] <= outer["y"] + outer["height"] + 1
