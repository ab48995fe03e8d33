"""Makes the prompts of answers that go on from a message of the assistant's (`GenerateRequest.continues`).

The prompt is that of the conversation before this message, and behind it the message as the model would have
written it: reasoning, text, calls up to the last one's arguments. Its last tokens are taken back where a
longer token may have been cut; the answer has to begin with their text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.worker.leader.intake.answer_forms import AnswerForms, AnswerReading
from services.worker.leader.intake.tool_checks import offered_tools
from services.worker.model_files.model import Model
from services.worker.text.answers.call_layout import AnswerPiece, open_calls
from services.worker.text.control_tokens import ControlTokenGuard
from services.worker.text.token_speller import TokenSpeller
from shared.errors import InvalidRequest
from shared.guests.needs import begun_by_guest
from shared.messages import ChatMessage, GenerateRequest


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """The beginning of an answer that its caller has.

    Attributes:
        text: The same as the model writes it.
        kept: Its tokens in the prompt.
        dropped: Its last tokens, which are not in the prompt: the answer begins with their text.
        speller: Of the vocabulary; None if nothing was dropped.
    """

    message: ChatMessage
    text: str
    kept: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    speller: TokenSpeller | None = None

    @property
    def forced(self) -> bytes:
        """The text of the dropped tokens."""
        speller = self.speller
        return b"" if speller is None else b"".join(map(speller.token_bytes, self.dropped))


@dataclass(frozen=True, slots=True)
class ContinuedPrompt:
    """A prompt with the beginning of its answer.

    Attributes:
        before: Tokens of the prompt alone.
    """

    before: list[int]
    given: GivenAnswer

    @property
    def tokens(self) -> list[int]:
        """All tokens that are computed before the answer."""
        return self.before + self.given.kept


class ContinuedPrompts:
    """Makes them. Thread-safe.

    Args:
        model: Its tokenizer, and the form of its answers.
        guard: Keeps texts of messages free of control tokens.
        vocab_size: Returns the number of the engine's tokens; 0: not known.
        can_force: Returns whether the engine can be made to begin with a text. If not, no token is taken
            back.
    """

    def __init__(
        self,
        model: Model,
        guard: ControlTokenGuard,
        vocab_size: Callable[[], int],
        can_force: Callable[[], bool] = lambda: True,
    ) -> None:
        self._tokenizer = model.tokenizer
        self._forms = AnswerForms(model)
        self._guard = guard
        self._vocab_size = vocab_size
        self._can_force = can_force
        self._speller: tuple[int, TokenSpeller] | None = None

    def continued(self, request: GenerateRequest, before: list[int], message: ChatMessage) -> ContinuedPrompt:
        """Returns the prompt that goes on with a message.

        Args:
            request: Offers the tools whose calls the message may have.
            before: Tokens of the conversation before the message, the beginning of an answer included.
            message: The last message of the conversation.

        Raises:
            InvalidRequest: The message cannot be written as the model writes it.
        """
        pieces = self._pieces(request, message, self._forms.form_of(request, before))
        text = "".join(piece.text for piece in pieces)
        ids = self._guard.encode_answer(pieces) if text else []
        # a guest that began with the answer took none back, and its tokens are behind all of these
        forced = self._can_force() and not begun_by_guest(request.resume)
        if not ids or not self._tokenizer.has_token_bytes or not forced:
            return ContinuedPrompt(before, GivenAnswer(message, text, ids))
        speller = self._its_speller()
        taken = speller.take_back(ids)
        given = GivenAnswer(message, text, taken.kept, taken.dropped, speller if taken.dropped else None)
        return ContinuedPrompt(before, given)

    def _pieces(
        self, request: GenerateRequest, message: ChatMessage, form: AnswerReading | None
    ) -> list[AnswerPiece]:
        marks = self._forms.reasoning
        pieces: list[AnswerPiece] = []
        in_reasoning = form is not None and form.in_reasoning
        if marks is not None and (message.reasoning or (in_reasoning and message.content)):
            channels = form is not None and form.form.tools is not None and form.form.tools.channels
            line = "" if channels else "\n"
            pieces += [] if in_reasoning else [AnswerPiece(marks.opens + line, is_markup=True)]
            pieces.append(AnswerPiece(message.reasoning))
            if message.content or message.tool_calls:
                end = (line if message.reasoning else "") + marks.closes + 2 * line
                pieces.append(AnswerPiece(end, is_markup=True))
                if channels and form is not None and form.form.tools is not None:
                    pieces.append(AnswerPiece(form.form.tools.again, is_markup=True))
        if message.content:
            if form is not None and form.form.tools is not None and form.form.tools.text_before:
                pieces.append(AnswerPiece(form.form.tools.text_before, is_markup=True))
            pieces.append(AnswerPiece(message.content))
        if message.tool_calls:
            pieces += self._calls(request, message)
        return pieces

    def _calls(self, request: GenerateRequest, message: ChatMessage) -> Sequence[AnswerPiece]:
        names = {tool.name for tool in offered_tools(request)}
        for call in message.tool_calls:
            if call.name not in names:
                raise InvalidRequest(
                    f"the last message calls {call.name[:128]!r}, which is none of the request's tools: "
                    "offer it, so that the call can be continued",
                    param="tools",
                )
        form = self._forms.tool_format(request)
        calls = open_calls(form.calls[0], message.tool_calls) if form.calls else None
        if calls is None or (form.channels and message.content):
            raise InvalidRequest(
                f"calls cannot be continued in the model's tool format, {form.name!r}: leave the call out of "
                "the last message",
                param="messages",
            )
        return [AnswerPiece("\n", is_markup=True), *calls] if message.content else calls

    def _its_speller(self) -> TokenSpeller:
        size = self._vocab_size() or self._tokenizer.vocab_size
        known = self._speller
        if known is None or known[0] != size:
            known = self._speller = (size, TokenSpeller(self._tokenizer, size, self._guard.control_ids))
        return known[1]
