"""A whole answer is the same, however its frames were cut."""

from hypothesis import given
from hypothesis import strategies as st

from shared.client.generation.results import gather
from shared.messages import Delta, ReasoningPart, TextPart, TokenLogprob, Tokens

LOGPROBS = st.lists(
    st.builds(TokenLogprob, token_id=st.integers(0, 9), token=st.text(), logprob=st.just(-0.5))
)
DELTAS = st.builds(
    Delta,
    text=st.text(),
    token_ids=st.binary(max_size=8),
    logprobs=LOGPROBS,
    finish_reason=st.sampled_from([None, "stop", "length"]),
    parts=st.lists(
        st.builds(TextPart, text=st.text()) | st.builds(ReasoningPart, text=st.text()), max_size=2
    ),
    prompt_logprobs=LOGPROBS,
    embedding=st.binary(max_size=4),
    prompt_text=st.text(),
    stop=st.text(),
)


@given(DELTAS)
def test_an_answer_in_one_piece_is_that_of_several_frames(delta: Delta) -> None:
    one, nothing = Tokens(request_id="r1", deltas=[delta]), Tokens(request_id="r1", deltas=[])
    assert gather([one], 1) == gather([one, nothing], 1)
