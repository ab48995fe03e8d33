"""The known forms of tool calls, and which of them a chat template shows.

Written after the chat templates and model cards of the families; docs/tools.md has the table.
"""

from services.worker.text.answers.tool_format import CallSyntax, ReasoningMarks, ToolFormat

_HERMES = CallSyntax(body="json", opens=("<tool_call>",), closes=("</tool_call>",), enforced="each")
_BARE_JSON = CallSyntax(body="json", argument_keys=("parameters", "arguments"), enforced="each")
_BARE_LIST = CallSyntax(body="json", enforced="list")
_FUNCTION_TAG = CallSyntax(
    body="named", opens=("<function=",), name_ends=(">",), after_arguments=("</function>",)
)
_PARAMETER_TAGS = CallSyntax(
    body="tagged",
    opens=("<tool_call>",),
    closes=("</tool_call>",),
    items="<function=",
    name_ends=(">",),
    after_arguments=("</function>",),
    keys=("<parameter=", ">"),
    values=("", "</parameter>"),
    trims=True,
    value_lines=True,
    enforced="each",
)
_DEEPSEEK_BLOCK = ("<｜tool▁calls▁begin｜>",)
_MISTRAL_NAME_ENDS = ("[ARGS]", "[CALL_ID]", "{")
_DEEPSEEK_END = ("<｜tool▁calls▁end｜>",)

