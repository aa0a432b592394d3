"""Arms in processes of their own (`--isolate`): nothing is shared, not even weights. One JSON line asks, one answers.

The child keeps its standard output for the protocol alone; whatever a plugin prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

import attrs

from sparkwright.core.compare.records import Arm, ArmSpec, CompareError, Opener, Prompt, RunRecord
from sparkwright.core.errors import SparkwrightError


@attrs.frozen
class IsolatedOpener:
    """Opens each arm in a child process. opener: "module:name" of what makes the Opener there."""

    opener: str = "sparkwright.core.compare.engine_arm:EngineOpener"

    def __call__(self, spec: ArmSpec, *, stages: bool = False) -> Arm:
        return IsolatedArm(self.opener, spec, stages)


class IsolatedArm:
    """The parent's end. A child that dies is an error that says how, not a hang."""

    def __init__(self, opener: str, spec: ArmSpec, stages: bool) -> None:
        command = [sys.executable, "-m", "sparkwright.core.compare.isolated"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            opened = self._ask({"opener": opener, "spec": attrs.asdict(spec), "stages": stages})
            self.effective: Mapping[str, str] = opened["effective"]
        except BaseException:
            self.close()
            raise

    def complete(self, prompt: Prompt, *, max_tokens: int, seed: int, ignore_eos: bool) -> RunRecord:
        asked = {"prompt": attrs.asdict(prompt), "max_tokens": max_tokens, "seed": seed, "ignore_eos": ignore_eos}
        return RunRecord.from_dict(self._ask(asked)["record"])

    def close(self) -> None:
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # the child is gone already
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(question).encode() + b"\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            code = self._child.wait()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise CompareError(f"its process ended without an answer ({how}; out of memory is the usual reason for 9)")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CompareError(answer["error"])
        return answer


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """The child's end: assemble, then answer until the questions end."""
    arm: Arm | None = None
    for line in questions:
        question = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if arm is None:
                module, _, name = question["opener"].partition(":")
                opener: Opener = getattr(importlib.import_module(module), name)()
                arm = opener(ArmSpec(**question["spec"]), stages=question["stages"])
                answer["effective"] = dict(arm.effective)
            else:
                prompt = Prompt(**question.pop("prompt"))
                answer["record"] = arm.complete(prompt, **question).to_dict()
        except SparkwrightError as error:
            answer["error"] = str(error)
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
    if arm is not None:
        arm.close()


def main() -> None:
    protocol = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a print of a plugin must not become an answer
    try:
        serve(sys.stdin.buffer, protocol)
    except (KeyboardInterrupt, BrokenPipeError):
        return  # the parent reports its own interruption


if __name__ == "__main__":
    main()
