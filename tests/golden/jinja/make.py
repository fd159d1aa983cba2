"""Writes the goldens of tests/text/jinja.c with jinja2, set up as transformers sets it up:

    pip install transformers jinja2
    python3 tests/golden/jinja/make.py

    expressions.json   "variables", and pairs of a template and its text; null: an error
    templates.json     for each NAME.jinja, conversations and the texts of them, without and with the
                       beginning of an answer; null: an error. marks: the places of generation
                       blocks, in characters of UTF-8's bytes
"""
import datetime
import json
import pathlib

from transformers.utils import chat_template_utils as utils

HERE = pathlib.Path(__file__).parent
NOW = 1721995200  # 26 Jul 2024


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW)


utils.datetime = Clock

VARIABLES = {
    "s": "  Hello World \n", "e": "", "n": 5, "f": 2.5, "z": 0, "neg": -7, "t": True, "no": None,
    "l": [1, 2, 3], "ls": ["b", "A", "c"], "d": {"a": 1, "b": {"c": "x"}, "items": 3, "é": "ü"},
    "u": "naïve café 日本語 🐦", "ml": "a\nb\n\nc",
    "big": [{"role": "user", "content": "hi", "n": 2}, {"role": "assistant", "content": "yo", "n": 1},
            {"role": "tool", "content": None}],
    "q": "it's \"x\"<&>",
    "fl": [1.0, 0.1, 1e16, 1e-5, 123456789.125, 1e22, 5e-324, -0.0, 100.0, 1.5e300, 0.001234],
}


def tool(name, description, **properties):
    return {"type": "function", "function": {
        "name": name, "description": description,
        "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]}}}


def call(name, arguments, number):
    return {"id": f"call{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def u(text): return {"role": "user", "content": text}
def a(text, **more): return {"role": "assistant", "content": text, **more}
def s(text): return {"role": "system", "content": text}
def r(text, number): return {"role": "tool", "content": text, "tool_call_id": f"call{number}"}


TOOLS = [tool("weather", "The weather of a <city> & \"more\".\nSecond line. ",
              city={"type": "string", "description": "é"}, days={"enum": [1, 2]},
              options={"type": "object", "properties": {"unit": {"type": ["string", "null"], "default": None}}},
              tags={"type": "array", "items": {"type": "string"}}),
         tool("nothing", "Does nothing.")]
CONVERSATIONS = [
    {"messages": [u("a small bird?")]},
    {"messages": [s("Be brief. "), u(" two words \n"), a(" A wren. "), u("and\nthen?")]},
    {"messages": [s(""), u("é🐦 日本 <b>&</b>"), a("ok"), u("x"), a("y\n\nz ")]},
    {"messages": [u("a"), a("<think>\nhm\n</think>\n\nb"), u("c"), a("<think>why</think>d")]},
    {"messages": [u("a"), a("b", reasoning_content="because\n"), u("<result>1</result>"),
                  a("c", reasoning_content=" so ")], "enable_thinking": True},
    {"messages": [s("sys"), u("a")], "enable_thinking": False, "reasoning_effort": "high"},
    {"messages": [s("sys"), u("weather in Oslo?")], "tools": TOOLS},
    {"messages": [u("weather?"), a("", tool_calls=[
        call("weather", {"city": "Oslo é", "days": 2, "options": {"unit": None}, "tags": ["a", 1.0, 1e20]}, 1),
        call("nothing", {}, 2)]), r("{\"t\": 1.0}", 1), r([{"type": "text", "text": "none"}], 2), a("cold"),
        u("thanks")], "tools": TOOLS},
    {"messages": [u("w"), a(None, tool_calls=[call("weather", "{\"city\": \"Oslo\"}", 3)]), r("x", 3), a("fin")],
     "tools": TOOLS, "enable_thinking": True},
    {"messages": [u([{"type": "text", "text": "what is "}, {"type": "image"}, {"type": "text", "text": "this?"}]),
                  a([{"type": "text", "text": "a bird"}]), u([{"type": "sound"}])]},
    {"messages": [a("first"), u("b"), u("c")], "documents": [{"title": "old tales", "text": "D"}]},
    {"messages": []},
]


def render(template, variables, marks=None):
    """The text, or None for an error."""
    try:
        compiled = utils._compile_jinja_template(template)
        if marks is None:
            return compiled.render(**variables)
        parts = []
        with compiled.environment.activate_tracker(parts, marks):
            for part in compiled.generate(**variables):
                parts.append(part)
        return "".join(parts)
    except Exception:
        return None


def variables_of(conversation, answer):
    messages = [{k: v for k, v in m.items() if v is not None} for m in conversation["messages"]]
    return {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **conversation,
            "messages": messages, "add_generation_prompt": answer}


def bytes_of(text, marks):
    return [[len(text[:at].encode()) for at in mark] for mark in marks]


def main():
    texts = (HERE / "expressions.txt").read_text().split("\n====\n")
    pairs = [[text, render(text, VARIABLES)] for text in texts]
    with open(HERE / "expressions.json", "w") as f:
        json.dump({"variables": VARIABLES, "pairs": pairs}, f, indent=0, ensure_ascii=False)
        f.write("\n")
    out = {}
    for path in sorted(HERE.glob("*.jinja")):
        template = path.read_text()
        out[path.name] = []
        for conversation in CONVERSATIONS:
            for answer in False, True:
                variables = variables_of(conversation, answer)
                marks = []
                text = render(template, variables, marks if "{%- generation" in template else None)
                out[path.name].append({"variables": variables, "text": text,
                                       "marks": bytes_of(text, marks) if text is not None else []})
    with open(HERE / "templates.json", "w") as f:
        json.dump(out, f, indent=0, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
