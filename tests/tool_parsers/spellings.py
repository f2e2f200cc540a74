"""
How the models of vLLM's tool parsers spell calls: for each parser, a text that calls two tools, or
one where the parser reads no more.

Written for these tests from what the parsers accept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import orjson

Arguments: TypeAlias = Mapping[str, Any]
Spelling: TypeAlias = Callable[[str, Arguments], str]
Calls: TypeAlias = Sequence[tuple[str, Arguments]]
Speller: TypeAlias = Callable[[Calls], str]
"""Spells an answer that makes calls."""

CALLS: Calls = (
    ("lookup", {"item": "red cup", "count": 3}),
    ("note", {"text": 'Say "hi", twice\nto Zoë.'}),
)
"""The calls that every text makes: names, and arguments by their names."""

TOOLS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Find the price of an item.",
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}, "count": {"type": "integer"}},
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "note",
            "description": "Write something down.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    },
)
# DeepSeek's
BAR = "\uff5c"
UNDER = "\u2581"


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _spaced(name: str, arguments: Arguments, key: str = "arguments") -> str:
    """A call as most models write it: JSON with spaces."""
    members = ", ".join(f'"{name}": {_json(value)}' for name, value in arguments.items())
    return f'{{"name": "{name}", "{key}": {{{members}}}}}'


def _pythonic(name: str, arguments: Arguments) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _joined(spelling: Spelling, before: str = "", between: str = "", after: str = "") -> Speller:
    return lambda calls: before + between.join(spelling(*call) for call in calls) + after


def _wrapped(before: str, after: str, between: str = "\n") -> Speller:
    """Calls in JSON, each between two marks."""
    return _joined(
        lambda name, arguments: before + _spaced(name, arguments) + after, between=between
    )


def _dsml(mark: str, calls: str, gap: str = "") -> Speller:
    """DeepSeek's markup, whose names have the *mark* before them."""

    def one(name: str, arguments: Arguments) -> str:
        parameters = "".join(
            f'<{mark}{gap}parameter name="{key}" string="{_json(isinstance(value, str))}">'
            f"{_text(value)}</{mark}{gap}parameter>\n"
            for key, value in arguments.items()
        )
        return f'<{mark}{gap}invoke name="{name}">\n{parameters}</{mark}{gap}invoke>\n'

    return _joined(one, f"<{mark}{gap}{calls}>\n", "", f"</{mark}{gap}{calls}>")


def _deepseek(before: str, between: str, after: str) -> Speller:
    def one(name: str, arguments: Arguments) -> str:
        begin = f"<{BAR}tool{UNDER}call{UNDER}begin{BAR}>"
        end = f"<{BAR}tool{UNDER}call{UNDER}end{BAR}>"
        separator = f"<{BAR}tool{UNDER}sep{BAR}>"
        head = before.format(name=name, separator=separator)
        return f"{begin}{head}{between}{_json(arguments)}{after}{end}"

    begin = f"<{BAR}tool{UNDER}calls{UNDER}begin{BAR}>"
    end = f"<{BAR}tool{UNDER}calls{UNDER}end{BAR}>"
    return _joined(one, begin, "", end)


def _keyed(
    before: str, after: str, key: tuple[str, str], value: tuple[str, str], start: str = "\n"
) -> Speller:
    """Calls whose arguments are keys and values between marks, as GLM's."""

    def one(name: str, arguments: Arguments) -> str:
        parts = "\n".join(
            f"{key[0]}{each}{key[1]}\n{value[0]}{_text(content)}{value[1]}"
            for each, content in arguments.items()
        )
        return f"{before}{name}{start}{parts}\n{after}"

    return _joined(one, between="\n")


def _functions(before: str, after: str) -> Speller:
    """Calls as Qwen3-Coder's."""

    def one(name: str, arguments: Arguments) -> str:
        parts = "".join(
            f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in arguments.items()
        )
        return f"{before}\n<function={name}>\n{parts}</function>\n{after}"

    return _joined(one, between="\n")


