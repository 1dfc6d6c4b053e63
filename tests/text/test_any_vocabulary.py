"""Whatever vocabulary is accepted, every one of its tokens can be sampled and shown."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import assume, given
from hypothesis import strategies as st

from samovar.checkpoint.base import TokenizerSource
from samovar.errors import CheckpointError
from samovar.text.detokenizer import Detokenizer
from samovar.text.tokenizer import Tokenizer

MakeSource = Callable[..., TokenizerSource]

token_texts = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["<0x41>", "<0xFF>", "<0xZZ>", "<0x4>", "<0xff>", "<s>", "<|im_end|>", "▁", ""]
    ),
)
vocabularies = st.lists(
    st.tuples(token_texts, st.integers(0, 6), st.floats(width=32)), min_size=1, max_size=12
)


@given(extra=vocabularies, data=st.data())
def test_every_token_of_an_accepted_vocabulary_has_bytes_and_text(
    byte_level: MakeSource,
    sentencepiece: MakeSource,
    extra: list[tuple[str, int, float]],
    data: st.DataObject,
) -> None:
    texts, kinds, scores = zip(*extra, strict=True)
    base = byte_level() if data.draw(st.booleans()) else sentencepiece({"▁": -1.5})
    tokens = [*base.tokens, *texts]
    an_id = st.none() | st.integers(-1, len(tokens))
    make = byte_level if base.model == "gpt2" else (lambda **fields: sentencepiece({}, **fields))
    source = make(
        tokens=tokens,
        token_types=[*base.token_types, *kinds],
        scores=[*base.scores, *scores] if base.scores else (),
        bos_id=data.draw(an_id),
        eos_id=data.draw(an_id),
        unk_id=data.draw(an_id),
        end_ids=data.draw(st.lists(st.integers(-1, len(tokens)), max_size=2)),
    )
    try:
        tokenizer = Tokenizer.build(source)
    except CheckpointError:
        assume(False)  # a refusal, with nothing to sample from
    for i in range(tokenizer.vocab_size):
        assert tokenizer.token_text(i) == tokens[i]
        text = tokenizer.decode((i,))
        detokenizer = Detokenizer(tokenizer, at_start=True)
        assert detokenizer.push((i,)) + detokenizer.finish() == text
        if tokenizer.is_control(i):
            assert tokenizer.token_bytes(i) == b""
