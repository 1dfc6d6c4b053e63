"""Tokens are told with their text: never before it, never after, cut where it is cut."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.checkpoint import open_checkpoint
from samovar.engine.request import Request, SamplingParams, TokenLogprob
from samovar.engine.sequence import Sequence
from samovar.server.logprobs import ReplyTokens, chat_logprobs, text_logprobs
from samovar.text.tokenizer import Tokenizer
from samovar.text.utf8 import decode_available, decode_replacing

from .conftest import TINY, TINY_BASE

TOKENIZERS = [Tokenizer.build(open_checkpoint(path).tokenizer) for path in (TINY, TINY_BASE)]


@given(
    tokenizer=st.sampled_from(TOKENIZERS),
    tokens=st.lists(st.integers(0, 299), min_size=1, max_size=30),
    stops=st.lists(st.text(st.sampled_from("ab e\ufffdé"), min_size=1, max_size=3), max_size=2),
    offset=st.integers(0, 5),
)
def test_tokens_are_told_with_their_text(
    tokenizer: Tokenizer, tokens: list[int], stops: list[str], offset: int
) -> None:
    request = Request(
        id="r",
        prompt=(5,),
        sampling=SamplingParams(),
        max_tokens=len(tokens),
        stop=tuple(stops),
        end_ids=tokenizer.end_ids,
    )
    seq = Sequence(request, tokenizer, 100)
    reader = ReplyTokens(tokenizer, tokenizer.end_ids, offset)
    text, data = "", b""
    told = []
    for token in tokens:
        delta = seq.append(token, TokenLogprob(token, -1.0))
        text += delta.text
        slices = reader.push(delta)
        assert "".join(each.text for each in slices) == delta.text
        for each in chain.from_iterable(tokens for _, tokens in slices):
            assert len(decode_available(data)[0]) + offset <= each.offset
            told.append(each)
            data += each.data
        assert text.startswith(decode_available(data)[0])
        if delta.finish_reason is not None:
            break
    assert decode_replacing(data) == text
    read = [token for token in seq.reply if token not in tokenizer.end_ids]
    assert [each.token for each in told] == read[: len(told)]
    assert [each.offset for each in told] == sorted(each.offset for each in told)
    whole = [each for each in told if each.data == tokenizer.token_bytes(each.token)]
    assert len(whole) >= len(told) - 1
    if delta.finish_reason == "length" or seq.reply[-1] in tokenizer.end_ids:
        assert len(whole) == len(read)


@pytest.mark.parametrize(
    ("token", "chat", "text"),
    [
        (65, "b", "b"),
        (100, "\ufffd", "bytes:\\xa7"),
        (298, "<|im_start|>", "<|im_start|>"),
    ],
)
def test_how_tokens_are_spelled(token: int, chat: str, text: str) -> None:
    tokenizer = TOKENIZERS[0]
    request = Request(id="r", prompt=(5,), sampling=SamplingParams(), max_tokens=1)
    seq = Sequence(request, tokenizer, 100)
    logprob = TokenLogprob(token, float("-inf"), ((token, -0.5), (66, -0.25)))
    ((_, tokens),) = ReplyTokens(tokenizer, frozenset()).push(seq.append(token, logprob))
    data = list(tokenizer.token_bytes(token))
    assert chat_logprobs(tokens, tokenizer) == {
        "content": [
            {
                "token": chat,
                "logprob": -9999.0,
                "bytes": data,
                "top_logprobs": [
                    {"token": chat, "logprob": -0.5, "bytes": data},
                    {"token": "c", "logprob": -0.25, "bytes": [99]},
                ],
            }
        ],
        "refusal": None,
    }
    assert text_logprobs(tokens, tokenizer) == {
        "tokens": [text],
        "token_logprobs": [-9999.0],
        "top_logprobs": [{text: -0.5, "c": -0.25}],
        "text_offset": [0],
    }
