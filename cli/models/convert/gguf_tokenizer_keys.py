"""Says a `tokenizer.json` in the keys of a GGUF file, and checks that both cut texts into the same tokens.

The rule that cuts a text into words has only a name in GGUF files. It is found by its results: the rule
whose words are those of the given tokenizer, in all of `PROBES`.
"""

from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import Regex, Tokenizer, pre_tokenizers

from cli.models.convert.probes import PROBES
from services.worker.gguf.header_bytes import BadGguf
from services.worker.model_files.json_files import MAX_TOKENIZER_BYTES, BadFile, read_object
from services.worker.text.from_gguf.gguf_tokenizer import gguf_tokenizer
from services.worker.text.from_gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from services.worker.text.from_gguf.tokenizer_keys import TokenizerKeys
from services.worker.text.from_gguf.vocabulary import read_vocabulary

_SPACE = "\u2581"
_NO_PIECE = -1e6  # the score of a token that no merge makes


def tokenizer_keys(directory: Path, num_rows: int, texts: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that begin with `tokenizer.`.

    Args:
        directory: The directory that holds `tokenizer.json`.
        num_rows: Rows of the embedding; ids without a token get one that is never used.
        texts: The content of `tokenizer_config.json`, with the chat templates by name.

    Raises:
        BadGguf: The tokenizer is of a kind that GGUF files cannot hold, or would differ there.
    """
    path = directory / "tokenizer.json"
    try:
        raw = read_object(path, MAX_TOKENIZER_BYTES)
    except (OSError, BadFile) as error:
        raise BadGguf(f"{path} cannot be read: {error}") from error
    model = raw.get("model") or {}
    if model.get("type") != "BPE":
        raise BadGguf(f"{path}: a tokenizer of kind {model.get('type')!r} is not converted, only BPE is")
    given = Tokenizer.from_file(str(path))
    tokens, types = _vocabulary(path, raw, num_rows)
    keys: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if model.get("byte_fallback"):
        keys |= _pieces(raw, tokens, types, merges)
    else:
        keys |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": _rule(path, raw, given),
            "tokenizer.ggml.merges": merges,
        }
    keys |= _roles(raw, tokens, texts)
    _require_same(path, given, keys)
    return keys


def _vocabulary(path: Path, raw: dict[str, Any], num_rows: int) -> tuple[list[str], list[int]]:
    by_id = {token_id: token for token, token_id in raw["model"]["vocab"].items()}
    added = {one["id"]: one for one in raw.get("added_tokens") or []}
    by_id |= {token_id: one["content"] for token_id, one in added.items()}
    ordinary = by_id.keys() - added.keys()  # added tokens beyond the embedding are left out: none is made
    if max(ordinary, default=-1) >= num_rows:
        raise BadGguf(f"{path} has the token id {max(ordinary)}, and the embedding has only {num_rows} rows")
    unknown = raw["model"].get("unk_token")
    tokens, types = list[str](), list[int]()
    for token_id in range(num_rows):
        token = by_id.get(token_id, f"[PAD{token_id}]")
        kind = TokenType.NORMAL if token_id in by_id else TokenType.UNUSED
        if token_id in added:
            kind = TokenType.CONTROL if added[token_id].get("special") else TokenType.USER_DEFINED
        if raw["model"].get("byte_fallback") and len(token) == 6 and token.startswith("<0x"):
            kind = TokenType.BYTE
        tokens.append(token)
        types.append(int(TokenType.UNKNOWN if token == unknown else kind))
    return tokens, types


def _pieces(raw: dict[str, Any], tokens: list[str], types: list[int], merges: list[str]) -> dict[str, Any]:
    """Return the keys of a SentencePiece vocabulary: the earlier a merge, the better its piece's score."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", "", 1), rank)
    normal = {int(TokenType.NORMAL)}
    scores = [
        -float(ranks[token]) if token in ranks else (_NO_PIECE if kind in normal and len(token) > 1 else 0.0)
        for token, kind in zip(tokens, types, strict=True)
    ]
    before = [str(part) for part in (raw.get("normalizer"), raw.get("pre_tokenizer")) if part]
    prefix = any("Prepend" in part or ("Metaspace" in part and "'never'" not in part) for part in before)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def _rule(path: Path, raw: dict[str, Any], given: Tokenizer) -> str:
    """Return the name of the rule that cuts texts into the same words."""
    normalizer = str(raw.get("normalizer") or "")
    composes, keeps = "NFC" in normalizer, bool(raw["model"].get("ignore_merges"))
    if given.pre_tokenizer is not None:
        wanted = _words(given.pre_tokenizer)
        for name, rule in PRE_TOKENIZERS.items():
            same = rule.composes == composes and rule.keeps_words == keeps
            if same and _words(_pre_tokenizer(rule)) == wanted:
                return name
    raise BadGguf(
        f"{path}: none of the rules that GGUF files can name cuts texts into words as this tokenizer does, "
        f"so it is not converted; known are {', '.join(PRE_TOKENIZERS)}"
    )


def _pre_tokenizer(rule: PreTokenizer) -> Any:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _words(rule: Any) -> list[list[str]]:
    return [[word for word, _ in rule.pre_tokenize_str(text)] for text in PROBES]


def _roles(raw: dict[str, Any], tokens: list[str], texts: dict[str, Any]) -> dict[str, Any]:
    """Return the ids of tokens with a role, whether a text begins and ends with them, and the template."""
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    found: dict[str, Any] = {}
    for role, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        text = texts.get(f"{role}_token")
        text = text.get("content") if isinstance(text, dict) else text
        if text in ids:
            found[f"tokenizer.ggml.{key}_token_id"] = ids[text]
    single = str(raw.get("post_processor") or {})
    for role in ("bos", "eos"):
        token_id = found.get(f"tokenizer.ggml.{role}_token_id")
        adds = token_id is not None and repr(tokens[token_id]) in single
        found[f"tokenizer.ggml.add_{role}_token"] = adds
    templates: dict[str, str] = texts["chat_template"]
    for name, template in templates.items():
        found["tokenizer.chat_template" + (f".{name}" if name != "default" else "")] = template
    if named := [name for name in templates if name != "default"]:
        found["tokenizer.chat_templates"] = named
    return found


def _require_same(path: Path, given: Tokenizer, keys: dict[str, Any]) -> None:
    own = TokenizerKeys(path, keys)
    made = gguf_tokenizer(own, read_vocabulary(own))
    for text in PROBES:
        if made.encode(text).ids != given.encode(text).ids:
            raise BadGguf(
                f"{path}: as a GGUF file this tokenizer would cut {text[:40]!r} otherwise; not converted"
            )
