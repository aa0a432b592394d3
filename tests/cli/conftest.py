"""A package of toy plugins beside the installed ones, and the command line in this process or in one of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

PLUGINS = '''
"""Toy plugins of a package that is installed beside sparkwright: what goes wrong is an option."""
import attrs
import numpy as np
from sparkwright.core.contracts import Provider, option
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.testing import toys


@attrs.frozen
class Options:
    fault: str = option("", "raise in build, describe or round; nonfinite; load (endless)")
    after: int = option(5, "forwards before a fault in a round")
    context: int = option(1 << 20, "the context")


def ring():
    table = np.full((27, 27), -9.0, dtype=np.float32)
    for token in range(27):
        table[token, (token + 1) % 26] = 9.0
    return table


@attrs.define(eq=False)
class Target(toys.MarkovTarget):
    options: Options = Options()
    forwards: int = 0

    @hookimpl
    def sparkwright_target_forward(self, tokens, state, logits):
        import mlx.core as mx

        self.forwards += 1
        forward = super().sparkwright_target_forward(tokens, state, logits)
        if self.forwards > self.options.after:
            if self.options.fault == "round":
                raise ZeroDivisionError("on purpose")
            if self.options.fault == "nonfinite":
                return attrs.evolve(forward, logits=mx.full(forward.logits.shape, float("nan")))
        return forward


def describe(options, site):
    if options.fault == "describe":
        raise ZeroDivisionError("on purpose")
    return toys.markov_target(ring(), context=options.context).describe(options, site)


def build(options, site):
    import mlx.core as mx

    if options.fault == "build":
        raise ZeroDivisionError("on purpose")
    if options.fault == "load":
        print("loading", flush=True)
        while True:
            site.progress("load", 1, 2)
    return Target(mx.array(ring()), site.taps, options=options)


@hookimpl
def sparkwright_register_targets():
    return [Provider(kind="target", name="toy", summary="the alphabet, again and again", options=Options, build=build,
                     describe=describe)]


class Odd:
    @hookimpl
    def sparkwright_round_finished(self):
        raise OSError("disk full")


@hookimpl
def sparkwright_register_observers():
    return [Provider(kind="observer", name="odd", summary="an observer that raises", build=lambda options, site: Odd())]
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder to put on sys.path: the toy plugins, and one that cannot be imported."""
    root = tmp_path / "site"
    info = root / "swt_toys-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swt-toys\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[sparkwright.plugins]\nswt_toys = swt_toys\nswt_bad = swt_bad\n")
    (root / "swt_toys.py").write_text(PLUGINS)
    (root / "swt_bad.py").write_text("raise RuntimeError('on purpose')\n")
    return root


@attrs.frozen
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def failed(self, code: int, *says: str) -> None:
        """One error message, the exit code of its kind, no traceback."""
        assert self.code == code, self
        assert "Traceback" not in self.err and "internal error" not in self.err, self.err
        assert sum(line.startswith(("error:", "Error:")) for line in self.err.splitlines()) == 1, self.err
        for part in says:
            assert part in self.err, self.err


Cli = Callable[..., Done]


@pytest.fixture
def cli(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    """cli("generate", ...) in this process: fast, and a fault of ours raises here (SPARKWRIGHT_DEBUG)."""
    from sparkwright.core.cli import main

    monkeypatch.syspath_prepend(package)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SPARKWRIGHT_") and "__" in name]:
        monkeypatch.delenv(name)

    def run(*arguments: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["sparkwright", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        assert isinstance(left.value.code, int)
        return Done(left.value.code, out, err)

    yield run
    sys.modules.pop("swt_toys", None)


@pytest.fixture
def process(package: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """process("generate", ...) in a process of its own, as a user has it: no debug switch."""

    def start(*arguments: str | bytes, **how: Any) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if name != "SPARKWRIGHT_DEBUG"}
        paths = [str(package), *filter(None, [environ.get("PYTHONPATH")])]
        environ |= {"PYTHONPATH": os.pathsep.join(paths), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        command = [sys.executable, "-c", "from sparkwright.core.cli import main; main()", *arguments]
        pipes: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        } | how
        return subprocess.Popen(command, env=environ, cwd=tmp_path, bufsize=0, **pipes)  # communicate() skips buffers

    return start
