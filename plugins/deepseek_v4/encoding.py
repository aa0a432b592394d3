"""Conversations as a DeepSeek-V4 model reads them: messages -> the prompt, as the release's own encoder writes it.

The release ships no chat template but a program (`encoding/encoding_dsv4.py`); this is our statement of the part of its
format that speculative decoding needs: system, user and assistant, thinking off and on. Tools, tasks, reminders,
developer messages, response formats and images are refused by name. Knows strings only; tokenizing is `core.text`'s.

The format: BOS, then each system message as it is, `<｜User｜>` and text for what the user says, `<｜Assistant｜>`
and the answer with EOS. Between `<｜Assistant｜>` and an answer stands `</think>` (the answer without its thinking)
or, in thinking mode and after the last user message only, `<think>`, which the model goes on from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sparkwright.core.errors import RequestError

BOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"
USER: Final = "<｜User｜>"
ASSISTANT: Final = "<｜Assistant｜>"
THINK: Final = "<think>"
END_THINK: Final = "</think>"

ROLES: Final = ("system", "user", "assistant")
_UNSUPPORTED_ROLES: Final = {
    "tool": "tool results",
    "function": "function results",
    "developer": "developer messages",
    "latest_reminder": "reminders",
    "direct_search_results": "search results",
}
_UNSUPPORTED_KEYS: Final = {
    "tools": "tools",
    "tool_calls": "tool calls",
    "tool_call_id": "tool calls",
    "function_call": "function calls",
    "response_format": "response formats",
    "task": "tasks",
    "content_blocks": "content blocks",
    "images": "images",
    "wo_eos": "unfinished answers",
}
_USER_GAP: Final = "\n\n"
"""Consecutive user messages are one message, joined by this."""


def encode_messages(messages: Sequence[Mapping[str, Any]], thinking: bool = False) -> str:
    """The prompt for the assistant's next answer; it begins with BOS and ends with `</think>` or `<think>`.

    thinking: let the model think first. Thinking of earlier answers (`reasoning_content`) is left out, as in training.
    RequestError names the message and what is wrong or not supported.
    """
    if not messages:
        raise RequestError("chat: no messages were given; give at least one of role 'user'")
    turns: list[tuple[str, str]] = []
    for i, message in enumerate(messages):
        role, text = _checked(i, message)
        if role == "user" and turns and turns[-1][0] == "user":
            turns[-1] = (role, turns[-1][1] + _USER_GAP + text)
        else:
            turns.append((role, text))
    if turns[-1][0] != "user":
        raise RequestError(
            f"chat: the last message has the role '{turns[-1][0]}'; expected 'user', whom the assistant answers"
        )

    prompt = [BOS]
    for i, (role, text) in enumerate(turns):
        if role == "system":
            prompt.append(text)
        elif role == "user":
            prompt += [USER, text]
            last = i == len(turns) - 1
            # The release opens an assistant turn only where an answer follows; a system message in between has none.
            if last or turns[i + 1][0] == "assistant":
                prompt += [ASSISTANT, THINK if last and thinking else END_THINK]
        else:
            prompt += [text, EOS]
    return "".join(prompt)


def _checked(i: int, message: Mapping[str, Any]) -> tuple[str, str]:
    """Role and text of a message."""
    where = f"chat: messages[{i}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is a {type(message).__name__}; expected an object with 'role' and 'content'")
    role = message.get("role")
    if role in _UNSUPPORTED_ROLES:
        raise RequestError(
            f"{where} has the role '{role}': {_UNSUPPORTED_ROLES[role]} are not supported for DeepSeek-V4; "
            f"use {', '.join(ROLES)}"
        )
    if role not in ROLES:
        raise RequestError(f"{where} has the role {role!r}; expected one of {', '.join(ROLES)}")
    for key, what in _UNSUPPORTED_KEYS.items():
        if message.get(key):
            raise RequestError(f"{where} has '{key}': {what} are not supported for DeepSeek-V4")
    content = message.get("content")
    if isinstance(content, list):
        kinds = sorted(
            {str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__ for part in content}
        )
        raise RequestError(
            f"{where} has its content in parts ({', '.join(kinds)}): images and other parts are not supported for "
            "DeepSeek-V4; give the text as one string"
        )
    if not isinstance(content, str):
        raise RequestError(f"{where} has content of type {type(content).__name__}; expected a string")
    return role, content


def answer_text(text: str) -> tuple[str, str]:
    """(thinking, answer) of what the model wrote after the prompt; without `</think>` it is all answer."""
    thought, mark, answer = text.partition(END_THINK)
    return (thought.removeprefix(THINK), answer) if mark else ("", text)
