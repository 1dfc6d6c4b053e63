"""GGUF metadata -> TokenizerSource: what `tokenizer.ggml.*` states, checked."""

from __future__ import annotations

from hashlib import blake2b

from samovar.checkpoint.base import TokenizerSource
from samovar.checkpoint.gguf import GGUFFile
from samovar.checkpoint.gguf_fields import Fields
from samovar.errors import UnsupportedModel

_PREFIX = "tokenizer.ggml."
_NORMAL = 1
_LAST_TYPE = 6

# Byte-level BPE files that say nothing about a first token: these pre-tokenizers mean that there
# is one, all others that there is none.
_PRE_WITH_BOS = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"})


def read_tokenizer(file: GGUFFile) -> TokenizerSource:
    """The vocabulary of a file.  Raises CheckpointError, UnsupportedModel."""
    fields = Fields(file.path, file.metadata, _PREFIX)
    model = fields.text("model")
    if model not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"{file.path}: {_PREFIX}model: {model[:60]!r} is not supported, only gpt2 "
            "(byte-level BPE) and llama (SentencePiece)"
        )
    is_bpe = model == "gpt2"
    tokens = fields.texts("tokens")
    count = len(tokens)
    if count == 0:
        raise fields.error("tokens", "is empty")
    pre = fields.text("pre") if fields.has("pre") else None
    has_types = fields.has("token_type")
    bos_id = _id(fields, "bos_token_id", count)
    add_bos = fields.truth("add_bos_token", not is_bpe or pre in _PRE_WITH_BOS)
    eos_id = _id(fields, "eos_token_id", count)
    add_eos = fields.truth("add_eos_token", False)
    for wanted, key, token in (
        (add_bos, "bos_token_id", bos_id),
        (add_eos, "eos_token_id", eos_id),
    ):
        if wanted and token is None:
            raise fields.error(key, "this key is missing, but every text shall have that token")
    return TokenizerSource(
        path=file.path,
        model=model,
        pre=pre,
        tokens=tokens,
        token_types=(
            fields.integers("token_type", 0, _LAST_TYPE, count=count)
            if has_types
            else [_NORMAL] * count
        ),
        scores=[] if is_bpe else fields.numbers("scores", count=count),
        merges=_merges(fields) if is_bpe else [],
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=_id(fields, "unknown_token_id", count),
        pad_id=_id(fields, "padding_token_id", count),
        end_ids=_end_ids(fields, count),
        add_bos=add_bos,
        add_eos=add_eos,
        add_space_prefix=fields.truth("add_space_prefix", not is_bpe),
        cache_key=_digest(file),
    )


def chat_template(file: GGUFFile) -> str | None:
    """The model's own Jinja template, if the file holds one."""
    fields = Fields(file.path, file.metadata)
    return fields.text("tokenizer.chat_template", "") or None


def _id(fields: Fields, key: str, count: int) -> int | None:
    return fields.integer(key, 0, count - 1) if fields.has(key) else None


def _end_ids(fields: Fields, count: int) -> list[int]:
    """The ids that end a text, a turn or a message; some converters give a list as well."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [fields.integer(key, 0, count - 1) for key in keys if fields.has(key)]
    if fields.has("eos_token_ids"):
        ids += fields.integers("eos_token_ids", 0, count - 1)
    return list(dict.fromkeys(ids))


def _merges(fields: Fields) -> list[str]:
    merges = fields.texts("merges")
    for rank, merge in enumerate(merges):
        if merge.count(" ") != 1 or merge[0] == " " or merge[-1] == " ":
            raise fields.error(f"merges[{rank}]", f"found {merge[:60]!r}, expected 'left right'")
    return merges


def _digest(file: GGUFFile) -> str:
    digest = blake2b(digest_size=16)
    for key in file.metadata:
        if key.startswith(_PREFIX):
            digest.update(file.bytes_of(key))
    return digest.hexdigest()
