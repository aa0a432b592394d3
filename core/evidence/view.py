"""What a bundle says, as titled tables of text: what the terminal and the page both show.

A bundle is what a stranger sent. Nothing of it is assumed to be there or to have the right type: `at`, `number`,
`words` and `items` give a default instead, and every string loses what could steer a terminal or a reader's eye.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from sparkwright.core.evidence.bundle import Bundle

Row: TypeAlias = tuple[str, ...]
LONGEST = 400
MOST_ROWS = 500
STATUSES = ("ok", "not passed", "not applicable", "failed", "not run")


# ----------------------------------------------------------------------------------------------------- reading


def at(value: Any, *path: str | int) -> Any:
    """The value at a path of keys and indices, None where there is none."""
    for key in path:
        if isinstance(value, Mapping) and isinstance(key, str):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def number(value: Any, *path: str | int) -> float | None:
    """A finite number of sane size at a path."""
    found = at(value, *path)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    return float(found) if abs(found) < 1e18 and math.isfinite(found) else None


def words(value: Any, *path: str | int, most: int = LONGEST) -> str:
    """Text at a path, also of a number; control and direction characters are made visible."""
    found = at(value, *path)
    if isinstance(found, bool):
        return "yes" if found else "no"
    if isinstance(found, (int, float)):
        return plain(found)
    return clean(found, most) if isinstance(found, str) else ""


def items(value: Any, *path: str | int) -> list[Any]:
    found = at(value, *path)
    return found[:MOST_ROWS] if isinstance(found, list) else []


def clean(text: str, most: int = LONGEST) -> str:
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(c if unicodedata.category(c)[0] != "C" else f"\\u{ord(c):04x}" for c in cut)


def plain(value: float) -> str:
    if abs(value) >= 1e15 or not math.isfinite(value):
        return f"{float(value) if abs(value) < 1e300 else math.inf:.3g}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def size(value: float | None) -> str:
    if value is None:
        return "-"
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(value) >= 1 << bits:
            return f"{value / (1 << bits):,.2f} {unit}"
    return f"{value:.0f} bytes"


def fixed(value: float | None, digits: int, unit: str = "") -> str:
    return "-" if value is None else f"{value:,.{digits}f}{unit}"


# -------------------------------------------------------------------------------------------------- the tables


@attrs.frozen
class Table:
    """detail: long, for the page only."""

    caption: str
    head: Row
    rows: tuple[Row, ...]
    detail: bool = False


@attrs.frozen
class Section:
    """One step. status: one of STATUSES."""

    name: str
    what: str
    status: str
    summary: str
    seconds: float | None
    part: Mapping[str, Any]
    tables: tuple[Table, ...] = ()


def sections(bundle: Bundle) -> list[Section]:
    """Every step of the manifest in its order; a step's own file goes before what the manifest says of it."""
    by_step: dict[str, Mapping[str, Any]] = {words(part, "step"): part for part in bundle.parts.values()}
    listed = [words(step, "name", most=40) for step in items(bundle.manifest, "steps")]
    found = []
    for name in dict.fromkeys([*listed, *by_step]):
        part = by_step.get(name)
        if part is None:
            found.append(Section(name, "", "not run", "the bundle has no part of this step", None, {}))
            continue
        said = words(part, "status")
        status = said if said in STATUSES else "failed"
        tables = tuple(table for table in TABLES.get(name, _nothing)(at(part, "data")) if table.rows)
        found.append(
            Section(name, words(part, "what"), status, words(part, "summary"), number(part, "seconds"), part, tables)
        )
    return found


def overview(bundle: Bundle) -> list[Row]:
    """The bundle itself, in (what, value)."""
    manifest = bundle.manifest
    versions = at(manifest, "versions")
    shown = [f"{clean(k, 30)} {words(v)}" for k, v in versions.items()] if isinstance(versions, dict) else []
    settings = at(manifest, "settings")
    how = [f"{clean(k, 30)} {words(v)}" for k, v in settings.items()] if isinstance(settings, dict) else []
    return [
        ("machine", words(manifest, "machine")),
        ("made on", words(manifest, "created", most=20)),
        ("versions", ", ".join(shown[:20])),
        ("settings", ", ".join(how[:20])),
        ("configuration", words(manifest, "config_sha256", most=64)),
        ("checkpoint, by its headers", words(manifest, "checkpoint_sha256", most=64)),
        ("bundle", f"{bundle.bytes:,} bytes, sha256 {bundle.sha256}"),
        ("verified", f"{len(bundle.parts)} files have the hashes of the manifest"),
    ]


def _nothing(data: Any) -> Iterator[Table]:
    yield from ()


def _facts(data: Any, prefix: str = "") -> list[Row]:
    if not isinstance(data, Mapping):
        return []
    rows: list[Row] = []
    for key, value in list(data.items())[:60]:
        name = f"{prefix}{clean(str(key), 60)}"
        if isinstance(value, Mapping) and not prefix.count("."):
            rows += _facts(value, f"{name}.")
        elif key.endswith("bytes") or "memory.size" in name:
            rows.append((name.removesuffix("_bytes").replace("_", " "), size(number(data, key))))
        elif isinstance(value, (str, int, float)):
            rows.append((name.replace("_", " "), words(value)))
    return rows


