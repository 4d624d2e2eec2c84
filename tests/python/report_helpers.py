"""What looks at report pages: the made-up pages, and a headless Chromium."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "build" / "release" / "report" / "moetape_report_samples"

# The share of pixels of each colour, most first.
COUNT_COLOURS = """async (png) => {
  const picture = new Image();
  picture.src = `data:image/png;base64,${png}`;
  await picture.decode();
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const pen = canvas.getContext('2d');
  pen.drawImage(picture, 0, 0);
  const { data } = pen.getImageData(0, 0, picture.width, picture.height);
  const counts = new Map();
  for (let at = 0; at < data.length; at += 4) {
    const colour = (data[at] << 16) | (data[at + 1] << 8) | data[at + 2];
    counts.set(colour, (counts.get(colour) ?? 0) + 1);
  }
  return [...counts].sort((one, other) => other[1] - one[1]).map(([c, n]) => [c, (4 * n) / data.length]);
}"""


def write_samples(folder: Path) -> None:
    assert SAMPLES.exists(), "build the target moetape_report_samples first (preset release)"
    subprocess.run([SAMPLES, folder], check=True)


@contextmanager
def launch_browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    assert program is not None, f"none of {', '.join(names)} is installed"
    expect.set_options(timeout=60_000)  # a busy machine is no fault
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work for root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


def settle(page: Page) -> None:
    """Waits until what was changed is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


class Colours:
    """Reads the colours of what a page shows, in a page of its own: reports load no pictures."""

    def __init__(self, browser: Browser):
        self.page = browser.new_page()
        self.page.set_default_timeout(120_000)

    def of(self, shown: Locator) -> dict[int, float]:
        """Shares of colours, 0xRRGGBB, most first."""
        return dict(self.page.evaluate(COUNT_COLOURS, base64.b64encode(shown.screenshot()).decode()))

    def at(self, plot: Locator, x: float, y: float, size: int = 2) -> dict[int, float]:
        """The same, of a small square in the middle of a place that is given in the element's pixels."""
        plot.evaluate("(element) => element.scrollIntoView({ block: 'start' })")
        box = plot.bounding_box()
        assert box is not None
        clip = {"x": box["x"] + x - size / 2, "y": box["y"] + y - size / 2, "width": size, "height": size}
        png = plot.page.screenshot(clip=clip)
        return dict(self.page.evaluate(COUNT_COLOURS, base64.b64encode(png).decode()))
