"""Held-out texts that may be passed on: `python texts.py WHEELS_FOLDER DEBS_FOLDER OUT.json`. For tests and benchmarks.

Ten pieces of code and ten of prose out of files that corpus.py holds out, under the MIT or the PSF licence, each from
the first line behind the first third of its file on, with the notices that have to go with them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import inputs
from corpus import HELD_OUT_ONE_IN, from_debs, from_wheels, number

LENGTH = 1800
CODE = ("mypy/stubtest.py", "mypy/test/testargs.py", "_pytest/legacypath.py", "_pytest/main.py",
        "_pytest/mark/expression.py", "sqlglot/dialects/dialect.py", "alembic/autogenerate/api.py",
        "twisted/internet/selectreactor.py", "twisted/names/tap.py",
        "tox/tox_env/python/pip/pip_install.py")  # fmt: skip
PROSE = ("how-to/monkeypatch.rst.txt", "announce/release-2.0.2.rst.txt", "rst/core/selectable.rst",
         "rst/faq/thirdparty.rst", "rst/orm/events.rst", "library/bz2.rst.txt", "library/logging.handlers.rst.txt",
         "library/mailbox.rst.txt", "library/xml.dom.minidom.rst.txt", "whatsnew/3.1.rst.txt")  # fmt: skip
COPYRIGHT = {
    "mypy": "Copyright (c) 2012-2023 Jukka Lehtosalo and contributors; 2015-2023 Dropbox, Inc.",
    "pytest": "Copyright (c) 2004 Holger Krekel and others",
    "python-pytest-doc": "Copyright (c) 2004 Holger Krekel and others",
    "sqlglot": "Copyright (c) 2026 Toby Mao",
    "alembic": "Copyright 2009-2026 Michael Bayer",
    "Twisted": "Copyright (c) 2001-2026 the Twisted authors (LICENSE of Twisted 26.10.0 names them)",
    "tox": "Copyright the tox contributors",
    "python-sqlalchemy-doc": "Copyright 2005-2015 the SQLAlchemy authors and contributors",
    "python3.11-doc": "Copyright (c) 2001-2023 Python Software Foundation; All Rights Reserved",
}
PSF = "PSF License Agreement, https://docs.python.org/3.11/license.html; cut out of the documentation of Python 3.11"


def main(wheels: Path, debs: Path, out: Path) -> None:
    for folder in (wheels, debs):
        inputs.folder(folder, "fetch.sh")
    inputs.out(out)
    found: dict[str, dict[str, str]] = {}
    for package, _, path, text in (*from_wheels(wheels), *from_debs(debs)):
        wanted = next((end for end in (*CODE, *PROSE) if path.endswith(end)), None)
        name = package.split()[0]
        if wanted is None or name not in COPYRIGHT or number(f"{package} {path}") % HELD_OUT_ONE_IN:
            continue
        lines = text.splitlines(keepends=True)
        at, begins = 0, 0
        while begins < len(text) // 3:
            begins += len(lines[at])
            at += 1
        begins = max(0, min(begins, len(text) - LENGTH))
        kind = "code" if wanted in CODE else "prose"
        licence = PSF if name == "python3.11-doc" else "MIT"
        found[wanted] = {"kind": kind, "package": package, "path": path, "licence": licence,
                         "copyright": COPYRIGHT[name], "text": text[begins : begins + LENGTH]}  # fmt: skip
    missing = {*CODE, *PROSE} - found.keys()
    if missing:
        inputs.stop(f"of the {len(CODE) + len(PROSE)} held-out files {len(missing)} are not there: {sorted(missing)}")
    mit = (Path(__file__).parents[1] / "LICENSE").read_text(encoding="utf-8")
    mit = mit[mit.index("Permission is hereby") :]
    result = {"what": "pieces of files held out from training (training/corpus.py)", "MIT": mit,
              "texts": [found[name] for name in (*CODE, *PROSE)]}  # fmt: skip
    out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print({"texts": len(result["texts"])})


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    ap.add_argument("wheels", type=Path)
    ap.add_argument("debs", type=Path)
    ap.add_argument("out", type=Path)
    args = ap.parse_args()
    main(args.wheels, args.debs, args.out)
