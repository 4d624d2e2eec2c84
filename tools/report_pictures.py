#!/usr/bin/env python3
"""report_pictures.py: makes the pictures of docs/report.md again, from the made-up records of the tests.

Needs what the tests need: the target moetape_report_samples (preset release), Chromium and .venv.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

from report_helpers import launch_browser, settle, write_samples  # noqa: E402

# Name, width and height, colour scheme, and the heading that stands at the top (none: the page begins).
PICTURES = [
    ("report-first-screen.png", 1000, 960, "light", None),
    ("report-agreement.png", 1000, 960, "dark", "Agreement of the two records"),
    ("report-narrow.png", 360, 720, "light", "Load"),
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, launch_browser() as browser:
        write_samples(Path(folder))
        for name, width, height, scheme, heading in PICTURES:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto((Path(folder) / "two_records.html").as_uri())
            if heading:
                page.get_by_role("heading", name=heading, exact=True).evaluate("(h) => h.scrollIntoView()")
            settle(page)
            page.screenshot(path=ROOT / "docs" / "images" / name)
            page.close()


if __name__ == "__main__":
    main()