def _compact(name: str, arguments: Arguments) -> str:
    parts = "".join(
        f"<parameter={key}>{_text(value)}</parameter>" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>{parts}</function>\n</tool_call>"


def _invoke(name: str, arguments: Arguments) -> str:
    parts = "\n".join(
        f'<parameter name="{key}">{_text(value)}</parameter>' for key, value in arguments.items()
    )
    return f'<invoke name="{name}">\n{parts}\n</invoke>\n'


def _atem(name: str, arguments: Arguments) -> str:
    parts = "\n".join(
        f'<atem:parameter name="{key}">{_text(value)}</atem:parameter>'
        for key, value in arguments.items()
    )
    body = f'<atem:function_calls>\n<atem:invoke name="{name}">\n{parts}\n</atem:invoke>\n'
    return f"<|start|>assistant to={name}<|message|>{body}</atem:function_calls><|eom|>"


def _kind(value: Any) -> str:
    """The JSON schema's name of the type of *value*."""
    for kind, name in ((str, "string"), (bool, "boolean"), (dict, "object"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "number"


def _kimi3(name: str, arguments: Arguments) -> str:
    parts = ""
    for key, value in arguments.items():
        kind = _kind(value)
        parts += f'<|open|>argument key="{key}" type="{kind}"<|sep|>'
        parts += f"{_text(value)}<|close|>argument<|sep|>"
    return f'<|open|>call tool="{name}" index="1"<|sep|>{parts}<|close|>call<|sep|>'


def _gemma_value(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        members = cast("Mapping[str, Any]", value)
        return "{" + ",".join(f"{key}:{_gemma_value(each)}" for key, each in members.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma_value, cast("Sequence[Any]", value))) + "]"
    return _json(value)


def _gemma(name: str, arguments: Arguments) -> str:
    parts = ",".join(f"{key}:{_gemma_value(value)}" for key, value in arguments.items())
    return f"<|tool_call>call:{name}{{{parts}}}<tool_call|>"


def _function_gemma(name: str, arguments: Arguments) -> str:
    parts = ",".join(f"{key}:<escape>{_text(value)}<escape>" for key, value in arguments.items())
    return f"<start_function_call>call:{name}{{{parts}}}<end_function_call>"


def _mini_cpm(name: str, arguments: Arguments) -> str:
    parts = "".join(
        f'<param name="{key}"><![CDATA[{_text(value)}]]></param>'
        for key, value in arguments.items()
    )
    return f'<function name="{name}">{parts}</function>'


def _minimax3(name: str, arguments: Arguments) -> str:
    space = "]<]minimax[>["
    parts = "\n".join(
        f"{space}<{key}>{_text(value)}{space}</{key}>" for key, value in arguments.items()
    )
    return f'{space}<invoke name="{name}">\n{parts}\n{space}</invoke>\n'


def _plamo(name: str, arguments: Arguments) -> str:
    def mark(word: str) -> str:
        return f"<|plamo:{word}:plamo|>"

    return (
        f"{mark('begin_tool_request')}{mark('begin_tool_name')}{name}{mark('end_tool_name')}"
        f"{mark('begin_tool_arguments')}<|plamo:constrain|>json<|plamo:msg|>{_json(arguments)}"
        f"{mark('end_tool_arguments')}{mark('end_tool_request')}"
    )


def _step3(name: str, arguments: Arguments) -> str:
    parts = "".join(
        f'<steptml:parameter name="{key}">{_text(value)}</steptml:parameter>'
        for key, value in arguments.items()
    )
    begin = f"<{BAR}tool_call_begin{BAR}>"
    end = f"<{BAR}tool_call_end{BAR}>"
    call = f'<steptml:invoke name="{name}">{parts}</steptml:invoke>'
    return f"{begin}function<{BAR}tool_sep{BAR}>{call}{end}"


def _ifm(name: str, arguments: Arguments) -> str:
    parts = "".join(
        f"<ifm|arg_key>{key}</ifm|arg_key><ifm|arg_value>{_text(value)}</ifm|arg_value>"
        for key, value in arguments.items()
    )
    return f"<ifm|tool_call>{name}{parts}</ifm|tool_call>"


def _hunyuan(separator: str, name: str, arguments: Arguments) -> str:
    parts = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{_text(value)}</arg_value>"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}{separator}{parts}</tool_call>"


def _list(before: str, after: str) -> Speller:
    return _joined(_spaced, before, ", ", after)


def _python_list(before: str, after: str) -> Speller:
    return _joined(_pythonic, before, ", ", after)


_QWEN = _functions("<tool_call>", "</tool_call>")
_GLM = _keyed(
    "<tool_call>", "</tool_call>", ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>")
)
_HERMES = _wrapped("<tool_call>\n", "\n</tool_call>")
_COMMAND = _joined(
    lambda name, arguments: (
        f'{{"tool_call_id": "0", "tool_name": "{name}", "parameters": {_json(arguments)}}}'
    ),
    "<|START_ACTION|>[",
    ", ",
    "]<|END_ACTION|>",
)

SPELLERS: Mapping[str, Speller] = {
    "apertus": _joined(
        lambda name, arguments: f'{{"{name}": {_json(arguments)}}}',
        "<|tools_prefix|>[",
        ", ",
        "]<|tools_suffix|>",
    ),
    "cohere_command3": _COMMAND,
    "cohere_command4": _COMMAND,
    "deepseek_v3": _deepseek("function{separator}{name}\n", "```json\n", "\n```"),
    "deepseek_v31": _deepseek("{name}{separator}", "", ""),
    "deepseek_v32": _dsml(f"{BAR}DSML{BAR}", "function_calls"),
    "deepseek_v4": _dsml(f"{BAR}DSML{BAR}", "tool_calls"),
    "deepseek_v41": _dsml(f"{BAR}DSML{BAR}", "calls", " "),
    "dots": _joined(_invoke, "<dots_function_call>\n", "", "</dots_function_call>"),
    "ernie45": _HERMES,
    "functiongemma": _joined(_function_gemma),
    "gemma4": _joined(_gemma),
    "gigachat3": _joined(_spaced, "<|function_call|>"),
    "glm45": _GLM,
    "glm47": _GLM,
    "granite": _list("<|tool_call|>[", "]"),
    "granite-20b-fc": _joined(
        lambda name, arguments: "<function_call> " + _spaced(name, arguments)
    ),
    "granite4": _HERMES,
    "hermes": _HERMES,
    "hunyuan_a13b": _list("<tool_calls>[", "]</tool_calls>"),
    "hy_v3": _joined(partial(_hunyuan, "<tool_sep>"), "<tool_calls>", "", "</tool_calls>"),
    "hy_v4": _joined(partial(_hunyuan, ""), "<tool_calls>", "", "</tool_calls>"),
    "inkling": _joined(
        lambda name, arguments: (
            "<|message_model|><|content_invoke_tool_json|>"
            + _spaced(name, arguments, "args")
            + "<|end_message|>"
        )
    ),
    "internlm": _joined(
        lambda name, arguments: _spaced(name, arguments, "parameters"),
        "<|action_start|><|plugin|>",
        after="<|action_end|>",
    ),
    "jamba": _list("<tool_calls>[", "]</tool_calls>"),
    "k2_horizon": _joined(_ifm, "<ifm|tool_calls>", "", "</ifm|tool_calls>"),
    "kimi_k2": _joined(
        lambda name, arguments: (
            f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
            f"{_json(arguments)}<|tool_call_end|>"
        ),
        "<|tool_calls_section_begin|>",
        "",
        "<|tool_calls_section_end|>",
    ),
    "kimi_k3": _joined(_kimi3, "<|open|>tools<|sep|>", "", "<|close|>tools<|sep|>"),
    "lfm2": _python_list("<|tool_call_start|>[", "]<|tool_call_end|>"),
    "ling3": _GLM,
    "llama3_json": _joined(
        lambda name, arguments: _spaced(name, arguments, "parameters"), between="; "
    ),
    "llama4_json": _joined(
        lambda name, arguments: _spaced(name, arguments, "parameters"), between="; "
    ),
    "llama4_pythonic": _python_list("<|python_start|>[", "]<|python_end|>"),
    "longcat": _wrapped("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
    "mimo": _joined(_compact, between="\n"),
    "minicpm5": _joined(_mini_cpm, between="\n"),
    "minimax_m2": _joined(_invoke, "<minimax:tool_call>\n", "", "</minimax:tool_call>"),
    "minimax_m3": _joined(_minimax3, "]<]minimax[>[<tool_call>\n", "", "]<]minimax[>[</tool_call>"),
    "mistral": _joined(lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}"),
    "muse_glimmer": _joined(_atem),
    "olmo3": _joined(_pythonic, "<function_calls>\n", "\n", "\n</function_calls>"),
    "phi4_mini_json": _list("functools[", "]"),
    "plamo3": _joined(
        _plamo, "<|plamo:begin_tool_requests:plamo|>", "", "<|plamo:end_tool_requests:plamo|>"
    ),
    "poolside_v1": _GLM,
    "pythonic": _python_list("[", "]"),
    "qwen3_coder": _QWEN,
    "qwen3_json": _HERMES,
    "qwen3_xml": _QWEN,
    "seed_oss": _functions("<seed:tool_call>", "</seed:tool_call>"),
    "step3": _joined(_step3, f"<{BAR}tool_calls_begin{BAR}>", "", f"<{BAR}tool_calls_end{BAR}>"),
    "step3p5": _QWEN,
    "xlam": _list("[", "]"),
}
