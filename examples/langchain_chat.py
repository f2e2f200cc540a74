"""
LangChain against `stepspec serve`: an answer, a stream, the reasoning, and a chain that solves
several problems.

    pip install langchain-openai
    stepspec serve --small http://localhost:8001/v1 --large http://localhost:8002/v1
    export OPENAI_BASE_URL=http://localhost:8765/v1 OPENAI_API_KEY=none
    python examples/langchain_chat.py "What is 6 x 7?"
"""

import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

PROBLEM = (
    "Lily has 3 cards. On Monday she finds 9. On Tuesday she buys 9 more. "
    "On Wednesday she doubles them. How many cards does Lily have now?"
)
chat = ChatOpenAI(model="auto", stream_usage=True)  # reads OPENAI_BASE_URL and OPENAI_API_KEY


def invoked(problem: str) -> None:
    message = chat.invoke(problem)
    print("content:", message.text)
    print("usage:", message.usage_metadata)


def streamed(problem: str) -> None:
    usage = None
    for chunk in chat.stream(problem):
        print(chunk.text, end="", flush=True)
        usage = chunk.usage_metadata or usage  # `stream_usage` brings it with the last chunk
    print("\nusage:", usage)


def with_reasoning(problem: str) -> None:
    """
    `ChatOpenAI` drops reasoning, so the service writes it into the content, between <think> and
    </think>.
    """
    open_chat = ChatOpenAI(model="specreason", extra_body={"stepspec": {"thinking": "content"}})
    reasoning, _, answer = open_chat.invoke(problem).text.partition("</think>")
    print("reasoning:", reasoning.removeprefix("<think>").strip())
    print("answer:", answer.strip())


def chained(problem: str) -> None:
    chain = ChatPromptTemplate.from_messages([("user", "{problem}")]) | chat | StrOutputParser()
    for answer in chain.batch([{"problem": problem}, {"problem": "What is 6 x 7?"}]):
        print("answer:", answer.strip())


if __name__ == "__main__":
    for example in (invoked, streamed, with_reasoning, chained):
        print(f"--- {example.__name__}")
        example(" ".join(sys.argv[1:]) or PROBLEM)