def _machine(data: Any) -> Iterator[Table]:
    yield Table("The machine", ("what", "value"), tuple(_facts(data)))


def _checkpoint(data: Any) -> Iterator[Table]:
    about = at(data, "inspected")
    rows = [(name, words(about, name)) for name in ("architecture", "variant", "layout", "layers", "drafter_stages",
                                                    "tensors", "fingerprint")]  # fmt: skip
    rows.append(("weights", size(number(about, "bytes"))))
    rows.append(("memory needed", size(number(about, "memory", "needed"))))
    rows.append(("memory of the device", size(number(about, "memory", "present"))))
    yield Table("The checkpoint", ("what", "value"), tuple(r for r in rows if r[1] not in ("", "-")))
    files = (
        (words(f, "file", most=80), size(number(f, "bytes")),
         words(f, "header_sha256", most=64) or words(f, "sha256", most=64) or f"not read: {words(f, 'unread')}")
        for f in items(data, "files")
    )  # fmt: skip
    head = ("file", "size", "sha256 (of weights: of the header)")
    yield Table("Files of the checkpoint", head, tuple(files), detail=True)


def _doctor(data: Any) -> Iterator[Table]:
    rows = [
        (words(f, "level", most=20), words(f, "area", most=40), words(f, "found"), words(f, "advice"))
        for f in items(data, "findings")
    ]
    yield Table("What the doctor found", ("level", "about", "found", "advice"), tuple(rows))


def _kernels(data: Any) -> Iterator[Table]:
    rows = []
    for op in items(data, "ops"):
        fault = words(op, "excess", "fault")
        rows.append(
            (words(op, "op", most=60), words(op, "backend", most=40), words(op, "calls"),
             ",".join(words(r) for r in items(op, "rows")[:12]), fixed(number(op, "worst"), 3), words(op, "ties"),
             fault or "within bounds")
        )  # fmt: skip
    head = ("op", "backend", "calls", "rows", "worst over bound", "ties", "outcome")
    yield Table("Kernels beside their references", head, tuple(rows))
    same = ", ".join(words(op, most=60) for op in items(data, "references"))
    if same:
        yield Table("Not compared", ("what", "ops"), (("ran as their own references", clean(same, 2000)),))


def width_rows(data: Any) -> list[tuple[str, int, float, int, int, int, int, int]]:
    """mode, rows, largest difference, position, rows compared, ties, structural, numeric; in the order of a plot."""
    found = []
    for width in items(data, "widths")[:40]:
        counts = [number(width, key) for key in ("rows", "position", "compared", "ties", "structural", "numeric")]
        largest = number(width, "largest")
        if any(c is None or abs(c) > 1e9 for c in counts):
            continue
        rows, position, compared, ties, structural, numeric = (int(c or 0) for c in counts)
        shown = math.inf if largest is None else max(0.0, largest)  # a difference that is not finite is written as null
        found.append((words(width, "mode", most=20), rows, shown, position, compared, ties, structural, numeric))
    order = {"block": 0, "prompt chunk": 1, "prefill": 2}
    return sorted(found, key=lambda w: (order.get(w[0], 3), w[0], w[1]))


def _consistency(data: Any) -> Iterator[Table]:
    facts = [
        ("verdict", words(data, "verdict", most=40)),
        ("tokens of the text", words(data, "tokens")),
        ("around positions", ", ".join(words(t) for t in items(data, "turns")[:40])),
        ("not reached", ", ".join(words(t) for t in items(data, "unreached")[:40])),
        ("tokens held against the float64 reference", words(data, "reference")),
        ("why no more", words(data, "no_reference")),
        ("rounding explains up to", fixed(number(data, "rounding"), 6)),
        ("largest logit", fixed(number(data, "scale"), 3)),
        ("choices compared", ", ".join(words(c, most=60) for c in items(data, "choices")[:40])),
    ]
    yield Table("Consistency", ("what", "value"), tuple(f for f in facts if f[1] not in ("", "-")))
    rows: Iterator[Row] = (
        (mode, str(count), str(compared), "not finite" if math.isinf(largest) else f"{largest:.3g}",
         str(position) if largest else "-", str(ties), str(structural), str(numeric))
        for mode, count, largest, position, compared, ties, structural, numeric in width_rows(data)
    )  # fmt: skip
    head = ("mode", "rows", "compared", "largest difference", "at position", "ties", "structural", "numeric")
    yield Table("Differences from decoding row by row", head, tuple(rows))
    findings: Iterator[Row] = (
        (words(f, "kind", most=20), words(f, "mode", most=20), words(f, "rows"), words(f, "position"),
         words(f, "op", most=60) or "logits", fixed(number(f, "size"), 6))
        for f in items(data, "findings")
    )  # fmt: skip
    parted = ("kind", "mode", "rows", "position", "what parts", "logits differ by")
    yield Table("What was found", parted, tuple(findings))


