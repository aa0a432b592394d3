"""What the runner raises and reports. Not here: how a fault is found (native/)."""

from __future__ import annotations

from dataclasses import dataclass


class MslError(Exception):
    """The source cannot be preprocessed, translated or compiled; the message carries the compiler's words."""


class ToolchainError(RuntimeError):
    """A compiler that the runner needs is not installed."""


@dataclass
class Finding:
    """One fault of a kernel: what kind, in words, and where (`file:line`, the innermost inlined call first)."""

    kind: str
    msg: str
    where: str = ""
    where2: str = ""
    count: int = 1
    tgid: tuple[int, ...] = ()
    tid: int = 0

    def __str__(self) -> str:
        text = f"{self.kind}: {self.msg}"
        if self.where:
            text += f" [{self.where}"
            text += f"; other access {self.where2}]" if self.where2 else "]"
        return text + (f" (x{self.count})" if self.count > 1 else "")


class KernelFault(AssertionError):
    """A run found faults; `findings` lists them."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        super().__init__("\n".join(map(str, findings)))

    @property
    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.findings]
