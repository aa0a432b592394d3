"""Evidence: everything this project would measure on a machine it does not have, in one file that can be sent.

`run` makes the steps one after another, each in a process of its own (`child`), keeps what is finished (`work`) and
packs it (`bundle`); `steps` says what is measured, `facts` what the machine and the checkpoint are, `scrub` takes out
whatever could name a person. `view`, `plots` and `page` show a bundle that somebody else made: they trust nothing in
it. Nothing here is needed to run an engine, and the engine never imports it.
"""

from __future__ import annotations
