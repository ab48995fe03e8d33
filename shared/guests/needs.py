"""What a request needs that not every guest can do, and its refusal. Pure.

A guest is an engine of others behind a group (docs/guests.md). Leaders and routers ask the same functions, so
a router sends a request only to groups that can, and a leader refuses what comes to it anyway.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from shared.errors import InvalidRequest, RyzError, Unavailable
from shared.messages import (
    GenerateRequest,
    GuestCard,
    ResumePoint,
    Sampling,
    SamplingDefaults,
    StructuredOutput,
    ToolUse,
)

GUEST_CANNOT: Final = "guest_cannot"  # the reason of the refusal
DETERMINISTIC: Final = "deterministic"
REBUILT_STATE: Final = "rebuilt_state"  # no guest has it: what a seed, penalties or a grammar know of tokens
_GUEST: Final = "guest:"  # begins the fingerprints of guests
# What the form of an answer needs. `grammar`: the guest follows the grammars that are made here, of any kind;
# the others are forms that it may follow by a grammar engine of its own.
GRAMMAR: Final = "grammar"
_FORMS: Final = {"json_object": "json_schema", "json_schema": "json_schema", "choice": "choice"}
_GBNF: Final = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
OPTIONAL_CALLS: Final = "optional_calls"  # calls in a form, where the answer need not be one
FORMS: Final = frozenset({GRAMMAR, "gbnf", OPTIONAL_CALLS, *_FORMS.values()})
# What a guest cannot do, behind `cannot`; {field} is the field of the request that asks for it.
_WORDS: Final = {
    "adapters": "compute with adapters",
    "continuation": "go on with an answer that another engine has begun",
    "embeddings": "compute embeddings",
    **dict.fromkeys(FORMS, "enforce `{field}`"),
    REBUILT_STATE: "go on with an answer that has `{field}`",
}
_DEFAULTED: Final = ("top_k", "min_p", "repetition_penalty")  # abilities that are parameters with defaults


class Lack(NamedTuple):
    """What a guest lacks for a request.

    Attributes:
        need: The ability.
        field: The field of the request that asks for it.
    """

    need: str
    field: str


def guest_fingerprint(name: str) -> str:
    """Returns the fingerprint of a guest's group, by which `is_guest` knows it.

    Args:
        name: Names the model and the kind of guest, in any characters.
    """
    return _GUEST + hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


def is_guest(fingerprint: str) -> bool:
    """Returns whether a guest made the tokens that come with this fingerprint."""
    return fingerprint.startswith(_GUEST)


def begun_by_guest(resume: ResumePoint | None) -> bool:
    """Returns whether a guest made the first tokens of an answer that goes on, or may have made them."""
    return resume is not None and bool(is_guest(resume.fingerprint) or resume.resumed)


def needs_of(request: GenerateRequest, *, adapter: bool = False) -> dict[str, str]:
    """Returns what a request needs, each with the field that asks for it.

    Args:
        request: With or without the model's defaults of sampling.
        adapter: It names an adapter.
    """
    needs = _needs_of_sampling(request.sampling)
    if adapter:
        needs["adapters"] = "model"
    if request.embedding is not None:
        needs["embeddings"] = "embedding"
    elif request.prompt_only:
        needs.setdefault("prompt_logprobs", "echo" if request.echo else "prompt_only")
    form = _form_of(request)
    if form is not None:
        needs[form.need] = form.field
        if request.continues:  # its grammar would have to begin in the middle
            needs[REBUILT_STATE] = form.field
    if request.resume is not None and any(request.resume.token_ids):
        needs["continuation"] = "resume"
        if state := _state_of(request, needs):
            needs[REBUILT_STATE] = state
    return needs


def form_need(structured: StructuredOutput | None) -> str:
    """Returns what a guest needs to follow the form of a text; None: the form is one of required calls."""
    if structured is None:
        return GRAMMAR
    if structured.kind == "grammar" and _GBNF.search(structured.definition):
        return "gbnf"
    return _FORMS.get(structured.kind, GRAMMAR)


def _form_of(request: GenerateRequest) -> Lack | None:
    """Returns what the form of the answer needs; None if it is free, or a grammar would only be a help."""
    structured, tools = request.structured, request.tools
    choice = tools.choice if tools is not None and tools.tools else "none"
    if choice in ("required", "named"):
        return Lack(GRAMMAR, "tools")
    if choice == "auto" and (structured is not None or _has_strict(tools)):
        return Lack(OPTIONAL_CALLS, "tools" if structured is None else "structured")
    return None if structured is None else Lack(form_need(structured), "structured")


def _has_strict(tools: ToolUse | None) -> bool:
    return tools is not None and any(tool.strict for tool in tools.tools)


def _needs_of_sampling(sampling: Sampling) -> dict[str, str]:
    draws = sampling.temperature != 0
    wanted = {
        "ignore_eos": sampling.ignore_eos,
        "logit_bias": bool(sampling.logit_bias),
        "logprobs": sampling.logprobs >= 0,
        "min_p": draws and bool(sampling.min_p),
        "min_tokens": sampling.min_tokens > 0,
        "prompt_logprobs": sampling.prompt_logprobs >= 0,
        "repetition_penalty": sampling.repetition_penalty not in (None, 1.0),
        "seed": draws and has_seed(sampling),
        "top_k": draws and bool(sampling.top_k),
    }
    needs = {name: name for name, is_wanted in wanted.items() if is_wanted}
    if sampling.stop_token_ids:
        needs["token_ids_out"] = "stop_token_ids"
    for field in ("presence_penalty", "frequency_penalty"):
        if getattr(sampling, field):
            needs["penalties"] = field
    return needs


def has_seed(sampling: Sampling) -> bool:
    """Returns whether the caller counts on the seed."""
    return sampling.seed != 0 if sampling.seed_given is None else sampling.seed_given


def _state_of(request: GenerateRequest, needs: Mapping[str, str]) -> str:
    """Returns a field whose state no guest rebuilds from the tokens so far; empty: there is none."""
    if request.continues and not begun_by_guest(request.resume):
        return "continues"  # the first tokens repeat the end of the given message
    kept = ("penalties", "seed", *sorted(FORMS), "min_tokens", "prompt_logprobs")
    return next((needs[one] for one in kept if one in needs), "")


def lack_of(lacks: Collection[str], needs: Mapping[str, str]) -> Lack | None:
    """Returns the first need that is lacking; None: nothing is."""
    for need, field in needs.items():
        if need in lacks:
            return Lack(need, field)
    return None


def refusal(lack: Lack, guest: str, model: str, *, resumed: bool) -> RyzError:
    """Returns the refusal of a request that only guests could get, which cannot serve it.

    Args:
        guest: The name of one of these guests.
        resumed: An answer would have had to go on there.
    """
    can_not = _WORDS.get(lack.need, "take `{field}`").format(field=lack.field)
    who = f"the guest {guest} cannot {can_not}, and model {model} has no other group"
    if resumed:
        return Unavailable(
            f"the answer cannot go on: {who}; send the request again", reason=GUEST_CANNOT, param=lack.field
        )
    return InvalidRequest(f"{who}; leave it out", reason=GUEST_CANNOT, param=lack.field)


def without_lacking(defaults: SamplingDefaults, lacks: Collection[str]) -> SamplingDefaults:
    """Returns a model's defaults of sampling without those that a guest cannot take."""
    left_out = {name: None for name in _DEFAULTED if name in lacks}
    return replace(defaults, **left_out) if left_out else defaults


def goes_on_as_text(resume: ResumePoint | None, fingerprint: str, guest: GuestCard | None) -> bool:
    """Returns whether an answer is one text of several engines, and need not be what one would write.

    Args:
        resume: The answer so far.
        fingerprint: Of the group that goes on.
        guest: The guest that goes on; None: an engine of ours.
    """
    if resume is None or not any(resume.token_ids):
        return False
    if resume.resumed or (resume.fingerprint and resume.fingerprint != fingerprint):
        return True
    return guest is not None and DETERMINISTIC in guest.lacks
