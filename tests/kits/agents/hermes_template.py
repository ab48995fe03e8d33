"""A chat template as models with calls in Hermes' form have it, with the markers of the demo model."""

TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|system|>You may call: {% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}Write <tool_call>\n{...}\n</tool_call>.<|end|>{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}<|user|><tool_response>\n{{ m.content }}\n</tool_response><|end|>"
    "{% else %}<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls %}<tool_call>\n"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
