"""A step in a process of its own: the child's side (`main`) and the parent's (`in_a_process`).

The job goes in as one line of JSON on standard input, which then stays open: when it closes, whoever started this is
gone (even by kill -9), and the child goes, too. Out come lines of JSON: `{"progress": [what, done, total]}` and at the
end `{"outcome": ...}`. What libraries print goes to a log file beside.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from sparkwright.core.evidence.steps import Job, Tell, perform

OFTEN = 0.1
"""Seconds between two reports of progress."""
LONGEST_SENTENCE = 600


def main() -> None:
    """Runs in the child. Leaves without an interpreter's end, which an MLX at work does not survive."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = Job.from_dict(json.loads(sys.stdin.readline()))
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    last = [-OFTEN, ""]

    def say(message: dict[str, Any]) -> None:
        try:
            channel.write(json.dumps(message, allow_nan=False) + "\n")
            channel.flush()
        except BrokenPipeError:
            os._exit(1)

    def tell(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] >= OFTEN or what != last[1]:  # type: ignore[operator]
            last[:] = now, what
            say({"progress": [what, int(done), int(total)]})

    say({"outcome": perform(job, tell)})
    sys.stderr.flush()
    os._exit(0)


def _leave_with_parent() -> None:
    while os.read(0, 1 << 10):
        pass
    os._exit(1)


def in_a_process(job: Job, tell: Tell, *, log: Path, keep_open: tuple[int, ...] = ()) -> dict[str, Any]:
    """Runs a step and waits for it. A child that dies is a failed outcome that says how; Ctrl-C ends it first.

    log: what the child prints. keep_open: descriptors that it holds, too (the work folder's lock: while a child of a
    killed parent is still ending, the folder is in use).
    """
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-P", "-c", "from sparkwright.core.evidence.child import main; main()"]
    with open(log, "ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environ,
            start_new_session=True, pass_fds=keep_open,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        outcome: dict[str, Any] | None = None
        try:
            with contextlib.suppress(BrokenPipeError):  # it died at once: its log says why
                process.stdin.write(json.dumps(job.to_dict()).encode() + b"\n")
                process.stdin.flush()
            for line in process.stdout:
                message = json.loads(line)
                if "outcome" in message:
                    outcome = message["outcome"]
                    break
                tell(*message["progress"])
        finally:
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()  # tells the child to leave
            try:
                process.wait(timeout=10)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()  # deep in a computation of the device
                process.wait()
    return outcome if outcome is not None else _died(process.returncode, log)


def _died(code: int, log: Path) -> dict[str, Any]:
    how = f"with status {code}"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        hint = " (the system does that when memory runs out)" if name == "SIGKILL" else ""
        how = f"by {name}{hint}"
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        lines = [line.strip() for line in file.read().decode("utf-8", errors="replace").splitlines() if line.strip()]
    last = f"; its last words: {lines[-1]}" if lines else ""
    words = f"the step's process was ended {how} before it had a result{last}"[:LONGEST_SENTENCE]
    return {
        "status": "failed",
        "summary": words,
        "data": {"error": how},
        "config_sha256": "",
        "peak_memory_bytes": None,
    }
