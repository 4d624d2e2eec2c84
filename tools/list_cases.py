"""Writes or checks tests/cases.md: which tests carry which case id in a comment (`// case A06`, `# trap 8`).

tools/list_cases.py            rewrites the table's last column
tools/list_cases.py --check    fails if it is not what the tests say
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "cases.md"
CASE = re.compile(r"(?://|#)\s*(?:.*?[;:,]\s*)??cases? ((?:[A-K]\d\d)(?:[ ,]+(?:case |and )?[A-K]\d\d)*)")
TRAP = re.compile(r"(?://|#).*?\btrap (\d+(?:, \d+)*)")
TEST = re.compile(
    r"^\s*(?:TEST(?:_F|_P)?\((\w+), (\w+)\)|RC_GTEST_PROP\((\w+), (\w+)|(?:async )?def (test_\w+))"
)
ROW = re.compile(r"^\| ([A-K]\d\d|trap \d+) \| (.*?) \| (.*) \|$")


def tests_by_case() -> dict[str, list[str]]:
    """Case id, or "trap 8" -> tests, each the nearest one above the comment or on its line."""
    found: dict[str, list[str]] = defaultdict(list)
    files = [f for folder in ("src", "tests") for f in sorted((ROOT / folder).rglob("*test*")) if f.is_file()]
    for file in files:
        if file.suffix not in (".cc", ".py"):
            continue
        lines = file.read_text().splitlines()
        for number, line in enumerate(lines):
            name = test_at(lines, number) or file.name
            for case in cases_in(line):
                if name not in found[case]:
                    found[case].append(name)
    return found


def cases_in(line: str) -> list[str]:
    cases = [case for match in CASE.finditer(line) for case in re.findall(r"[A-K]\d\d", match.group(1))]
    traps = [trap for match in TRAP.finditer(line) for trap in re.findall(r"\d+", match.group(1))]
    return cases + [f"trap {number}" for number in traps]


def test_at(lines: list[str], number: int) -> str | None:
    """The test that a comment belongs to: on its line, the next one below a comment line, else above."""
    own_line = lines[number].lstrip().startswith(("#", "//"))
    indented = lines[number].startswith(" ")
    below = (
        range(number, min(number + 12, len(lines)))
        if own_line and not indented
        else range(number, number + 1)
    )
    for i in [*below, *range(number - 1, -1, -1)]:
        if match := TEST.match(lines[i]):
            parts = [part for part in match.groups() if part]
            return ".".join(parts)
    return None


def page(found: dict[str, list[str]]) -> str:
    lines = []
    for line in PAGE.read_text().splitlines():
        row = ROW.match(line)
        tests = ", ".join(f"`{name}`" for name in found[row.group(1)]) if row else ""
        lines.append(f"| {row.group(1)} | {row.group(2)} | {tests or 'later'} |" if row else line)
    return "\n".join(lines) + "\n"


def main() -> None:
    found = tests_by_case()
    known = {row.group(1) for line in PAGE.read_text().splitlines() if (row := ROW.match(line))}
    if unknown := sorted(set(found) - known):
        sys.exit(f"tests/cases.md: no row for {', '.join(unknown)}")
    text = page(found)
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif text != PAGE.read_text():
        sys.exit("tests/cases.md is not what the tests say; run tools/list_cases.py")


if __name__ == "__main__":
    main()
