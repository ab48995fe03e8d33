"""The line of vLLM's output that says why a start failed."""

from services.worker.guests.vllm.output_lines import MAX_LINE, OutputLines

CORE = "(EngineCore pid=71) "
PREFIX = "ERROR 11-29 13:02:55 [core.py:1100] "
FAILED_START = f"""\
INFO 11-29 13:02:50 [utils.py:10] starting
{CORE}{PREFIX}EngineCore failed to start.
{CORE}{PREFIX}Traceback (most recent call last):
{CORE}{PREFIX}  File "x.py", line 5, in init
{CORE}{PREFIX}ValueError: No available memory for the cache blocks.
{CORE}Process EngineCore:
{CORE}Traceback (most recent call last):
Traceback (most recent call last):
  File "<string>", line 1, in <module>
RuntimeError: Engine core initialization failed. See root cause above.
"""


def output_of(text: str) -> OutputLines:
    output = OutputLines()
    output.feed(text.encode())
    return output


def test_the_cause_is_not_the_error_that_follows_from_it() -> None:
    output = output_of(FAILED_START)
    cause = "ValueError: No available memory for the cache blocks."
    assert output.cause() == output.last_words() == cause
    assert output.explain("RuntimeError: Engine core initialization failed. See root cause above.") == cause
    assert output.explain("KeyError: 'x'") == "KeyError: 'x'"


def test_without_a_cause_there_is_the_last_line() -> None:
    assert output_of("loading\nKilled by something\n").last_words() == "Killed by something"
    assert output_of("loading\n").cause() == ""
    assert output_of("").explain("Engine core failed") == "Engine core failed"


def test_lines_come_whole_with_their_level_and_without_the_prefix() -> None:
    output = OutputLines()
    assert output.feed(b"WARNING 11-29 13:02:50 [a.py:1] half") == []
    assert output.feed(b" a line\nplain\n") == [("warning", "half a line"), ("info", "plain")]
    assert output.feed(b"Loading:  10%\rLoading: 100%\r\n") == [
        ("info", "Loading:  10%"),
        ("info", "Loading: 100%"),
    ]


def test_a_line_without_an_end_is_cut() -> None:
    assert output_of("").feed(b"x" * (3 * MAX_LINE)) == [("info", "x" * MAX_LINE)]