def costs(data: Any) -> tuple[float, list[float], float] | None:
    """Seconds of a plain decode, of verifies of 1.. rows, and of a block of drafts; None if they make no sense."""
    plain_, draft = number(data, "curves", "plain"), number(data, "curves", "draft")
    verify = [number(v) for v in items(data, "curves", "verify")[:16]]
    good = [v for v in verify if v is not None and 1e-9 < v < 1e6]
    if plain_ is None or not 1e-9 < plain_ < 1e6 or draft is None or not 0 <= draft < 1e6 or len(good) != len(verify):
        return None
    return (plain_, good, draft) if good else None


def _calibrate(data: Any) -> Iterator[Table]:
    found = costs(data)
    if found is not None:
        plain_, verify, draft = found
        named = [("plain decode", plain_), *((f"verify of {i} row{'s' * (i > 1)}", v) for i, v in enumerate(verify, 1))]
        named += [("block of drafts", draft)] if draft else []
        shown = ((name, f"{1000 * v:.3f}", f"{v / plain_:.2f}") for name, v in named)
        yield Table("Costs", ("what", "milliseconds", "plain decodes"), tuple(shown))
    about = [(name, words(data, name)) for name in ("drafter", "device", "context", "repeats", "fingerprint")]
    why = words(data, "confidences", "why")
    if why:
        about.append(("confidences", f"not fitted: {why}"))
    yield Table("How it was measured", ("what", "value"), tuple(a for a in about if a[1]))
    fit = at(data, "confidences")
    fitted: Iterator[Row] = (
        (str(k), fixed(number(t), 3), fixed(number(items(fit, "before"), k - 1), 4),
         fixed(number(items(fit, "after"), k - 1), 4))
        for k, t in enumerate(items(fit, "temperatures"), 1)
    )  # fmt: skip
    yield Table("Confidences", ("position", "temperature", "error before", "after"), tuple(fitted))


PAIR_HEAD = ("prompt", "plain tok/s", "speculative tok/s", "ratio", "texts")


def _interval(data: Any) -> str:
    value, low, high = (fixed(number(data, key), 2) for key in ("value", "low", "high"))
    return "no drafts" if value == "-" else f"{value} [{low}, {high}]"


def _speed(data: Any) -> Iterator[Table]:
    rows = []
    for arm in items(data, "arms")[:8]:
        rate = " ".join((fixed(number(arm, "decode_rate", "median"), 1),
                         f"[{fixed(number(arm, 'decode_rate', 'low'), 1)}, "
                         f"{fixed(number(arm, 'decode_rate', 'high'), 1)}]"))  # fmt: skip
        rows.append(
            (words(arm, "name", most=4), words(arm, "label", most=80), words(arm, "promise", most=40), rate,
             fixed(number(arm, "prefill_rate", "median"), 1),
             _interval(at(arm, "tau")))
        )  # fmt: skip
    head = ("arm", "what", "promise", "decode tok/s, median [quartiles]", "prefill tok/s", "tau [95%]")
    yield Table("The arms", head, tuple(rows))
    for c in items(data, "comparisons")[:4]:
        d = at(c, "decode")
        facts = [
            ("verdict", words(c, "verdict", "words")),
            ("decode rate, speculative over plain", f"{fixed(number(d, 'ratio'), 4)} "
             f"[{fixed(number(d, 'low'), 4)}, {fixed(number(d, 'high'), 4)}]"),
            ("pairs", words(d, "n")),
            ("method", words(d, "method", most=60)),
            ("p", fixed(number(d, "p"), 4)),
            ("faster, slower, ties", ", ".join(words(c, k) for k in ("wins", "losses", "ties"))),
            ("texts equal", words(c, "same_texts")),
        ]  # fmt: skip
        yield Table("Speculative against plain", ("what", "value"), tuple(facts))
        pairs = (
            (words(p, "prompt", most=60), fixed(number(p, "base_rate"), 2), fixed(number(p, "rate"), 2),
             fixed(number(p, "ratio"), 4), "equal" if at(p, "same_text") is True else "differ")
            for p in items(c, "pairs")
        )  # fmt: skip
        yield Table("Every pair", PAIR_HEAD, tuple(pairs), detail=True)
    taus = (
        (
            words(arm, "label", most=80),
            str(k),
            _interval(at(arm, "tau_at", k - 1)),
            _interval(at(arm, "acceptance", k - 1)),
        )
        for arm in items(data, "arms")[:8]
        for k in range(1, len(items(arm, "tau_at")[:16]) + 1)
    )
    positions = ("arm", "drafts", "tau up to here [95%]", "acceptance at this position [95%]")
    yield Table("tau by position", positions, tuple(taus), detail=True)
    notes = tuple((words(note),) for note in items(data, "notes")[:20])
    yield Table("Notes", ("note",), notes)


TABLES: Mapping[str, Callable[[Any], Iterator[Table]]] = {
    "machine": _machine,
    "checkpoint": _checkpoint,
    "doctor": _doctor,
    "kernels": _kernels,
    "consistency": _consistency,
    "calibrate": _calibrate,
    "speed": _speed,
}