TOOL_FORMATS = (
    ToolFormat(
        name="harmony",
        models="gpt-oss",
        signs=(("<|channel|>", "<|message|>", "functions."),),
        channels=True,
        calls=(
            CallSyntax(
                body="named",
                opens=("<|channel|>commentary to=functions.",),
                name_ends=(" <|constrain|>json<|message|>",),
                enforced="named",
            ),
        ),
        reasoning=ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>"),
        text_before="<|channel|>final<|message|>",
        again="<|start|>assistant",
    ),
    ToolFormat(
        name="deepseek_v3",
        models="DeepSeek V3, R1",
        signs=(("tool▁call▁begin", "```json"),),
        calls=(
            CallSyntax(
                body="named",
                opens=_DEEPSEEK_BLOCK,
                enforced="named",
                closes=_DEEPSEEK_END,
                items="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                name_ends=("\n",),
                before_arguments=("```json",),
                after_arguments=("```", "<｜tool▁call▁end｜>"),
            ),
        ),
    ),
    ToolFormat(
        name="deepseek_v31",
        models="DeepSeek V3.1, V3.2-Exp",
        signs=(("tool▁call▁begin",),),
        calls=(
            CallSyntax(
                body="named",
                opens=_DEEPSEEK_BLOCK,
                enforced="named",
                closes=_DEEPSEEK_END,
                items="<｜tool▁call▁begin｜>",
                name_ends=("<｜tool▁sep｜>",),
                after_arguments=("<｜tool▁call▁end｜>",),
            ),
        ),
    ),
    ToolFormat(
        name="kimi_k2",
        models="Kimi K2",
        signs=(("<|tool_call_argument_begin|>",),),
        calls=(
            CallSyntax(
                body="named",
                opens=("<|tool_calls_section_begin|>",),
                enforced="named",
                name_prefix="functions.",
                closes=("<|tool_calls_section_end|>",),
                items="<|tool_call_begin|>",
                name_ends=("<|tool_call_argument_begin|>",),
                name_pattern=r"\s*(?:functions\.)?(.*?)(?::\d+)?\s*",
                after_arguments=("<|tool_call_end|>",),
            ),
        ),
    ),
    ToolFormat(
        name="minimax_m2",
        models="MiniMax M2",
        signs=(("<minimax:tool_call>",), ("]<]minimax[>[", "tool_call")),
        calls=(
            CallSyntax(
                body="tagged",
                opens=("<minimax:tool_call>",),
                closes=("</minimax:tool_call>",),
                items='<invoke name="',
                name_ends=('">',),
                after_arguments=("</invoke>",),
                keys=('<parameter name="', '">'),
                values=("", "</parameter>"),
                enforced="each",
            ),
        ),
    ),
    ToolFormat(
        name="seed_oss",
        models="Seed-OSS",
        signs=(("<seed:tool_call>",),),
        calls=(
            CallSyntax(
                body="tagged",
                opens=("<seed:tool_call>",),
                closes=("</seed:tool_call>",),
                items="<function=",
                name_ends=(">",),
                after_arguments=("</function>",),
                keys=("<parameter=", ">"),
                values=("", "</parameter>"),
                trims=True,
                enforced="each",
            ),
        ),
    ),
    ToolFormat(
        name="glm45",
        models="GLM-4.5, GLM-4.6",
        signs=(("<arg_key>",),),
        calls=(
            CallSyntax(
                body="tagged",
                opens=("<tool_call>",),
                closes=("</tool_call>",),
                name_ends=("\n", "<arg_key>", "</tool_call>"),
                keys=("<arg_key>", "</arg_key>"),
                values=("<arg_value>", "</arg_value>"),
                enforced="each",
            ),
        ),
    ),
    ToolFormat(
        name="qwen3_coder",
        models="Qwen3-Coder, Qwen3.5, Nemotron 3",
        signs=(("<function=", "<parameter="),),
        calls=(_PARAMETER_TAGS,),
    ),
    ToolFormat(
        name="functiongemma",
        models="FunctionGemma",
        signs=(("<start_function_call>",),),
        calls=(
            CallSyntax(
                body="plain_keys",
                opens=("<start_function_call>",),
                closes=("<end_function_call>",),
                items="call:",
                name_ends=("{",),
                values=("<escape>", "<escape>"),
                enforced="each",
            ),
        ),
    ),
    ToolFormat(
        name="mistral_v11",
        models="Mistral Small 3.2, Devstral, Magistral",
        signs=(("[TOOL_CALLS]", "[ARGS]"),),
        calls=(
            CallSyntax(body="json", opens=("[TOOL_CALLS]",), name_ends=_MISTRAL_NAME_ENDS, enforced="named"),
        ),
    ),
    ToolFormat(
        name="mistral",
        models="Mistral 7B v0.3, Nemo, Large, Small 3",
        signs=(("[TOOL_CALLS]",),),
        calls=(
            CallSyntax(body="json", opens=("[TOOL_CALLS]",), name_ends=_MISTRAL_NAME_ENDS, enforced="list"),
        ),
    ),
    ToolFormat(
        name="command_r",
        models="Command R7B, Command A",
        signs=(("<|START_ACTION|>",),),
        calls=(
            CallSyntax(
                body="json",
                opens=("<|START_ACTION|>",),
                closes=("<|END_ACTION|>",),
                name_keys=("tool_name", "name"),
                argument_keys=("parameters", "arguments"),
                enforced="list",
            ),
        ),
    ),
    ToolFormat(
        name="internlm",
        models="InternLM 2, 2.5, 3",
        signs=(("<|action_start|>",),),
        calls=(
            CallSyntax(
                body="json",
                opens=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
                closes=("<|action_end|>",),
                enforced="each",
            ),
        ),
    ),
    ToolFormat(
        name="nemotron",
        models="Nemotron Nano and Super (Llama)",
        signs=(("<TOOLCALL>",),),
        calls=(CallSyntax(body="json", opens=("<TOOLCALL>",), closes=("</TOOLCALL>",), enforced="list"),),
    ),
    ToolFormat(
        name="jamba",
        models="Jamba 1.5, MiniMax M1, GigaChat",
        signs=(("<tool_calls>",),),
        calls=(CallSyntax(body="json", opens=("<tool_calls>",), closes=("</tool_calls>",), enforced="list"),),
    ),
    ToolFormat(
        name="phi4_mini",
        models="Phi-4-mini",
        signs=(("<|/tool_call|>",), ("<|/tool|>",), ("functools",)),
        calls=(
            CallSyntax(body="json", opens=("<|tool_call|>",), closes=("<|/tool_call|>",), enforced="list"),
            CallSyntax(body="json", opens=("functools",)),
        ),
    ),
    ToolFormat(
        name="granite",
        models="Granite 3.0 to 3.3",
        signs=(("<|tool_call|>",),),
        calls=(
            CallSyntax(body="json", opens=("<|tool_call|>",), enforced="list"),
            CallSyntax(body="json", opens=("<tool_call>",), closes=("</tool_call>",)),
        ),
    ),
    ToolFormat(
        name="hermes",
        models="Hermes, Qwen 2.5 and 3, QwQ, SmolLM3, Granite 4, models without a form of their own",
        signs=(("<tool_call>",),),
        calls=(_HERMES,),
    ),
    ToolFormat(
        name="gemma",
        models="Gemma 3",
        signs=(("tool_code",),),
        calls=(
            CallSyntax(body="python", opens=("```tool_code",), closes=("```",), enforced="list"),
            CallSyntax(body="json", opens=("```tool_call",), closes=("```",)),
        ),
    ),
    ToolFormat(
        name="pythonic",
        models="Llama 3.2, Llama 4, ToolACE",
        signs=(("[func_name1(",), ("<|python_start|>",), ("func_name(",)),
        calls=(
            CallSyntax(body="python", enforced="list"),
            CallSyntax(body="python", opens=("<|python_start|>",), closes=("<|python_end|>",)),
        ),
    ),
    ToolFormat(
        name="llama3_json",
        models="Llama 3.1, 3.2 and 3.3",
        signs=(("<|python_tag|>",), ('"parameters": dictionary of argument',)),
        calls=(
            _BARE_JSON,
            CallSyntax(body="json", opens=("<|python_tag|>",)),
            _FUNCTION_TAG,
        ),
    ),
    ToolFormat(name="xlam", models="xLAM 2", signs=(("<xlam",),), calls=(_BARE_LIST,)),
)

BY_NAME = {known.name: known for known in TOOL_FORMATS}
GENERIC = BY_NAME["hermes"]


def format_of(template: str) -> ToolFormat | None:
    """Returns the form of calls that a chat template shows; None if it has no tools."""
    if "tools" not in template and "functions" not in template:
        return None
    for known in TOOL_FORMATS:
        if any(all(sign in template for sign in signs) for signs in known.signs):
            return known
    return None
