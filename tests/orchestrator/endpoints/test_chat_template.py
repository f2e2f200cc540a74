"""Learning a chat template from its output: four kinds of templates, written for the test."""

from __future__ import annotations

import pytest
from jinja2 import Environment

from stepspec.orchestrator.endpoints import Template, learn
from stepspec.orchestrator.endpoints.chat_template import Messages, Render
from stepspec.orchestrator.errors import MissingCapability

# The model opens the thinking block itself; finished answers carry an empty one; earlier thinking is stripped.
HYBRID = """
{%- for m in messages -%}
{%- if m.role == "assistant" -%}
{{ "<|im_start|>assistant\\n" }}{% if loop.last %}{{ "<think>\\n\\n</think>\\n\\n" }}{% endif -%}
{{ m.content.split("</think>")[-1].lstrip("\\n") }}{{ "<|im_end|>\\n" }}
{%- else -%}
{{ "<|im_start|>" + m.role + "\\n" + m.content + "<|im_end|>\\n" }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\\n" }}
{%- if enable_thinking is false %}{{ "<think>\\n\\n</think>\\n\\n" }}{% endif -%}
{%- endif -%}
"""
# The prompt opens the thinking block; turns have no newlines between them; contents are trimmed.
DISTILLED = """
{{- "<begin>" -}}
{%- for m in messages -%}
{%- if m.role == "assistant" -%}{{ "<Assistant>" + m.content.split("</think>")[-1].strip() + "<end>" }}
{%- else -%}{{ "<User>" + m.content.strip() }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<Assistant><think>\\n" }}{%- endif -%}
"""
# As the first, but the prompt opens the block, and a system turn is put before everything.
ALWAYS = """
{{- "<|im_start|>system\\nThink.<|im_end|>\\n" -}}
{%- for m in messages -%}
{{ "<|im_start|>" + m.role + "\\n" + m.content.split("</think>")[-1].lstrip("\\n") + "<|im_end|>\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\\n<think>" }}{%- endif -%}
"""
# No thinking at all.
PLAIN = """
{{- "<|begin|>" -}}
{%- for m in messages -%}
{{ "<|header|>" + m.role + "<|end_header|>\\n\\n" + m.content.strip() + "<|eot|>" }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|header|>assistant<|end_header|>\\n\\n" }}{%- endif -%}
"""

SKIPPED = "<think>\n\n</think>\n\n"


def render(source: str, **options: bool) -> Render:
    template = Environment().from_string(source)

    def rendered(messages: Messages, generate: bool) -> str:
        return template.render(messages=messages, add_generation_prompt=generate, **options)

    return rendered


def test_a_model_that_opens_its_own_thinking_has_it_opened() -> None:
    template = learn(render(HYBRID))
    assert template == Template(
        turn="<|im_end|>\n<|im_start|>user\n",
        answer=f"<|im_end|>\n<|im_start|>assistant\n{SKIPPED}",
        opened="<think>\n",
        thinks=True,
    )


def test_the_same_model_with_thinking_disabled() -> None:
    template = learn(render(HYBRID, enable_thinking=False))
    assert (template.opened, template.thinks) == ("", False)
    assert template.answer == f"<|im_end|>\n<|im_start|>assistant\n{SKIPPED}"


def test_a_prompt_that_opens_the_thinking_has_it_closed_for_a_judge() -> None:
    assert learn(render(DISTILLED)) == Template("<end><User>", f"<Assistant>{SKIPPED}", thinks=True)


def test_a_prompt_that_opens_the_thinking_without_a_newline() -> None:
    template = learn(render(ALWAYS))
    assert template.answer == f"<|im_end|>\n<|im_start|>assistant\n{SKIPPED}"
    assert (template.opened, template.thinks) == ("", True)


def test_a_model_that_does_not_think() -> None:
    template = learn(render(PLAIN))
    assert template == Template(
        turn="<|eot|><|header|>user<|end_header|>\n\n",
        answer="<|eot|><|header|>assistant<|end_header|>\n\n",
    )


@pytest.mark.parametrize("source", [HYBRID, DISTILLED, ALWAYS, PLAIN])
def test_a_question_follows_the_steps_as_in_a_conversation(source: str) -> None:
    """Where a template strips no thinking, the layout is what it would have rendered itself."""
    rendered = render(source)
    template = learn(rendered)
    problem = {"role": "user", "content": "PROBLEM"}
    begun = template.begin(rendered([problem], True))
    layout = begun + "STEPS" + template.ask("QUESTION", opening="The grade is ")
    turns = [problem, {"role": "assistant", "content": "STEPS"}, {"role": "user", "content": "QUESTION"}]
    full = rendered(turns, True)
    for tag in ("<think>\n\n</think>\n\n", "<think>\n", "<think>"):
        layout, full = layout.replace(tag, ""), full.replace(tag, "")
    assert layout == f"{full}The grade is "


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ messages[-1].content }}", "leaves out a turn"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "nothing between two turns"),
        ("{% for m in messages %}{{ m.content[::-1] }}|{% endfor %}", "leaves out a turn"),
    ],
)
def test_a_template_that_hides_its_turns_cannot_be_learnt(source: str, complaint: str) -> None:
    with pytest.raises(MissingCapability, match=complaint):
        learn(render(source))
