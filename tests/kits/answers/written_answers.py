"""Answers as models write them, one table: the form, the text, and the parts that it has."""

import json
from dataclasses import dataclass
from typing import Any

SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    },
    "now": {"type": "object", "properties": {}},
}
HARD = "Zürich \"ß\" {[<\\ \n'x' 日本 🌦 </tool_cal"  # quotes, brackets, line breaks, half a marker
ARGUMENTS = {"city": HARD, "days": 3, "tags": ["a}", "]b", 'c"']}


@dataclass(frozen=True)
class Written:
    """An answer: `calls` are pairs of name and arguments; `text` and `reasoning` are joined."""

    form: str
    answer: str
    calls: tuple[tuple[str, Any], ...] = ()
    text: str = ""
    reasoning: str = ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return f"<escape>{value}<escape>"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return json.dumps(value)


W: tuple[str, Any] = ("get_weather", ARGUMENTS)
N: tuple[str, Any] = ("now", {})
_A, _NAMED = _json(ARGUMENTS), _json({"name": "get_weather", "arguments": ARGUMENTS})
_PARAMETERS = _json({"name": "get_weather", "parameters": ARGUMENTS})
_NOW = _json({"name": "now", "arguments": {}})
_PYTHON = f"get_weather(city={HARD!r}, days=3, tags={ARGUMENTS['tags']!r})"
_TAGS = "".join(
    f"<parameter={key}>\n{value if key == 'city' else _json(value)}\n</parameter>\n"
    for key, value in ARGUMENTS.items()
)
_INVOKE = "".join(
    f'<parameter name="{key}">{value if key == "city" else _json(value)}</parameter>\n'
    for key, value in ARGUMENTS.items()
)
_PAIRS = "".join(
    f"<arg_key>{key}</arg_key>\n<arg_value>{value if key == 'city' else _json(value)}</arg_value>\n"
    for key, value in ARGUMENTS.items()
)
_PLAIN = ",".join(f"{key}:{_gemma(value)}" for key, value in ARGUMENTS.items())

ANSWERS = (
    Written("hermes", f"<tool_call>\n{_NAMED}\n</tool_call>\n<tool_call>\n{_NOW}\n</tool_call>", (W, N)),
    Written("hermes", f"I look.\n\n<tool_call>{_NAMED}</tool_call>\nDone.", (W,), "I look.Done."),
    Written("hermes", f'<tool_call>{{"arguments": {_A}, "name": "get_weather"}}</tool_call>', (W,)),
    Written("hermes", f'<tool_call>{{"name": "get_weather", "arguments": {_json(_A)}}}</tool_call>', (W,)),
    Written("hermes", f"<think>\nHm, <tool_call>.\n</think>\n\n<tool_call>{_NOW}</tool_call>", (N,), "", "Hm, <tool_call>."),
    Written("hermes", "<tool_call>{'no': 1}</tool_call> so", (), "<tool_call>{'no': 1}</tool_call> so"),
    Written("hermes", "a <tool_call> b < tool <tool_", (), "a <tool_call> b < tool <tool_"),
    Written("hermes", "Yes: <think> is a mark.\n", (), "Yes: <think> is a mark.\n"),
    Written("llama3_json", _PARAMETERS, (W,)),
    Written("llama3_json", f"{_PARAMETERS}; {_NOW}", (W, N)),
    Written("llama3_json", f"<|python_tag|>{_PARAMETERS}", (W,)),
    Written("llama3_json", f"<function=get_weather>{_A}</function>", (W,)),
    Written("llama3_json", '{"name": "nobody", "parameters": {}}', (), '{"name": "nobody", "parameters": {}}'),
    Written("llama3_json", ' {"answer": 42}', (), ' {"answer": 42}'),
    Written("pythonic", f"[{_PYTHON}, now()]", (W, N)),
    Written("pythonic", f"<|python_start|>[{_PYTHON}]<|python_end|>", (W,)),
    Written("pythonic", "[Note: get_weather(1)]", (), "[Note: get_weather(1)]"),
    Written("pythonic", "[get_weather(1)] x", (), "[get_weather(1)] x"),
    Written("gemma", f"```tool_code\n[{_PYTHON}]\n```", (W,)),
    Written("gemma", f"Sure.\n```tool_code\n{_PYTHON}\nnow()\n```", (W, N), "Sure."),
    Written("mistral", f"[TOOL_CALLS][{_NAMED}, {_NOW}]", (W, N)),
    Written("mistral", f"[TOOL_CALLS]get_weather[ARGS]{_A}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{{}}", (W, N)),
    Written("mistral", f"Text[TOOL_CALLS]get_weather{_A}", (W,), "Text"),
    Written("mistral", "[THINK]Well[/THINK][TOOL_CALLS]now[ARGS]{}", (N,), "", "Well"),
    Written("mistral_v11", f"[TOOL_CALLS]get_weather[ARGS]{_A}[TOOL_CALLS]now[ARGS]{{}}", (W, N)),
    Written("deepseek_v3", f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{_A}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", (W, N)),
    Written("deepseek_v31", f"<think>R</think>T<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{_A}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", (W, N), "T", "R"),
    Written("kimi_k2", f"<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{_A}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|>", (W, N)),
    Written("granite", f"<|tool_call|>[{_NAMED}, {_NOW}]", (W, N)),
    Written("granite", f"<tool_call>{_NAMED}", (W,)),
    Written("phi4_mini", f"<|tool_call|>[{_NAMED}]<|/tool_call|>", (W,)),
    Written("phi4_mini", f"functools[{_NAMED},{_NOW}]", (W, N)),
    Written("command_r", f'<|START_THINKING|>Plan.<|END_THINKING|><|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {_A}}}\n]<|END_ACTION|>', (W,), "", "Plan."),
    Written("internlm", f"Ok<|action_start|><|plugin|>\n{_PARAMETERS}<|action_end|>", (W,), "Ok"),
    Written("nemotron", f"<TOOLCALL>[{_NAMED}, {_NOW}]</TOOLCALL>", (W, N)),
    Written("jamba", f"<tool_calls>\n{_NAMED}\n{_NOW}\n</tool_calls>", (W, N)),
    Written("xlam", f"[{_NAMED}, {_NOW}]", (W, N)),
    Written("glm45", f"<tool_call>get_weather\n{_PAIRS}</tool_call>\n<tool_call>now\n</tool_call>", (W, N)),
    Written("glm45", f"<think>R</think><tool_call>get_weather{_PAIRS}</tool_call><tool_call>now</tool_call>", (W, N), "", "R"),
    Written("qwen3_coder", f"So:\n<tool_call>\n<function=get_weather>\n{_TAGS}</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>", (W, N), "So:"),
    Written("seed_oss", f"<seed:think>R</seed:think><seed:tool_call>\n<function=get_weather>\n{_TAGS}</function>\n</seed:tool_call>", (W,), "", "R"),
    Written("minimax_m2", f'<minimax:tool_call>\n<invoke name="get_weather">\n{_INVOKE}</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>', (W, N)),
    Written("functiongemma", f"<start_function_call>call:get_weather{{{_PLAIN}}}<end_function_call><start_function_call>call:now{{}}<end_function_call>", (W, N)),
    Written("harmony", f"<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{_A}<|call|>", (W,), "", "I think."),
    Written("harmony", "<|channel|>analysis<|message|>I <b> think.<|end|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>Hello\n", (N,), "Hello\n", "I <b> think."),
    Written("harmony", "plain <|channel|> text", (), "plain <|channel|> text"),
)  # fmt: skip
