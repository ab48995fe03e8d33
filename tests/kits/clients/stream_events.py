"""The events that streams of each API have, and which tests read them."""

RESPONSE_EVENTS = {
    "response.created": "first, with the response as it was asked for",
    "response.queued": "a background response that has not begun",
    "response.in_progress": "second",
    "response.output_item.added": "a message, a tool call or a reasoning item begins",
    "response.content_part.added": "a text of a message begins",
    "response.output_text.delta": "a piece of text, with `logprobs` if they were asked for",
    "response.output_text.done": "the whole text",
    "response.content_part.done": "the whole part",
    "response.reasoning_text.delta": "a piece of what the model thinks",
    "response.reasoning_text.done": "all of it",
    "response.function_call_arguments.delta": "a piece of the arguments of a call",
    "response.function_call_arguments.done": "all arguments",
    "response.custom_tool_call_input.delta": "a piece of the input of a custom tool",
    "response.custom_tool_call_input.done": "the whole input",
    "response.output_item.done": "the whole item",
    "response.completed": "last",
    "response.incomplete": "last, of an answer that was cut",
    "response.failed": "last, of a response that ended with an error",
    "error": "the stream cannot go on",
}
MESSAGE_EVENTS = {
    "message_start": "first, with the message's id and the prompt's tokens",
    "content_block_start": "a text, a tool call or a thought begins",
    "content_block_delta": "`text_delta`, `input_json_delta` or `thinking_delta`",
    "content_block_stop": "the block is whole",
    "message_delta": "`stop_reason`, `stop_sequence` and the tokens of the answer",
    "message_stop": "last",
    "ping": "keeps the connection open",
    "error": "the stream cannot go on",
}
CHAT_EVENTS = {
    "chat.completion.chunk": "pieces of `content`, `reasoning`, `tool_calls`, `logprobs`; a `finish_reason`",
    "text_completion": "pieces of `text`",
    "error": "the stream cannot go on",
    "[DONE]": "last, whatever came before",
}

REALTIME_EVENTS = {
    "ready": "the connection takes requests",
    "accepted": "a stream begins, with its ids",
    "event": "an event of the route, with its id",
    "done": "a stream has ended",
    "answer": "a whole answer",
    "error": "a refusal of the route, or of the message",
    "cancelled": "a request was ended by its client",
    "cut": "an answer broke off, and may be resumed",
    "slow": "the client did not read for a second or longer",
    "pong": "answers `ping`",
}
