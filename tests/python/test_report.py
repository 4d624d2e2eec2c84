"""The report page, as a headless Chromium shows it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from report_helpers import ROOT, Colours, launch_browser, settle, write_samples

SAMPLE_NAMES = [
    "two_records", "one_record", "no_rows", "one_layer", "all_missing", "unrelated", "big_model", "hostile",
]  # fmt: skip

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    write_samples(folder)
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with launch_browser() as running:
        yield running


@pytest.fixture(scope="session")
def colours(browser: Browser) -> Colours:
    return Colours(browser)


@pytest.fixture
def open_page(browser: Browser, samples: Path) -> Iterator[Open]:
    """Opens samples; whatever a test does there, nothing is complained of and nothing is asked for."""
    complaints: list[str] = []
    requests: list[str] = []
    pages: list[Page] = []

    def open_one(name: str, width: int = 1000, scheme: str = "light") -> Page:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.set_default_timeout(120_000)  # of a machine that is busy
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((samples / f"{name}.html").as_uri())
        settle(page)
        return page

    yield open_one
    addresses = [page.url for page in pages]
    for page in pages:
        page.close()
    assert complaints == []
    assert requests == addresses


def data_of(page: Page) -> dict[str, Any]:
    return json.loads(page.locator("#data").text_content() or "")


def figure(page: Page, title: str) -> Locator:
    return page.locator("figure", has=page.get_by_role("heading", name=title, exact=True))


def card(page: Page, title: str) -> str:
    return page.locator(".card", has=page.get_by_role("heading", name=title)).inner_text()


def numbers(shown: Locator) -> list[list[str]]:
    """The table below a picture."""
    cells = "[...row.cells].map((cell) => cell.textContent)"
    rows = f"(table) => [...table.tBodies[0].rows].map((row) => {cells})"
    return shown.locator("table").evaluate(rows)


def imbalance(load: list[int]) -> float:
    return max(load) * len(load) / sum(load)


def times(ratio: float) -> str:
    return f"{float(f'{ratio:.3g}'):g}×"


PICTURES = [
    "Load of experts by layer", "Imbalance by layer", "Experts kept from token to token",
    "Imbalance over time: first record", "Imbalance over time: second record", "Disagreement by layer",
    "Disagreement by position", "Layers rerouted per token", "Overlap by layer",
    "Disagreement by policy version", "Imbalance by policy version: first record",
]  # fmt: skip


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1000, "light")])
def test_every_picture_is_there_and_not_blank(
    open_page: Open, colours: Colours, width: int, scheme: str
) -> None:
    page = open_page("two_records", width=width, scheme=scheme)
    for title in PICTURES:
        shares = list(colours.of(figure(page, title).locator(".plot")).values())
        assert len(shares) >= 8, title
        assert shares[0] < 0.97, title


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_a_narrow_screen_needs_no_sideways_scrolling(open_page: Open, name: str) -> None:
    page = open_page(name, width=360)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    for plot in page.locator(".plot").all():
        box = plot.bounding_box()
        assert box is not None
        assert 280 <= box["width"] <= 360
    labels = page.locator("svg text").evaluate_all(
        "(texts) => texts.map((text) => text.getBoundingClientRect()).map(({ left, right }) => [left, right])"
    )
    assert all(left >= 0 and right <= 360 for left, right in labels)


def test_the_first_screen_names_what_stands_out(open_page: Open) -> None:
    page = open_page("two_records")
    load = card(page, "Is the load balanced?")
    assert "uneven" in load
    assert "Most uneven: layer 20" in load
    assert "7 of 1,600 experts never chosen" in load
    agreement = card(page, "Do the records agree?")
    assert "some drift" in agreement
    assert "Stands out: layer 9" in agreement
    versions = card(page, "Does it change with the policy?")
    assert "v3 → v7" in versions
    assert "Rerouted decisions rise" in versions
    assert "Imbalances hardly change" in versions
    complete = card(page, "Is the record complete?")
    missing = data_of(page)["records"][0]["missing"]
    assert f"{missing[0][1]} rows missing (refused {missing[0][1]})" in complete


# case J06
def test_the_share_of_rerouted_decisions_and_of_tokens_is_shown(open_page: Open) -> None:
    page = open_page("two_records")
    rows, _, rerouted_rows, routers, _, rerouted_routers, *_ = data_of(page)["comparison"]["total"]
    agreement = card(page, "Do the records agree?").replace("\u00a0", " ")
    assert f"{100 * rerouted_routers / routers:.1f} %" in agreement
    assert f"{100 * rerouted_rows / rows:.1f} % of tokens at one layer or more" in agreement


def test_records_that_have_nothing_to_do_with_each_other_are_called_so(open_page: Open) -> None:
    assert "No better than chance" in card(open_page("unrelated"), "Do the records agree?")
    assert "nothing in common" in card(open_page("all_missing"), "Do the records agree?")
    assert "one record only" in card(open_page("one_record"), "Do the records agree?")


def test_the_numbers_below_the_pictures_follow_from_the_counts(open_page: Open) -> None:
    page = open_page("two_records")
    data = data_of(page)
    loads = [record["load"] for record in data["records"]]
    shown = numbers(figure(page, "Imbalance by layer"))
    for column, layer in enumerate(data["spec"]["layers"]):
        assert shown[column][:3] == [str(layer), *(times(imbalance(load[column])) for load in loads)]

    busiest = numbers(figure(page, "Load of experts by layer"))
    for row, load in zip(busiest, loads[0], strict=False):
        assert row[2:4] == [times(imbalance(load)), str(load.index(max(load)))]
        assert row[5] == str(load.count(0))

    tokens = figure(page, "By token").locator("tbody tr")
    for row, (token, _, sums) in zip(tokens.all(), data["comparison"]["tokens"], strict=True):
        assert row.locator("td").all_inner_texts()[1:4] == [str(token), f"{sums[0]:,}", f"{sums[5]:,}"]


def test_a_cell_says_its_layer_expert_and_count(open_page: Open) -> None:
    page = open_page("two_records")
    counts = data_of(page)["records"][0]["load"][19]
    plot = figure(page, "Load of experts by layer").locator(".plot")
    cell = middle_of_cell(plot, row=19, column=21, num_columns=64)
    plot.hover(position=cell)
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("layer 20, expert 21")
    expect(tip).to_contain_text(f"chosen {counts[21]:,} times")
    expect(tip).to_contain_text(f"{times(imbalance(counts))} the even share")
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()


def test_the_arrow_keys_walk_over_a_picture(open_page: Open) -> None:
    page = open_page("two_records")
    figure(page, "Load of experts by layer").locator(".plot").focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("layer 2, expert 1")
    expect(page.locator("#spoken")).to_contain_text("layer 2, expert 1")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def middle_of_cell(plot: Locator, row: int, column: int, num_columns: int, row_height: int = 16) -> Any:
    """As page/heat.js lays it out."""
    box = plot.bounding_box()
    assert box is not None
    width = box["width"] - 36
    return {"x": 34 + (column + 0.5) * width / num_columns, "y": 16 + (row + 0.5) * row_height}


def test_hot_experts_unused_ones_and_missing_layers_have_their_own_colours(
    open_page: Open, colours: Colours
) -> None:
    plot = figure(open_page("two_records"), "Load of experts by layer").locator(".plot")
    hot = middle_of_cell(plot, row=19, column=21, num_columns=64)
    (colour,) = colours.at(plot, hot["x"], hot["y"])
    assert colour >> 16 > 2 * (colour & 0xFF)
    never = middle_of_cell(plot, row=0, column=63, num_columns=64)
    assert list(colours.at(plot, never["x"], never["y"])) == [0x15171A]
    missing = middle_of_cell(plot, row=25, column=30, num_columns=64)
    hatched = colours.at(plot, missing["x"], missing["y"], size=12)
    assert 0xFFFFFF in hatched
    assert len(hatched) > 1


# case J04
@pytest.mark.parametrize("name", ["no_rows", "all_missing"])
def test_what_was_never_recorded_is_hatched_and_never_zero(
    open_page: Open, colours: Colours, name: str
) -> None:
    page = open_page(name)
    heat = figure(page, "Load of experts by layer")
    if name == "all_missing":
        heat.get_by_label("Show").select_option(label="second record")
        settle(page)
    plot = heat.locator(".plot")
    for row in range(2):
        cell = middle_of_cell(plot, row=row, column=4, num_columns=8, row_height=22)
        hatched = colours.at(plot, cell["x"], cell["y"], size=12)
        assert len(hatched) > 2
        plot.hover(position=cell)
        expect(page.get_by_role("tooltip")).to_have_text(re.compile(f"layer {row}, .*no record$"))
    shown = numbers(heat)
    assert shown[-1][-4] == "no record"
    by_layer = figure(page, "Imbalance by layer")
    assert numbers(by_layer)[0][-2] == "no record"
    assert by_layer.locator("rect.missing").count() == (2 if name == "no_rows" else 0)


def test_a_stretch_without_rows_is_a_hole_in_the_curve(open_page: Open) -> None:
    page = open_page("two_records")
    rows = data_of(page)["records"][0]["windows"]["rows"]
    assert rows.count(0) >= 1
    curves = figure(page, "Imbalance over time: first record")
    assert curves.locator("rect.missing").count() == rows.count(0)
    assert curves.locator("polyline.first").count() == 2
    shown = [row[2] for row in numbers(curves)]
    assert [text == "no record" for text in shown] == [valid == 0 for valid in rows]


def test_a_layer_left_out_is_shown_with_its_reason(open_page: Open) -> None:
    page = open_page("two_records")
    plot = figure(page, "Disagreement by layer").locator(".plot")
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] - 20, "y": 100})
    expect(page.get_by_role("tooltip")).to_contain_text("not recorded: hash-routed")


def test_texts_of_tokens_are_readable(open_page: Open) -> None:
    texts = figure(open_page("two_records"), "By token").locator("tbody td:first-child").all_inner_texts()
    assert {"␣expert", "␣the", "⏎", "⇥", "→", "␣\\xE2\\x82", "text not given"} <= set(texts)


def test_markup_in_names_and_texts_stays_text(open_page: Open) -> None:
    page = open_page("hostile")
    for plot in page.locator(".plot").all():
        plot.hover()
    assert page.evaluate("window.hit") is None
    assert page.locator("img, iframe, object, embed, link, form").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("main script, main style").count() == 0
    assert page.title().startswith("</script><script>window.hit=1</script> and <img")
    assert "<img src=x" in page.locator("h1").inner_text()
    shown = page.locator("#tokens").inner_text()
    for text in (
        "<!--<script>",
        "{{script}}{{data}}",
        "\\u{202e}gnp.exe",
        "a\\u{0}b\\u{7f}\\u{1b}[31m",
        "__proto__",
    ):
        assert text in shown
    assert "\\xFF\\xC0\\xAF\\xED\\xA0\\x80" in shown
    assert max(map(len, shown.split())) < 500


def test_the_policy_of_the_page_stops_what_might_slip_in(browser: Browser, samples: Path) -> None:
    page = browser.new_page()
    page.goto((samples / "two_records.html").as_uri())
    page.evaluate(
        """() => {
          document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.hit=1">');
          const script = document.createElement('script');
          script.textContent = 'window.hit = 2';
          document.body.append(script);
        }"""
    )
    settle(page)
    assert page.evaluate("window.hit") is None
    for address in ("https://example.invalid/", "data:text/plain,x"):
        asked = "(address) => fetch(address).then(() => 'fetched', () => 'refused')"
        assert page.evaluate(asked, address) == "refused"
    page.close()


@pytest.mark.parametrize("name", ["one_record", "one_layer"])
def test_small_records_make_whole_pages(open_page: Open, colours: Colours, name: str) -> None:
    page = open_page(name)
    for plot in page.locator(".plot").all():
        assert len(colours.of(plot)) >= 3
    assert "NaN" not in page.locator("body").inner_text()
    assert "undefined" not in page.locator("main").inner_text()


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_no_number_is_nonsense(open_page: Open, name: str) -> None:
    page = open_page(name)
    page.locator("details").evaluate_all("(all) => all.forEach((details) => { details.open = true; })")
    text = page.locator("main").inner_text()
    for nonsense in ("NaN", "Infinity", "∞", "[object", "null"):
        assert nonsense not in text
    assert text.replace("not defined", "").count("undefined") == 0


def test_a_big_model_stays_legible_and_small(open_page: Open, samples: Path, colours: Colours) -> None:
    assert (samples / "big_model.html").stat().st_size < 1_500_000
    page = open_page("big_model", width=360)
    heat = figure(page, "Load of experts by layer")
    assert len(colours.of(heat.locator(".plot"))) > 30
    # Three experts share a pixel here, and the hot one (298 in layer 50) must not vanish among them.
    cell = middle_of_cell(heat.locator(".plot"), row=50, column=298, num_columns=896, row_height=5)
    found = colours.at(heat.locator(".plot"), cell["x"], cell["y"], size=4)
    assert any(colour >> 16 > 2 * (colour & 0xFF) for colour in found)
    heat.get_by_label("Experts").select_option(label="busiest first, in each layer")
    settle(page)
    first = middle_of_cell(heat.locator(".plot"), row=50, column=0, num_columns=896, row_height=5)
    heat.locator(".plot").hover(position=first)
    expect(page.get_by_role("tooltip")).to_contain_text("layer 50, expert 298")


def test_the_two_records_can_be_set_against_each_other(open_page: Open, colours: Colours) -> None:
    page = open_page("two_records")
    heat = figure(page, "Load of experts by layer")
    before = colours.of(heat.locator(".plot"))
    heat.get_by_label("Show").select_option(label="second ÷ first")
    settle(page)
    assert colours.of(heat.locator(".plot")) != before
    heat.locator(".plot").hover(position=middle_of_cell(heat.locator(".plot"), 3, 5, 64))
    expect(page.get_by_role("tooltip")).to_contain_text("first record: chosen")
    expect(page.get_by_role("tooltip")).to_contain_text("second record: chosen")


def test_the_page_follows_the_colour_scheme_and_the_width(open_page: Open, colours: Colours) -> None:
    page = open_page("two_records")
    plot = figure(page, "Load of experts by layer").locator(".plot")
    light = colours.of(plot)
    page.emulate_media(color_scheme="dark")
    settle(page)
    dark = colours.of(plot)
    assert 0xFFFFFF in light
    assert 0x15171B in dark
    assert 0x15171B not in light
    page.set_viewport_size({"width": 500, "height": 800})
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 500
    assert plot.locator("canvas").evaluate("(canvas) => canvas.width") <= 500


@pytest.mark.parametrize("name", ["two_records", "one_record"])
def test_pictures_and_tables_have_names_for_those_who_cannot_see_them(open_page: Open, name: str) -> None:
    page = open_page(name)
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("h1").count() == 1
    unnamed = "(all) => all.filter((one) => one.getAttribute('role') !== 'img' || !one.ariaLabel).length"
    assert page.locator("canvas, svg").evaluate_all(unnamed) == 0
    for drawn in page.locator("figure", has=page.locator("svg")).all():
        assert len(numbers(drawn)) > 0
    for select in page.locator("select").all():
        assert select.evaluate("(select) => select.labels.length") == 1
    for link in page.locator("a").all():
        assert page.locator(link.get_attribute("href") or "none").count() == 1


def test_the_page_about_reports_shows_code_that_runs() -> None:
    [example] = re.findall(
        r"^```cpp\n(.*?)^```", (ROOT / "docs/report.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert textwrap.indent(example, "  ") in (ROOT / "report/report_test.cc").read_text()


def test_the_pictures_of_the_documents_are_small() -> None:
    pictures = list((ROOT / "docs/images").glob("report-*.png"))
    assert len(pictures) == 3
    assert max(picture.stat().st_size for picture in pictures) < 200_000
