"""Tokens of preprocessed MSL and the little structure the translator needs: brackets, statements, attributes.

Not a parser: no types, no scopes. Positions (`p`, `a`, `b`) index the significant tokens; white space and line markers
keep their place in `toks`, so that text written back keeps lines and columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mslrun.errors import MslError

TOKEN = re.compile(
    r"""(?P<line>^\#[^\n]*$)|(?P<ws>\s+)|(?P<str>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<id>[A-Za-z_]\w*)|(?P<num>(?:\d|\.\d)(?:[eEpP][+-]|[\w.'])*)
    |(?P<op>::|->\*?|<<=|>>=|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|<<|.)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
FLOAT = re.compile(
    r"(\d[\d']*\.[\d']*|\.\d[\d']*)([eE][+-]?\d+)?|\d[\d']*[eE][+-]?\d+|0[xX][\da-fA-F.]*[pP][+-]?\d+"
)
ADDRESS_SPACES = frozenset(
    [
        "device",
        "constant",
        "threadgroup",
        "thread",
        "kernel",
        "ray_data",
        "object_data",
        "threadgroup_imageblock",
    ]
)

Attributes = dict[str, str | None]


@dataclass
class Token:
    kind: str
    text: str
    file: str = ""
    line: int = 0


def lex(text: str) -> list[Token]:
    """All tokens with their file and line. `#pragma` lines are dropped: hints, without effect on meaning."""
    out: list[Token] = []
    file, line = "", 0
    for found in TOKEN.finditer(text):
        kind, body = found.lastgroup or "op", found.group()
        if kind == "line":
            if re.match(r"#\s*pragma", body):
                continue
            marker = re.match(r'#\s*(?:line\s+)?(\d+)\s+"([^"]*)"', body)
            if marker:
                line, file = int(marker[1]) - 1, marker[2]
        out.append(Token(kind, body, file, line))
        line += body.count("\n")
    return out


class Source:
    """A token list with its bracket structure."""

    def __init__(self, text: str) -> None:
        self.toks = lex(text)
        self.at = [i for i, tok in enumerate(self.toks) if tok.kind not in ("ws", "line")]
        self.attributes: dict[
            int, tuple[int, Attributes]
        ] = {}  # position of `[[` -> (its `]]`, what it says)
        self.inner: list[int | None] = [None] * len(self.at)  # innermost opener around a position
        self.opener: dict[int, int] = {}
        self._find_attributes()
        self._find_brackets()
        self.in_attribute = {p for a, (b, _) in self.attributes.items() for p in range(a, b + 1)}

    def __len__(self) -> int:
        return len(self.at)

    def word(self, p: int) -> str:
        return self.toks[self.at[p]].text if 0 <= p < len(self.at) else ""

    def kind(self, p: int) -> str:
        return self.toks[self.at[p]].kind

    def words(self, a: int, b: int) -> list[str]:
        return [self.word(p) for p in range(a, b)]

    def text(self, a: int, b: int) -> str:
        return " ".join(self.words(a, b))

    def match(self, p: int, opening: str, closing: str) -> int:
        """Position of the closer of the opener at p; `<` skips parentheses, where `>` may compare."""
        depth = 0
        while p < len(self.at):
            word = self.word(p)
            if word == opening:
                depth += 1
            elif word == closing:
                depth -= 1
                if depth == 0:
                    return p
            elif opening == "<" and word == ">>":
                depth -= 2
                if depth <= 0:
                    return p
            elif opening == "<" and word == "(":
                p = self.match(p, "(", ")")
            p += 1
        raise MslError(f"unbalanced {opening}")

    def statement_start(self, p: int) -> int:
        """First position of the statement or declaration that p belongs to."""
        depth = self.inner[p]
        q = p
        while q > 0:
            q -= 1
            word = self.word(q)
            if (self.inner[q] == depth and word in (";", "}")) or q == depth:
                return q + 1
            if (
                self.inner[q] == depth
                and word == ":"
                and self.word(q - 1) in ("public", "private", "protected")
            ):
                return q + 1
        return 0

    def statement_end(self, p: int) -> int:
        """Position of the `;` that ends the statement of p."""
        q = p
        while q < len(self.at) and not (self.word(q) == ";" and self.inner[q] == self.inner[p]):
            q += 1
        return q

    def _find_attributes(self) -> None:
        p = 0
        while p < len(self.at) - 1:
            if self.word(p) == "[" and self.word(p + 1) == "[" and self.at[p + 1] == self.at[p] + 1:
                end = self.match(p, "[", "]")
                self.attributes[p] = (end, self._parse_attributes(p + 2, end - 1))
                p = end + 1
            else:
                p += 1

    def _parse_attributes(self, a: int, b: int) -> Attributes:
        out: Attributes = {}
        p = a
        while p < b:
            if self.kind(p) == "id":
                name, out[self.word(p)] = self.word(p), None
                if p + 1 < b and self.word(p + 1) == "(":
                    end = self.match(p + 1, "(", ")")
                    out[name] = self.text(p + 2, end)
                    p = end
            p += 1
        return out

    def _find_brackets(self) -> None:
        stack: list[int] = []
        for p in range(len(self.at)):
            word, operator = self.word(p), self.kind(p) == "op"
            if operator and word in (")", "]", "}") and stack:
                self.opener[p] = stack.pop()
            self.inner[p] = stack[-1] if stack else None
            if operator and word in ("(", "[", "{"):
                stack.append(p)
