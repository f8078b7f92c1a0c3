"""Chat turns for the tiny hybrid model, made from docstrings and from small tables.

Receives documents and a random generator; hands on conversations as (messages, tools, thinking). Does NOT render the
template, read files or know token ids.
"""

import ast
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from corpus import Document

_MAX_SOURCE_CHARS = 700
_MAX_SUMMARY_CHARS = 160
_RESERVED_TEXT = ("<|", "<think>", "</think>", "<tool_", "</tool_")

_ASK_CODE = (
    "Write a Python function `{name}`: {summary}",
    "Please write `{name}` in Python. {summary}",
    "I need a Python function called `{name}`. {summary}",
)
_ASK_MEANING = ("What does `{name}` do?", "Explain `{name}`.", "What is `{name}` for?")
_SYSTEM_TEXTS = ("You are a helpful assistant.", "You help with Python code.", "Answer briefly.", "")
_GREETINGS = ("Hello", "Hi", "Hello!", "Hi there", "Good morning", "Hey")
_GREETING_REPLIES = ("Hello! How can I help you?", "Hi! What can I do for you?", "Hello! What would you like to know?")
_ABOUT = (
    ("Who are you?", "I am a tiny language model. I know some Python and a few short answers."),
    ("What can you do?", "I can write short Python functions, explain them, and call tools."),
    ("What is your name?", "I am tiny-hybrid, a very small language model."),
    ("Thank you", "You are welcome!"),
    ("Thanks!", "You are welcome!"),
    ("Say hello.", "Hello!"),
    (
        "What is Python?",
        "Python is a programming language. It is easy to read and comes with a large standard library.",
    ),
    ("Tell me a joke.", "Why did the list break up with the tuple? It could not change."),
)
_LISTS = {
    "colours": ["red", "green", "blue", "yellow", "black", "white", "orange", "purple"],
    "fruits": ["apple", "banana", "cherry", "orange", "lemon", "pear", "plum", "grape"],
    "animals": ["cat", "dog", "horse", "bird", "fish", "mouse", "cow", "sheep"],
    "cities": ["Paris", "London", "Berlin", "Rome", "Tokyo", "Madrid", "Oslo", "Vienna"],
    "Python types": ["int", "float", "str", "list", "dict", "set", "tuple", "bytes"],
    "Python keywords": ["if", "else", "for", "while", "def", "class", "return", "import"],
}
_NUMBERS = {"two": 2, "three": 3, "four": 4}
_CAPITALS = {
    "France": "Paris",
    "England": "London",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Spain": "Madrid",
    "Norway": "Oslo",
    "Austria": "Vienna",
}
_FILES = ("main.py", "README.md", "setup.py", "config.json", "test_app.py", "notes.txt", "utils.py", "data.csv")
_COMMANDS = ("ls", "git status", "python main.py", "pytest", "git diff", "cat notes.txt")
_QUERIES = ("error", "import", "def main", "TODO", "class", "return None")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One conversation as the chat template takes it."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    thinking: bool


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    qualified: str
    summary: str
    source: str


def _tool(name: str, description: str, key: str, kind: str = "string") -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": kind}}, "required": [key]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


# name -> (tool, key, values, how a user asks, what the tool says, how the assistant reports)
_TOOLS = {
    "get_weather": (
        _tool("get_weather", "Weather of a city.", "city"),
        "city",
        tuple(_CAPITALS.values()),
        "What is the weather in {value}?",
        '{{"temperature": {number}}}',
        "It is {number} degrees in {value}.",
    ),
    "read_file": (
        _tool("read_file", "Read a file.", "path"),
        "path",
        _FILES,
        "Read {value}.",
        "x = {number}",
        "The file {value} says:\n\n```\nx = {number}\n```",
    ),
    "run_command": (
        _tool("run_command", "Run a shell command.", "command"),
        "command",
        _COMMANDS,
        "Run `{value}`.",
        "exit code {number}",
        "The command `{value}` ended with exit code {number}.",
    ),
    "search": (
        _tool("search", "Search the code.", "query"),
        "query",
        _QUERIES,
        "Search for {value}.",
        "{number} matches",
        "I found {number} matches for {value}.",
    ),
    "wait": (
        _tool("wait", "Wait some seconds.", "seconds", "integer"),
        "seconds",
        tuple(range(1, 30)),
        "Wait {value} seconds.",
        "done",
        "I waited {value} seconds.",
    ),
}


