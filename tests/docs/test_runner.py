"""The reader of blocks finds what is there, and refuses what it cannot understand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs import blocks as module
from tests.docs.test_blocks import run

PAGE = """# A page

```bash
echo one
```

<!-- file: made/two.toml -->
```toml
[drafter]
use = "none"
```

   <!-- not run: no Mac -->
   ```sh
   echo never
   ```

```text
shown, not run
```

```{toctree}
page
```

<!-- fails: 3 -->
```bash
exit 3
```

```python
import pathlib
assert pathlib.Path("made/two.toml").is_file()
```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_blocks_are_found_with_their_notes(page: Path) -> None:
    found = [(b.line, b.language, b.note, b.value) for b in module.blocks("page.md")]
    assert found == [
        (3, "bash", "", ""),
        (8, "toml", "file", "made/two.toml"),
        (14, "sh", "not run", "no Mac"),
        (27, "bash", "fails", "3"),
        (31, "python", "", ""),
    ]
    assert [b.text for b in module.blocks("page.md")][2] == "echo never\n"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("```bash\necho\n", "never closed"),
        ("<!-- skip: me -->\n```bash\n```\n", "skip"),
        ("Run this:\n\n    pytest\n", r"page\.md:3: indented code"),
        ("Run this:\n\n\tpytest\n", r"page\.md:3: indented code"),
        ("~~~bash\npytest\n~~~\n", "three backticks"),
        ("```bash title\npytest\n```\n", "three backticks"),
        ("```\npytest\n```\n", "'' is none of"),
        ("```console\npytest\n```\n", "'console' is none of"),
    ],
)
def test_what_is_not_understood_is_refused(page: Path, broken: str, why: str) -> None:
    page.write_text(broken, encoding="utf-8")
    with pytest.raises(ValueError, match=why):
        list(module.blocks("page.md"))


def test_a_page_is_run_in_its_order(page: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    for block in module.blocks("page.md"):
        run(block, tmp_path, environment)


@pytest.mark.parametrize("text", ["false\n", "false | cat\n", 'echo "$unset"\n'])
def test_a_command_that_fails_is_noticed(text: str, tmp_path: Path, environment: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:1 left with"):
        run(module.Block("page.md", 1, "bash", text), tmp_path, environment)
