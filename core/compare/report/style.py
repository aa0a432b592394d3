"""The style sheet of the report: light and dark by what the reader's system asks for; nothing is loaded."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--paper:#fbfbf8;--card:#fff;--ink:#1d1d1b;--soft:#56554f;--rule:#d9d8d0;--grid:#e7e6df;
--link:#1c57a5;--band:#1c57a51c;--a0:#2268c0;--a1:#b84d12;--a2:#1b7f55;--a3:#7d45b5;--a4:#8a6a00;--a5:#b02a5b;
--draft:#0f7f86;--verify:#5b55b5;--rest:#77766f;--inside:#fff;--good:#17693f;--bad:#a3281d;--open:#6b5a00}
@media (prefers-color-scheme:dark){:root{--paper:#161715;--card:#1f201e;--ink:#edece6;--soft:#b3b1a8;--rule:#43443f;
--grid:#31322e;--link:#8fbcf5;--band:#8fbcf526;--a0:#74aef5;--a1:#f19c62;--a2:#5cc998;--a3:#c39bee;--a4:#d9b84a;
--a5:#f088ad;--draft:#4fbfc4;--verify:#a29df2;--rest:#9b9a92;--inside:#161715;--good:#6fd39f;--bad:#f49086;
--open:#dcc25c}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main,header,footer{max-width:940px;margin:0 auto;padding:0 20px}
header{padding-top:36px}footer{padding-bottom:48px;color:var(--soft)}
h1{font-size:1.35rem;margin:0 0 12px;font-weight:600}h2{font-size:1.15rem;margin:40px 0 8px}
h3{font-size:1rem;margin:20px 0 6px}
p{margin:8px 0;max-width:72ch}a{color:var(--link)}
.skip{position:absolute;left:-9999px}.skip:focus{left:20px;top:8px;background:var(--card);padding:6px 12px}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.verdict{background:var(--card);border:1px solid var(--rule);border-left:6px solid var(--open);border-radius:6px;
padding:14px 18px;margin:12px 0}
.verdict.faster{border-left-color:var(--good)}.verdict.slower,.verdict.invalid{border-left-color:var(--bad)}
.verdict strong{font-size:1.2rem;display:block}.verdict .number{font-size:1.9rem;font-weight:650;line-height:1.25}
.verdict p{margin:4px 0;color:var(--soft)}
.notes{padding-left:20px}.warning{color:var(--bad);font-weight:600}
.scroll{overflow-x:auto;border-radius:4px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem;margin:8px 0}
caption{text-align:left;color:var(--soft);padding:4px 0}
th,td{text-align:left;padding:6px 12px 6px 0;border-bottom:1px solid var(--rule);vertical-align:top}
th{font-weight:600}td.n,th.n{text-align:right}
details{margin:8px 0 16px}summary{cursor:pointer;color:var(--link);padding:4px 0;display:inline-block}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.86rem;overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--rule);padding:12px;border-radius:6px;overflow-x:auto;
white-space:pre-wrap}
figure{margin:8px 0}figcaption{color:var(--soft);font-size:.92rem;max-width:72ch}
.plot{width:100%;min-width:640px;height:auto;display:block;font:12.5px system-ui,-apple-system,"Segoe UI",sans-serif}
.plot text{fill:var(--ink)}.plot .tick,.plot .axis{fill:var(--soft)}.plot .strong{font-weight:650}
.plot text.inside{fill:var(--inside);font-weight:600}
.grid{stroke:var(--grid)}.reference{stroke:var(--ink);stroke-width:1.2}.band{fill:var(--band)}
.whisker{stroke:var(--soft);stroke-width:1.6}.whisker.overall{stroke:var(--link);stroke-width:3}
.point{fill:var(--ink)}.overall{fill:var(--link)}
.arm0{fill:var(--a0);stroke:var(--a0)}.arm1{fill:var(--a1);stroke:var(--a1)}.arm2{fill:var(--a2);stroke:var(--a2)}
.arm3{fill:var(--a3);stroke:var(--a3)}.arm4{fill:var(--a4);stroke:var(--a4)}.arm5{fill:var(--a5);stroke:var(--a5)}
.curve{fill:none;stroke-width:2}.join{fill:none;stroke:var(--rule);stroke-width:1.4}
.hollow{fill:none;stroke:var(--soft);stroke-width:1.6}
.stage-draft{fill:var(--draft)}.stage-verify{fill:var(--verify)}.stage-rest{fill:var(--rest)}
@media print{details{display:block}}
"""
