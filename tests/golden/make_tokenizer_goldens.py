"""Writes tokenizer_*.json: what llama.cpp's tokenizer makes of a nasty corpus.

    pip install llama-cpp-python==0.3.36 gguf==0.19.0 transformers==5.24.0 jinja2
    python make_tokenizer_goldens.py smollm2.gguf gemma3-270m.gguf

For each text the ids with special tokens matched, and without.  The other pre-tokenizers are
tried on the vocabulary of SmolLM2 in a file that holds nothing else: what they cut differs,
whatever is merged afterwards.  Qwen's own tokenizer composes its text (NFC) and llama.cpp does
not, so there llama.cpp is given the composed text.  The space in front of a text (Llama 2) is
tried on the vocabulary of Gemma.

Conversations: text as `transformers` renders SmolLM2's own template, ids of that text from
llama.cpp.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import unicodedata
from pathlib import Path

import llama_cpp
import transformers
from gguf import GGUFReader, GGUFWriter
from transformers.utils.chat_template_utils import render_jinja_template

if (llama_cpp.__version__, transformers.__version__) != ("0.3.36", "5.24.0"):
    raise SystemExit("needs llama-cpp-python 0.3.36 and transformers 5.24.0")

HERE = Path(__file__).parent

CODE = '''def fizz(n: int = 100) -> None:
\t"""Print `n` lines."""
    for i in range(1, n+1):
        print("Fizz"*(i%3==0) + 'Buzz'*(not i%5) or i)   # don't\r
        if i >= 0x1F and not (i&1): x[i] = {"a": [1, 2.50e-3]}


int main(void){for(;;)++*p->q[0];return a<<2|b>>1^~c&&d!=e?f:g;} // l'été
<html><body class="x"><table><tr><td>&nbsp;1</td></tr></table></body></html>
SELECT * FROM t WHERE a<>'b' AND c IN (1,22,333,4444) -- why?
$ curl -sS https://example.com:8377/v1/chat?x=1&y=%20#frag | jq '.[]'
'''

TEXTS = [
    "",
    " ",
    "Hello world",
    " Hello  World! How're you? I'LL we'd THEY'VE it's 'Twas o'clock",
    CODE,
    "  " * 3 + "a" + " " * 7 + "b" + " " * 40 + "c" + " ",
    "\t\ta\t b\t\t\tc\t",
    "a\nb\n\nc\n\n\nd\n \n\t\n  \n e\n" + "\n" * 40 + "f",
    "a\r\nb\r\n\r\nc\rd\n\re \r\n",
    "x \u00a0 y\u2003z\u3000w\u200bv\u2028u\u2029t\x85s\x0b\x0cr",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 0x7fff 1e-10 -5 +7",
    "² ³ ½ ⅷ ① ٣٤٥ ๑๒๓ १२३ 一二三 𝟙𝟚 ⑴",
    "supercalifragilisticexpialidocious" * 5 + " " + "x" * 300 + "ab" * 120,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbb ----------==========*****_____.....",
    "😀 😂🤣 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇯🇵 1️⃣ ❤️ 🧑🏿‍🚀☕️🫠",
    "你好，世界！今天天气很好。我們去吃飯吧「好」",
    "日本語のテキスト、カタカナとひらがな。ｶﾞｷﾞ々〆",
    "한국어 텍스트입니다. ㄱㄴㄷ 안녕하세요",
    "مرحبا بالعالم، كيف حالك؟ بِسْمِ ٱللَّهِ لا إله",
    "שלום עולם וְאָהַבְתָּ",
    "नमस्ते दुनिया, क्षत्रिय हिन्दी में लिखा",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "Привет, мир! Съешь ещё этих мягких французских булок",
    "Γειά σου Κόσμε ΣΊΣΥΦΟΣ ἀρχῇ",
    "Tiếng Việt có dấu, İstanbul ıŞğ, ǅ ǆ, straße STRASSE ﬁ ﬂ Ⅻ",
    "cafe\u0301 e\u0302\u0323 n\u0303 A\u030a \u0301start Z\u0351\u036b\u0343alg\u033co",
    "\u0958 \u2126 \u212b \ufb1d ﬀ 한",
    "\x00 a\x00b \x01\x02\x03\x1b[31mred\x1b[0m \x7f \x08",
    "\ufdd0 a\ufdefb \ufffe \uffff \U0001fffe x\U0010ffffy \ufeffBOM",
    "\ufffd \ufffd\ufffd abc\ufffddef",
    b"broken \xc3( \xe2\x82 \xf0\x9f\x98 \xff\xfe \x80 end".decode("utf-8", "replace"),
    "\ue000\uf8ff\U000f0000 \u0378 \u05ff \U000e0041",
    "▁ ▁▁ a▁b ▁the ▁▁▁▁",
    "ĠĊ Ġthe Ãł ÿ Ā",
    "<0x0A> <0x41><0xFF> <0xzz>",
    "<|im_start|>system\nYou are x.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|><|im_end|> <|im_start|><|im_start |> <|IM_END|> <<|im_end|>>",
    "<bos><eos><pad><unk><mask> <start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n",
    "a <end_of_turn> b<end_of_turn>c <unused0><unused62><unused6241><unused9999> [multimodal]",
    "<start_of_image><table><b>bold</b></table><em><h1>x</h1><|im_end",
    "<s>[INST] <<SYS>>\nbe brief\n<</SYS>>\n\nhi [/INST] yo <repo_name>a/b<file_sep>",
    "<think>\nhm\n</think>\n\n<tool_call>{}</tool_call><|eot_id|><|begin_of_text|>",
    "$E=mc^2$ \\frac{a}{b} ∑∫∂√∞≠≤≥ ←→↔ ±×÷ ∀x∈ℝ∃y",
    "“quotes” ‘single’ – — … • § ¶ © ® ™ € £ ¥ ₹ ¢ «guillemets» ‚low‘ „x“",
    "camelCase PascalCase snake_case SCREAMING_CASE kebab-case dotted.name path/to/file.txt "
    "C:\\a\\b",
    "https://user:pa%20ss@host.tld:80/p?q=1#f a@b.co #tag @me ~/x",
    "| a | b |\n|---|:-:|\n| 1 | **2** |\n\n> quote\n\n- [ ] item\n\n```py\npass\n```\n",
    "ABCdefGHIjkl aB1cD2 éÈ ÑañÁ АБВгд ŒœÆæ",
]


CONVERSATIONS = [
    [["user", "Hi"]],
    [["system", "You are terse."], ["user", "Why is the sky blue?\n"]],
    [["user", "  a\n\nb  "], ["assistant", "\n c \n"], ["user", "d\t"]],
    [["system", ""], ["user", ""], ["assistant", ""], ["user", "x" * 50]],
    [["user", CODE], ["assistant", "```py\npass\n```"], ["user", "😀 \u4f60\u597d"]],
    [["user", "One"], ["assistant", "Two and"]],
    [["user", "One"], ["assistant", "Two and  \n"]],
    [["user", "One"], ["assistant", ""]],
    [["user", "<think>1</think> <|im_en d|> a<b>c"], ["assistant", "<tool_call>{}</tool_call>"]],
    [["user", "q"], ["assistant", "a"], ["tool", '{"x": [1]}'], ["user", "and?"]],
]


def random_texts(count: int) -> list[str]:
    """Mixtures of characters from many blocks, so that no rule is only met in tidy text."""
    draw = random.Random(8377)
    alphabets = [
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
        " \t\n\r  \n",
        "0123456789",
        "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
        "éàüßñçøåÉÀ",
        "的一是不了人我在有他",
        "あいうえおアイウエオ",
        "ابتثجحخدذ",
        "अआइईक्षा",
        "😀🏽\u200d\ufe0f🇫🇷",
        "\u0301\u0302\u0303\u0323",
        "абвгдЁЖ",
        "▁ĠĊ\ufffd\u00a0",
    ]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(1, 25)):
            alphabet = draw.choice(alphabets)
            parts.append("".join(draw.choice(alphabet) for _ in range(draw.randint(1, 6))))
        texts.append("".join(parts))
    return texts


def ids_of(model: llama_cpp.Llama, text: str, special: bool) -> list[int]:
    return list(model.tokenize(text.encode(), add_bos=False, special=special))


def golden(path: Path, texts: list[str]) -> list[list[object]]:
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return [[text, ids_of(model, text, True), ids_of(model, text, False)] for text in texts]


def write_vocabulary(source: GGUFReader, pre: str | None, path: Path) -> None:
    """A GGUF file with the vocabulary of `source` and another pre-tokenizer.

    pre: None writes a SentencePiece vocabulary that puts a space in front.
    """
    fields = source.fields
    writer = GGUFWriter(str(path), "llama")
    writer.add_token_list(fields["tokenizer.ggml.tokens"].contents())
    writer.add_token_types(fields["tokenizer.ggml.token_type"].contents())
    if pre is None:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(fields["tokenizer.ggml.scores"].contents())
        writer.add_add_space_prefix(True)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(fields["tokenizer.ggml.merges"].contents())
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def save(name: str, content: object) -> None:
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    (HERE / name).write_text(text.replace('],["', '],\n["') + "\n")


def with_vocabulary(source: GGUFReader, pre: str | None, texts: list[str]) -> list[list[object]]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "vocabulary.gguf"
        write_vocabulary(source, pre, path)
        return golden(path, texts)


def chats(path: Path, template: str) -> list[list[object]]:
    """[messages, text, ids]; a last message of the assistant is left open."""
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    rows: list[list[object]] = []
    for conversation in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in conversation]
        is_open = conversation[-1][0] == "assistant"
        texts, _ = render_jinja_template(
            [messages],
            chat_template=template,
            add_generation_prompt=not is_open,
            continue_final_message=is_open,
            bos_token="<|im_start|>",
            eos_token="<|im_end|>",
        )
        rows.append([messages, texts[0], ids_of(model, texts[0], True)])
    return rows


def main(smollm2: Path, gemma3: Path) -> None:
    texts = TEXTS + random_texts(50)
    save("tokenizer_smollm2.json", golden(smollm2, texts))
    save("tokenizer_gemma3.json", golden(gemma3, texts))
    texts = TEXTS[:35] + random_texts(10)
    reader = GGUFReader(str(smollm2))
    template = reader.fields["tokenizer.chat_template"].contents()
    save("tokenizer_chat.json", chats(smollm2, template))
    by_pre = {}
    for pre in (
        *("default", "gpt-2", "starcoder", "llama-bpe", "smaug-bpe"),
        *("qwen2", "qwen35", "tekken", "gpt-4o"),
    ):
        form = "NFC" if pre.startswith("qwen") else None
        given = [unicodedata.normalize(form, text) if form else text for text in texts]
        by_pre[pre] = [row[2] for row in with_vocabulary(reader, pre, given)]
    save("tokenizer_pre.json", {"texts": texts, "ids": by_pre})
    save("tokenizer_space_prefix.json", with_vocabulary(GGUFReader(str(gemma3)), None, texts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
