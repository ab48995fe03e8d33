"""Checks `RYZ_VLLM_ARGS` as far as that needs no vLLM, and makes the arguments that vLLM's process gets.

vLLM's own parser checks the rest before it loads weights.
"""

import shlex

from services.worker.guests.kv_events.vllm_arguments import FLAG, find_kv_events
from shared.errors import InvalidRequest
from shared.messages.generate import MAX_LOGPROBS

_ADAPTERS = (
    "a group with RYZ_ENGINE=vllm serves no adapters; groups with RYZ_ENGINE=torch do, and `vllm serve` "
    "serves one as a model of its own, which `ryz worker --remote` joins by its name, --remote-model"
)
# What stands behind an argument here would be ours to say, or would change what an answer means.
_OURS = {
    "--model": "RYZ_MODEL names the model",
    "--model-tag": "RYZ_MODEL names the model",
    "--served-model-name": "RYZ_MODEL_NAME names it for callers",
    "--tokenizer": "the leader tokenizes, by the files of RYZ_MODEL",
    "--skip-tokenizer-init": "the leader tokenizes, and grammars need vLLM's tokenizer as well",
    "--generation-config": "the leader reads the model's defaults of sampling",
    "--override-generation-config": "RYZ_SAMPLING_DEFAULTS sets defaults of sampling",
    "--logprobs-mode": "log probabilities are those of the model, `raw_logprobs`",
    "--runner": "vLLM generates here",
    "--host": "vLLM serves no HTTP here",
    "--port": "vLLM serves no HTTP here",
    "--uds": "vLLM serves no HTTP here",
    "--api-key": "vLLM serves no HTTP here",
    "--api-server-count": "vLLM serves no HTTP here",
    "--headless": "vLLM serves no HTTP here",
    "--enable-lora": _ADAPTERS,
    "--lora-modules": _ADAPTERS,
    "--config": "RYZ_VLLM_ARGS takes the arguments themselves",
}


def split_arguments(text: str) -> list[str]:
    """Return the arguments of a shell-like line.

    Raises:
        ValueError: A quote is open, the first one is no option, or one is not the operator's to set.
    """
    arguments = shlex.split(text)
    if arguments and not arguments[0].startswith("-"):
        raise ValueError(
            f"begins with {arguments[0]!r}: only options are taken, such as --max-model-len 2048, and "
            "RYZ_MODEL names the model"
        )
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        why = _OURS.get(name) or _OURS.get(name.replace("--no-", "--", 1))
        if why is not None:
            raise ValueError(f"has {name}, which is not to be set here: {why}; leave it out")
        if name.startswith(f"{FLAG}."):
            raise ValueError(f"has {name}; give {FLAG} one JSON object")
    try:
        find_kv_events(arguments)
    except InvalidRequest as error:
        raise ValueError(f"has what vLLM refuses: {error.message}") from error
    return arguments


def engine_arguments(text: str, *, shares: bool) -> list[str]:
    """Return the arguments for vLLM's parser: ours, of which the given ones replace all but the first.

    Its statistics cost time in each step, and the leader has its own. Its backend of grammars is the library
    that the leader compiles and checks them with.

    Args:
        shares: Whether sequences may share what a prefix cache has.

    Raises:
        ValueError: See `split_arguments`; or events of a cache are asked for, and there is none.
    """
    given = split_arguments(text)
    if not shares and find_kv_events(given) is not None:
        raise ValueError(f"has {FLAG}, and RYZ_PREFIX_SHARING=off leaves no cache; leave one of the two out")
    own = ["--generation-config", "vllm", "--disable-log-stats", "--max-logprobs", str(MAX_LOGPROBS)]
    own += ["--structured-outputs-config", '{"backend": "guidance"}']
    return own + given + ([] if shares else ["--no-enable-prefix-caching"])
