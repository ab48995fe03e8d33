"""The limits of grammars: what is too large or too costly is refused before or while it is compiled.

llguidance bounds most of its own work; the numbers here bound what it does not. Measured with 1.9.1 and the
49,152 tokens of SmolLM2: an object of 2,000 optional properties took 2 s to compile, `multipleOf: 99991` 7 s,
and a mask in `a{100000}` 0.8 s.
"""

from dataclasses import dataclass

from llguidance import LLParserLimits


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """Limits on one grammar.

    Attributes:
        definition_bytes: UTF-8 bytes of the definition, or of all choices together.
        choices: Alternatives of a choice.
        regex_chars: Characters of a regular expression or of a `pattern`.
        repetitions: What the counts of nested repetitions multiply to, as 6 in `(a{2}){3}`.
        schema_depth: Schemas inside each other, references not followed.
        schema_nodes: Schemas of a schema, those of references counted once.
        enum_values: Values of all `enum` of a schema.
        properties: Properties of one object.
        all_properties: Properties of all objects of a schema.
        patterns: Patterns in `patternProperties` of a schema; llguidance compares each with each.
        least_chars: Largest `minLength`.
        literal_chars: Characters of one constant, one choice, or what a regular expression writes out.
        multiple: Largest common multiple of all `multipleOf`, decimal point aside.
        intersections: Patterns that one text has to match, or `&` in a grammar: whether any text does costs
            twice as much with each one.
    """

    definition_bytes: int = 131_072
    choices: int = 4096
    regex_chars: int = 4096
    repetitions: int = 10_000
    schema_depth: int = 40
    schema_nodes: int = 4096
    enum_values: int = 4096
    properties: int = 1000
    all_properties: int = 2000
    patterns: int = 32
    least_chars: int = 20_000
    literal_chars: int = 8192
    multiple: int = 2000
    intersections: int = 12


MOST_ITEMS = 5000  # in a row of the parser; an object of 1000 optional properties has 4000
# A caller's grammar may be ambiguous; a mask's time grows with the square of the items then: 11 ms of CPU
# at the first number, 94 ms at the second, which is for grammars that begin with more than the first.
CALLERS_ITEMS = (500, 1000)


def parser_limits(items: int = MOST_ITEMS) -> LLParserLimits:
    """Returns llguidance's limits on the work of one grammar.

    Args:
        items: That a row of the parser may have.
    """
    return LLParserLimits(
        max_items_in_row=items,
        step_max_items=min(6 * items, 20_000),
        max_lexer_states=250_000,  # a string with `maxLength` needs 9 for each of its characters
        verbose_errors=False,  # texts of grammars belong into no log
    )
