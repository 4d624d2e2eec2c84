"""The examples that the documents show are the files that run here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("language", "file"), [("python", "quickstart.py"), ("cpp", "quickstart.cc")])
def test_the_readme_shows_the_quickstarts_as_they_are(language: str, file: str) -> None:
    assert (ROOT / "examples" / file).read_text() in code_blocks("README.md", language)


def test_the_python_quickstart_runs() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "{'unwritten': 1}" in run.stdout


@pytest.mark.parametrize("page", ["compare.md", "diagnose.md", "lightllm.md", "metrics.md", "replay.md"])
def test_the_pages_print_what_they_say(page: str, tmp_path: Path) -> None:
    [example] = code_blocks(f"docs/{page}", "python")
    run = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout in code_blocks(f"docs/{page}", "text")


def test_links_between_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_table_of_cases_is_what_the_tests_say() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "tools" / "list_cases.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
