"""Conversations as the release encodes them. The strings are the release's format, written out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.core.errors import RequestError
from sparkwright.plugins.deepseek_v4.encoding import answer_text, encode_messages

SYSTEM = {"role": "system", "content": "Be brief."}
HI = {"role": "user", "content": "Hi"}
HELLO = {"role": "assistant", "content": "Hello!", "reasoning_content": "They greet."}
SUM = {"role": "user", "content": "1+1?"}


@pytest.mark.parametrize(
    ("messages", "thinking", "prompt"),
    [
        ([HI], False, "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>"),
        ([HI], True, "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>"),
        ([SYSTEM, HI], False, "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜></think>"),
        (
            [SYSTEM, HI, HELLO, SUM],
            False,
            "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜></think>Hello!<｜end▁of▁sentence｜>"
            "<｜User｜>1+1?<｜Assistant｜></think>",
        ),
        (
            [SYSTEM, HI, HELLO, SUM],
            True,
            "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜></think>Hello!<｜end▁of▁sentence｜>"
            "<｜User｜>1+1?<｜Assistant｜><think>",
        ),
        ([HI, SUM], False, "<｜begin▁of▁sentence｜><｜User｜>Hi\n\n1+1?<｜Assistant｜></think>"),
        (
            [HI, SYSTEM, SUM],
            True,
            "<｜begin▁of▁sentence｜><｜User｜>HiBe brief.<｜User｜>1+1?<｜Assistant｜><think>",
        ),
    ],
)
def test_conversations_are_written_as_the_release_writes_them(
    messages: list[dict[str, Any]], thinking: bool, prompt: str
) -> None:
    assert encode_messages(messages, thinking) == prompt


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "tool", "content": "4"}, "messages.1. has the role 'tool': tool results are not supported"),
        ({"role": "developer", "content": "x"}, "developer messages are not supported"),
        ({"role": "latest_reminder", "content": "x"}, "reminders are not supported"),
        ({"role": "robot", "content": "x"}, "has the role 'robot'; expected one of system, user, assistant"),
        ({"content": "x"}, "has the role None"),
        ({"role": "user", "content": [{"type": "image"}]}, r"in parts \(image\): images"),
        ({"role": "user", "content": None}, "content of type NoneType"),
        ({"role": "system", "content": "x", "tools": [{}]}, "has 'tools': tools are not supported"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "has 'tool_calls': tool calls are not supported"),
        ({"role": "system", "content": "x", "response_format": {"a": 1}}, "response formats are not supported"),
        ({"role": "user", "content": "x", "task": "title"}, "tasks are not supported"),
        ("hello", "is a str; expected an object"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(message: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        encode_messages([HI, message])


def test_a_conversation_that_ends_otherwise_than_with_the_user_is_refused() -> None:
    for messages in ([], [SYSTEM], [HI, HELLO]):
        with pytest.raises(RequestError, match=r"no messages were given|the last message has the role"):
            encode_messages(messages)


def test_thinking_is_told_from_the_answer() -> None:
    assert answer_text("<think>hm</think>4") == ("hm", "4")
    assert answer_text("hm</think>4") == ("hm", "4")
    assert answer_text("4") == ("", "4")
