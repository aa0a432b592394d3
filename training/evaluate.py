"""Tables from rounds: `python evaluate.py ROUNDS.npz PROMPTS.json OUT.json --other ROUNDS_OF_NO_MARKOV.npz`.

Needs sparkwright, for `lookup`.

Rounds are replayed over the emitted text: at an anchor, each draft of the block is accepted with the probability that
stochastic verification has given that the text is what it is (train_drafter.rounds), until one is not; the next round
begins after the token behind it. That is the law of real rounds, without decoding again for every drafter. Intervals
are bootstrap over prompts (95 %). Replays: 16 a text, 1 at T = 0. tau counts rounds that drafted; for `lookup`, which
does not draft in every round, tokens_per_round counts all of them, and is what to hold beside the tau of the others.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path
from typing import Any

import inputs
import numpy as np

from sparkwright.plugins.drafters.lookup import History

Array = np.ndarray[Any, np.dtype[Any]]
G, EOS, REPLAYS, BINS = 5, 1, 16, 20


def replay(accept: Array, rng: np.random.Generator) -> tuple[int, int, list[tuple[int, int]]]:
    """accept [N, g] -> rounds, tokens, (anchor, accepted) of each round"""
    at, seen, tokens = 0, [], 0
    while at < len(accept):
        coins = rng.random(accept.shape[1]) < accept[at]
        a = int(np.argmin(coins)) if not coins.all() else len(coins)
        seen.append((at, a))
        tokens += a + 1
        at += a + 1
    return len(seen), tokens, seen


def lookup(tokens: Array, first: int, count: int) -> tuple[int, int, int]:
    """Rounds that drafted, the tokens of those, and all rounds, of prompt lookup over an emitted text."""
    history = History(2, 4)
    history.observe([int(t) for t in tokens[:first]])
    at, rounds, emitted, every = first, 0, 0, 0
    while at < first + count:
        draft = history.continuation(int(tokens[at]), G)
        a = 0
        while a < len(draft) and draft[a] == tokens[at + 1 + a]:
            a += 1
        every += 1
        if draft:
            rounds, emitted = rounds + 1, emitted + a + 1
        history.observe([int(t) for t in tokens[at : at + a + 1]])
        at += a + 1
    return rounds, emitted, every


def interval(tokens: Array, rounds: Array, rng: np.random.Generator) -> dict[str, Any]:
    pick = rng.integers(0, len(tokens), (2000, len(tokens)))
    boot = tokens[pick].sum(1) / np.maximum(rounds[pick].sum(1), 1)
    low, high = np.quantile(boot, [0.025, 0.975])
    if not rounds.sum():
        return {"tau": None, "interval": None}  # it never drafted
    tau = tokens.sum() / rounds.sum()
    return {"tau": round(float(tau), 3), "interval": [round(float(low), 3), round(float(high), 3)]}


def ece(p: Array, hit: Array) -> float:
    bin_of = np.minimum((p * BINS).astype(int), BINS - 1)
    total = 0.0
    for b in range(BINS):
        here = bin_of == b
        if here.any():
            total += here.mean() * abs(p[here].mean() - hit[here].mean())
    return float(total)


def auroc(p: Array, hit: Array) -> float:
    order = np.argsort(p, kind="stable")
    ranks = np.empty(len(p))
    ranks[order] = np.arange(1, len(p) + 1)
    n1 = hit.sum()
    return float((ranks[hit > 0].sum() - n1 * (n1 + 1) / 2) / max(n1 * (len(p) - n1), 1))


def fit(logits: Array, accepted: Array) -> list[float]:
    """Sequential Temperature Scaling (spec 11)."""
    grid, out, before = np.exp(np.linspace(np.log(0.3), np.log(3.0), 121)), [], np.ones(len(logits))
    for k in range(G):
        hit = (accepted > k).astype(float)
        errors = [ece(before / (1 + np.exp(-logits[:, k] / t)), hit) for t in grid]
        best = float(grid[int(np.argmin(errors))])
        out.append(round(best, 4))
        before = before / (1 + np.exp(-logits[:, k] / best))
    return out


def arrays(path: Path, has: str) -> dict[str, Array]:
    inputs.file(path, "train_drafter.py")
    try:
        found = dict(np.load(path))
    except (ValueError, EOFError, zipfile.BadZipFile):
        inputs.stop(f"{path} is no npz file, or not all of one; run train_drafter.py again")
    if has not in found:
        inputs.stop(f"{path} holds {sorted(found)} and no {has}; give the rounds of the other role of train_drafter.py")
    return found


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("rounds", type=Path)
    ap.add_argument("prompts", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--other", type=Path, help="rounds of further drafters over the same texts")
    args = ap.parse_args()
    path, prompts, out = args.rounds, inputs.file(args.prompts, "prompts.py"), inputs.out(args.out)
    rng = np.random.default_rng(0)
    z = arrays(path, "accept.dspark") | (arrays(args.other, "accept.no_markov") if args.other else {})
    try:
        kinds = np.array(json.loads(prompts.read_text())["kinds"] * 3)
    except (ValueError, KeyError, TypeError):
        inputs.stop(f"{prompts} is not what prompts.py writes; run it again")
    if len(kinds) != len(z["tokens"]):
        inputs.stop(f"{path} has {len(z['tokens'])} texts, not 3 of each of the {len(kinds) // 3} prompts of {prompts}")
    tokens, heat = z["tokens"].astype(int), z["temperature"].round(3)
    first = tokens.shape[1] - G - z["accept.dspark"].shape[1]
    ends = [
        int(np.flatnonzero(row[first + 1 :] == EOS)[0]) if (row[first + 1 :] == EOS).any() else 10**9 for row in tokens
    ]
    count = np.minimum(z["accept.dspark"].shape[1], np.array(ends))
    table: list[dict[str, Any]] = []
    rows: list[tuple[int, int, int]] = []  # text, anchor, accepted at T = 1
    for t in (1.0, 0.7, 0.0):
        for kind in ("code", "prose"):
            index = [i for i in np.flatnonzero((heat == np.float32(t)) & (kinds == kind)) if count[i] >= 32]
            if not index:
                inputs.stop(f"no {kind} at T = {t} has 32 tokens behind its prompt; give prompts.py a larger --each")
            for name in ("dspark", "bias_off", "no_markov"):
                if f"accept.{name}" not in z:
                    continue
                pairs = []
                slots = np.zeros((2, G))
                for i in index:
                    total = np.zeros(2)
                    for _ in range(REPLAYS if t else 1):
                        r, n, seen = replay(z[f"accept.{name}"][i, : count[i]].astype(np.float32), rng)
                        total += (n, r)
                        for at, a in seen:
                            slots[0, : a + 1 if a < G else G] += 1
                            slots[1, :a] += 1
                            if name == "dspark" and t == 1.0:
                                rows.append((i, at, a))
                    pairs.append(total)
                both = np.array(pairs)
                row = {"temperature": t, "kind": kind, "drafter": name, "texts": len(index)}
                row |= interval(both[:, 0], both[:, 1], rng)
                row["acceptance_by_slot"] = [round(float(x), 3) for x in slots[1] / np.maximum(slots[0], 1)]
                table.append(row)
            looked = np.array([lookup(tokens[i], first, int(count[i])) for i in index])
            drafted, emitted, every = looked.T
            row = {"temperature": t, "kind": kind, "drafter": "lookup", "texts": len(index)}
            row |= interval(emitted, drafted, rng)
            row["share_of_rounds_that_drafted"] = round(float(drafted.sum() / every.sum()), 3)
            # A round without a draft gives one token: what lookup is worth is what all rounds give.
            all_rounds = interval(emitted + every - drafted, every, rng)
            row["tokens_per_round"], row["tokens_per_round_interval"] = all_rounds["tau"], all_rounds["interval"]
            table.append(row)
    text, at, accepted = np.array(rows).T
    logits = z["confidence.dspark"][text, at].astype(np.float64)
    half = text % 2 == 0
    if half.all() or not half.any():
        inputs.stop("the texts at T = 1 are too few to fit temperatures on some and test them on others")
    temperatures = fit(logits[half], accepted[half])
    confidence: dict[str, Any] = {"temperatures": temperatures, "fitted_on_rounds": int(half.sum()), "slots": []}
    for k in range(G):
        hit = (accepted > k).astype(float)[~half]
        one = {}
        for label, ts in (("raw", [1.0] * G), ("sts", temperatures)):
            survival = np.prod([1 / (1 + np.exp(-logits[~half, j] / ts[j])) for j in range(k + 1)], axis=0)
            one[f"ece_{label}"] = round(ece(survival, hit), 4)
            one[f"auroc_{label}"] = round(auroc(survival, hit), 4)
        confidence["slots"].append({"slot": k + 1, "survival": round(float(hit.mean()), 3), **one})
    out.write_text(json.dumps({"block": G, "rounds": table, "confidence": confidence}, indent=1) + "\n")
    for row in table:
        print({k: v for k, v in row.items() if k != "acceptance_by_slot"}, row.get("acceptance_by_slot"))
    print(json.dumps(confidence))


if __name__ == "__main__":
    main()
