"""How a byte-level vocabulary cuts text into words before merging, by the name a GGUF file gives.

Each rule is the one in the model family's own tokenizer.json.  A name that is not here is
refused: a near miss would change the tokens without anybody noticing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex, normalizers, pre_tokenizers

from samovar.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class WordRule:
    """One family's way from text to words.

    patterns: regular expressions, applied one after the other; each cuts out its matches.
    gpt2_words: cut by the expression of GPT-2 last (it is built into the byte-level step).
    single_digits: cut out each digit before anything else.
    nfc: compose the text (Unicode NFC) first.
    whole_words: a word that is in the vocabulary is one token, whatever the merges say.
    """

    patterns: tuple[str, ...] = ()
    gpt2_words: bool = False
    single_digits: bool = False
    nfc: bool = False
    whole_words: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The steps as the `tokenizers` library runs them."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps += [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in self.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2_words))
        return pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        """The change made to the text before it is cut, if there is one."""
        return normalizers.NFC() if self.nfc else None


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_START = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CASED_UPPER = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_CASED_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_GPT2 = WordRule(gpt2_words=True)
_DIGITS_GPT2 = WordRule(gpt2_words=True, single_digits=True)
_LLAMA3 = "|".join((_CONTRACTIONS, _WORD, r"\p{N}{1,3}", _SYMBOLS, _SPACES))
_QWEN2 = "|".join((_CONTRACTIONS, _WORD, r"\p{N}", _SYMBOLS, _SPACES))
_QWEN35 = "|".join(
    (
        _CONTRACTIONS,
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        _SPACES,
    )
)
_TEKKEN = "|".join((_CASED_START, _CASED_UPPER, r"\p{N}", _CASED_SYMBOLS, _SPACES))
_GPT4O = "|".join(
    (
        _CASED_START + _CONTRACTIONS + "?",
        _CASED_UPPER + _CONTRACTIONS + "?",
        r"\p{N}{1,3}",
        _CASED_SYMBOLS,
        _SPACES,
    )
)
# What a file gets whose converter did not know its vocabulary: punctuation and digits apart.
_DEFAULT = WordRule(
    patterns=(
        r"[\p{P}\$\+<=>\^~\|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+",
        r"[0-9][0-9][0-9]",
    )
)

WORD_RULES: Mapping[str, WordRule] = MappingProxyType(
    {
        "default": _DEFAULT,
        "gpt-2": _GPT2,
        "phi-2": _GPT2,
        "smollm": _DIGITS_GPT2,
        "starcoder": _DIGITS_GPT2,
        "refact": _DIGITS_GPT2,
        "llama3": WordRule((_LLAMA3,), whole_words=True),
        "llama-v3": WordRule((_LLAMA3,), whole_words=True),
        "llama-bpe": WordRule((_LLAMA3,), whole_words=True),
        "smaug-bpe": WordRule((_LLAMA3,)),
        "dbrx": WordRule((_LLAMA3,)),
        "qwen2": WordRule((_QWEN2,), nfc=True),
        "qwen35": WordRule((_QWEN35,), nfc=True),
        "tekken": WordRule((_TEKKEN,), whole_words=True),
        "gpt-4o": WordRule((_GPT4O,)),
    }
)


def word_rule(name: str | None) -> WordRule:
    """The rule called `name`; a file that gives no name gets "default", as in llama.cpp.

    Raises UnsupportedModel for a name that is not known.
    """
    rule = WORD_RULES.get("default" if name is None else name)
    if rule is None:
        known = ", ".join(sorted(WORD_RULES))
        raise UnsupportedModel(
            f"tokenizer.ggml.pre: the pre-tokenizer {name!r} is not supported (known: {known})"
        )
    return rule
