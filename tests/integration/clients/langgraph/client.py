"""An agent of LangGraph with two tools, as one call and as a stream. ChatOpenAI reads OPENAI_BASE_URL itself."""

import json
import sys
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

MODEL, PROBLEM, PRICES = sys.argv[1:]


@tool
def lookup(item: str) -> str:
    """Look up the price of an item."""
    return f"{item}: {json.loads(PRICES)[item]}"


@tool
def calculator(expression: str) -> str:
    """Calculate the value of an expression."""
    return f"result: {eval(expression, {'__builtins__': {}})}"


def agent() -> Any:
    chat = ChatOpenAI(model=MODEL, stream_usage=True).bind_tools([lookup, calculator])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [chat.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([lookup, calculator]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def report(messages: list[Any], pieces: int = 0) -> dict[str, Any]:
    calls = [call["name"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    return {"answer": messages[-1].text, "calls": calls, "pieces": pieces}


def streamed() -> dict[str, Any]:
    pieces, messages = 0, []
    for kind, part in agent().stream(asked, stream_mode=["messages", "values"]):
        pieces += kind == "messages"
        messages = part["messages"] if kind == "values" else messages
    return report(messages, pieces)


asked = {"messages": [("user", PROBLEM)]}
print(json.dumps({"invoke": report(agent().invoke(asked)["messages"]), "stream": streamed()}))
