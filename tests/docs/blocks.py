"""The fenced blocks of README.md and docs/, and how each is executed. Not a test itself.

    python -m tests.docs.blocks     write the list of blocks that are not run into docs/limits.md

A block is executed unless an HTML comment on the line before its fence says something else (readers do not see it):

    <!-- file: my.toml -->        the block is written to this file in the page's folder
    <!-- fails: 2 -->             the commands are run and must leave with this exit status
    <!-- ci: demo -->             .ci/run runs this block itself (it installs or downloads)
    <!-- not run: why -->         cannot be run here; the reason is the reader's as well as ours

`bash` blocks are scripts, run one after another in one folder for each page, so a page is executed as it is read.
`python` blocks are programs in the same folder. A `toml` block without a file name is loaded as a configuration.
Other languages (`text`, `json`) show what is printed and are not executed. Code that this reader would miss (indented
by four spaces, in a fence of tildes, in one without a language) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
RUN = ("bash", "sh", "python", "toml")
NOTES = ("file", "fails", "ci", "not run")
SHOWN = ("text", "json", "{toctree}")
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[^\s`]*) *$")
_NOTE = re.compile(r"^ *<!-- (?P<key>[a-z ]+): (?P<value>.+?) -->$")


@attrs.frozen
class Block:
    """One fenced block: where it is, what it is written in, its text, and what its comment says."""

    page: str
    line: int
    language: str
    text: str
    note: str = ""  # one of NOTES, or "" for none
    value: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """README.md, CONTRIBUTING.md, every page of docs/ and of the examples, relative to the root."""
    paths = [*sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "examples").glob("**/README.md"))]
    found = [path.relative_to(ROOT).as_posix() for path in paths]
    return ["README.md", "CONTRIBUTING.md", *(name for name in found if "/." not in name and "/_" not in name)]


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page in a language that is executed. ValueError for code that is not understood."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened is None:
            if lines[number].startswith(("    ", "\t")) and lines[number].strip():
                raise ValueError(f"{page}:{number + 1}: indented code is never executed: put it into a fence")
            if lines[number].lstrip().startswith(("```", "~~~")):
                raise ValueError(f"{page}:{number + 1}: a fence is three backticks and one word for its language")
            number += 1
            continue
        if opened["language"] not in (*RUN, *SHOWN):
            raise ValueError(f"{page}:{number + 1}: '{opened['language']}' is none of {', '.join((*RUN, *SHOWN))}")
        start, indent = number, len(opened["indent"])
        number += 1
        while number < len(lines) and lines[number].strip() != opened["ticks"]:
            number += 1
        if number == len(lines):
            raise ValueError(f"{page}:{start + 1}: the block is never closed")
        text = "\n".join(line[indent:] for line in lines[start + 1 : number]) + "\n"
        number += 1
        if opened["language"] not in RUN:
            continue
        above = _NOTE.match(lines[start - 1]) if start else None
        if above is not None and above["key"] not in NOTES:
            raise ValueError(f"{page}:{start}: '{above['key']}' is none of {', '.join(NOTES)}")
        note, value = (above["key"], above["value"]) if above is not None else ("", "")
        yield Block(page, start + 1, opened["language"], text, note, value)


LIMITS = ROOT / "docs/limits.md"
START, END = "<!-- not-run: written by python -m tests.docs.blocks -->\n", "<!-- end of not-run -->\n"


def not_run() -> str:
    """The list of blocks that no test runs, as docs/limits.md shows it."""
    lines = []
    for page in pages():
        for block in blocks(page):
            if block.note == "not run":
                where = f"[{page}]({page.removeprefix('docs/')})" if page.startswith("docs/") else page
                first = next(line for line in block.text.splitlines() if line.strip())
                lines.append(f"- {where}, `{first.split('  ')[0]}`: {block.value}\n")
    return f"{len(lines)} blocks:\n\n" + "".join(lines)


def main() -> None:
    before, rest = LIMITS.read_text(encoding="utf-8").split(START)
    LIMITS.write_text(f"{before}{START}\n{not_run()}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
