"""Chains and streams with LangChain's ChatOpenAI. It reads OPENAI_BASE_URL and OPENAI_API_KEY itself."""

import asyncio
import json
import sys
from typing import Any

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MODEL, PROBLEM, FOLLOWING = sys.argv[1:]
chat = ChatOpenAI(model=MODEL, stream_usage=True)


def as_dict(message: AIMessage) -> dict[str, Any]:
    return {
        "content": message.text,
        "kwargs": message.additional_kwargs,
        "usage": message.usage_metadata,
        "finish_reason": message.response_metadata["finish_reason"],
    }


def stream() -> dict[str, Any]:
    chunks = list(chat.stream(PROBLEM))
    merged = chunks[0]
    for chunk in chunks[1:]:
        merged += chunk
    return {**as_dict(merged), "chunks": len(chunks)}


async def asynchronous_stream() -> dict[str, Any]:
    text = ""
    async for chunk in chat.astream([HumanMessage(PROBLEM)]):
        text += chunk.text
    return {"content": text}


def second_turn() -> dict[str, Any]:
    first = chat.invoke(PROBLEM)
    return as_dict(chat.invoke([HumanMessage(PROBLEM), first, HumanMessage(FOLLOWING)]))


def chained() -> dict[str, Any]:
    chain = ChatPromptTemplate.from_messages([("user", "{problem}")]) | chat | StrOutputParser()
    return {"contents": chain.batch([{"problem": PROBLEM}, {"problem": FOLLOWING}])}


def with_tools() -> dict[str, Any]:
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    message = chat.bind_tools([add]).invoke(PROBLEM)
    return {**as_dict(message), "calls": message.tool_calls}


def refused(asking: Any) -> dict[str, Any]:
    try:
        asking.invoke(PROBLEM)
    except openai.APIStatusError as exc:
        return {"error": type(exc).__name__, "status": exc.status_code, "message": exc.message}
    return {"error": None}


print(
    json.dumps(
        {
            "invoke": as_dict(chat.invoke(PROBLEM)),
            "stream": stream(),
            "async stream": asyncio.run(asynchronous_stream()),
            "system": as_dict(chat.invoke([SystemMessage("Think step by step."), HumanMessage(PROBLEM)])),
            "second turn": second_turn(),
            "chained": chained(),
            "folded": as_dict(
                ChatOpenAI(model=MODEL, extra_body={"stepspec": {"thinking": "content"}}).invoke(PROBLEM)
            ),
            "tools": with_tools(),
            "wrong key": refused(ChatOpenAI(model=MODEL, api_key="wrong")),
            "unknown model": refused(ChatOpenAI(model="nobody")),
        }
    )
)