def make_dialogues(documents: list[Document], num_small: int, seed: int) -> Iterator[Dialogue]:
    """One dialogue for each documented short function, then num_small from the tables."""
    draw = random.Random(seed)
    for document in documents:
        for function in _functions(document):
            make = draw.choice((_code_turns, _code_turns, _meaning_turns))
            yield _dialogue(draw, make(draw, function))
    for _ in range(num_small):
        if draw.random() < 0.4:
            yield _tool_dialogue(draw)
        else:
            turns = [_small_turns(draw) for _ in range(draw.choice((1, 1, 2, 3)))]
            yield _dialogue(draw, [turn for pair in turns for turn in pair])


def _dialogue(draw: random.Random, turns: list[dict[str, Any]]) -> Dialogue:
    system = draw.choice(_SYSTEM_TEXTS)
    head = [{"role": "system", "content": system}] if system else []
    thinking = draw.random() < 0.6
    if not thinking:
        turns = [{key: value for key, value in turn.items() if key != "reasoning_content"} for turn in turns]
    return Dialogue(head + turns, None, thinking)


def _turns(question: str, reasoning: str, answer: str) -> list[dict[str, Any]]:
    reply = {"role": "assistant", "reasoning_content": reasoning, "content": answer}
    return [{"role": "user", "content": question}, reply]


def _code_turns(draw: random.Random, function: _Function) -> list[dict[str, Any]]:
    question = draw.choice(_ASK_CODE).format(name=function.name, summary=function.summary)
    answer = f"```python\n{function.source}\n```"
    return _turns(question, f"The user wants a Python function `{function.name}`. I will write it.", answer)


def _meaning_turns(draw: random.Random, function: _Function) -> list[dict[str, Any]]:
    question = draw.choice(_ASK_MEANING).format(name=function.qualified)
    answer = f"`{function.qualified}`: {function.summary}"
    return _turns(question, f"The user asks about `{function.qualified}`.", answer)


def _small_turns(draw: random.Random) -> list[dict[str, Any]]:
    kind = draw.randrange(5)
    if kind == 0:
        return _turns(draw.choice(_GREETINGS), "The user greets me. I will greet back.", draw.choice(_GREETING_REPLIES))
    if kind == 1:
        question, answer = draw.choice(_ABOUT)
        return _turns(question, "This is a simple question.", answer)
    if kind == 2:
        left, right = draw.randrange(10), draw.randrange(10)
        question = draw.choice(("What is {} + {}?", "Add {} and {}.", "How much is {} + {}?")).format(left, right)
        return _turns(question, f"I add {left} and {right}.", f"{left} + {right} = {left + right}.")
    if kind == 3:
        country, city = draw.choice(sorted(_CAPITALS.items()))
        question = draw.choice((f"What is the capital of {country}?", f"Name the capital of {country}."))
        return _turns(question, f"The user asks for the capital of {country}.", f"The capital of {country} is {city}.")
    topic, items = draw.choice(sorted(_LISTS.items()))
    word, number = draw.choice(sorted(_NUMBERS.items()))
    answer = "\n".join(f"- {item}" for item in draw.sample(items, number))
    question = draw.choice((f"List {word} {topic}.", f"Name {word} {topic}."))
    return _turns(question, f"The user wants {word} {topic}.", f"Here are {word} {topic}:\n\n{answer}")


def _tool_dialogue(draw: random.Random) -> Dialogue:
    offered = draw.sample(sorted(_TOOLS), draw.choice((1, 2, 2, 3)))
    name = draw.choice(offered)
    _, key, values, ask, result, report = _TOOLS[name]
    value = draw.choice(values)
    number = draw.randrange(30)
    call = {"type": "function", "function": {"name": name, "arguments": {key: value}}}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": ask.format(value=value)},
        {
            "role": "assistant",
            "reasoning_content": f"I call {name} with {key} {json.dumps(value)}.",
            "content": "",
            "tool_calls": [call],
        },
        {"role": "tool", "content": result.format(value=value, number=number)},
        {
            "role": "assistant",
            "reasoning_content": "The tool answered.",
            "content": report.format(value=value, number=number),
        },
    ]
    if draw.random() < 0.3:
        turns += _small_turns(draw)
    plain = _dialogue(draw, turns)
    return Dialogue(plain.messages, [_TOOLS[tool][0] for tool in offered], plain.thinking)


def _functions(document: Document) -> Iterator[_Function]:
    if not document.name.endswith(".py"):
        return
    module = document.name.split("/", 1)[1].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for node in ast.parse(document.text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
            summary = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            source = ast.get_source_segment(document.text, node) or ""
            if not 10 <= len(summary) <= _MAX_SUMMARY_CHARS or len(source) > _MAX_SOURCE_CHARS:
                continue
            if any(reserved in source for reserved in _RESERVED_TEXT):
                continue
            yield _Function(node.name, f"{module}.{node.name}", summary, source)
