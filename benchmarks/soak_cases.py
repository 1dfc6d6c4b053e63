"""Random requests for soak.py, and what is the same in every correct reply to one of them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

WORDS = """
river stone lamp garden winter letter engine paper silver harbour copper window bread cloud market
needle orchard pepper quarry ribbon saddle timber valley walnut yellow zebra
""".split()  # noqa: SIM905  (a list of so many literals is hard to read)
STOPS = [".", "\n", " the", ",", " and", "ing ", "1", "é"]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@dataclass
class Case:
    """A request whose reply is a function of it alone.

    before: the case whose reply is the assistant's turn before this one's last message.
    expected: the reply of the reference server, once it is known.
    """

    number: int
    path: str
    body: dict[str, Any]
    before: Case | None = None
    expected: dict[str, Any] | None = field(default=None, repr=False)

    def encoded(self, *, stream: bool, usage: bool = True) -> bytes:
        """The body as it is sent."""
        body = dict(self.body)
        if self.path == CHAT:
            body["messages"] = self.messages()
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": usage}}
        return json.dumps(body).encode()

    def messages(self) -> list[dict[str, str]]:
        """All messages of the chat up to this case's own."""
        own: list[dict[str, str]] = self.body["messages"]
        if self.before is None:
            return own
        assert self.before.expected is not None
        reply = self.before.expected["choices"]["0"]["text"]
        return [*self.before.messages(), {"role": "assistant", "content": reply}, *own]

    @property
    def streamable(self) -> bool:
        return "best_of" not in self.body


class Catalogue:
    """Makes cases: they share prefixes of many lengths, and no two are the same."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.cases: list[Case] = []
        self._documents = [self._words(n) for n in (12, 40, 90, 90, 160, 240)]
        self._documents[3] = self._documents[2][:300] + self._words(40)

    def fresh(self) -> Case:
        """A case that was never asked before."""
        choose = self._random
        number = len(self.cases)
        kind = choose.choice(["chat", "chat", "turn", "text", "text", "copy", "echo", "list"])
        before = None
        if kind == "turn":
            earlier = [
                case
                for case in self.cases
                if case.path == CHAT and case.expected is not None and self._num_turns(case) < 5
            ]
            before = choose.choice(earlier) if earlier else None
        body = self._sampling()
        if kind in ("chat", "turn"):
            path = CHAT
            text = f"Question {number}: " if before is None and choose.random() < 0.2 else ""
            text += choose.choice(["Tell me about ", "Why is it ", "Write of ", "Ünïcödé 東京 😀 "])
            body["messages"] = [
                {"role": "user", "content": text + self._words(choose.randint(1, 30))}
            ]
            if before is None and choose.random() < 0.5:
                system = {"role": "system", "content": choose.choice(self._documents)}
                body["messages"].insert(0, system)
            if choose.random() < 0.3:
                body |= {"logprobs": True, "top_logprobs": choose.choice([0, 1, 5, 20])}
        else:
            path = TEXT
            start = choose.choice(self._documents)
            start = start[: choose.randint(1, len(start))]
            if kind == "copy":
                items = ", ".join(
                    f'"{word}": {choose.randint(0, 99)}' for word in start.split()[:20]
                )
                body["prompt"] = f"{{{items}}}\nThe same again:\n{{{items[: len(items) // 3]}"
                body |= {"temperature": 0, "max_tokens": choose.randint(20, 60)}
            elif kind == "list":
                body["prompt"] = [
                    start + f" {i} " + self._words(3) for i in range(choose.randint(2, 3))
                ]
            else:
                body["prompt"] = start + " " + self._words(choose.randint(1, 20))
            if kind == "echo":
                body |= {"echo": True, "max_tokens": choose.choice([0, 0, 6, 20])}
            if choose.random() < 0.4:
                body["logprobs"] = choose.choice([0, 1, 5])
            if choose.random() < 0.1 and body["max_tokens"]:
                body |= {"best_of": body.get("n", 1) + 1}
        case = Case(number, path, body, before)
        self.cases.append(case)
        return case

    def known(self) -> Case:
        """A case that was asked before, more often a late one."""
        at = max(self._random.random(), self._random.random())
        return self.cases[int(at * len(self.cases))]

    def _num_turns(self, case: Case) -> int:
        return 1 + (self._num_turns(case.before) if case.before else 0)

    def _words(self, count: int) -> str:
        return " ".join(self._random.choice(WORDS) for _ in range(count))

    def _sampling(self) -> dict[str, Any]:
        choose = self._random
        long = choose.random() < 0.1
        body: dict[str, Any] = {
            "max_tokens": choose.randint(100, 400) if long else choose.randint(1, 48)
        }
        if choose.random() < 0.6:
            body |= {"temperature": choose.choice([0.3, 0.8, 1.3]), "seed": choose.getrandbits(40)}
            optional = {
                "top_p": choose.choice([0.5, 0.95, 1.0]),
                "top_k": choose.choice([1, 5, 40]),
                "min_p": 0.02,
                "frequency_penalty": 0.7,
                "presence_penalty": -0.4,
                "repeat_penalty": 1.15,
                "logit_bias": {str(choose.randint(0, 20000)): 3, "30": -100},
            }
            for name, value in optional.items():
                if choose.random() < 0.25:
                    body[name] = value
        else:
            body["temperature"] = 0
        if choose.random() < 0.25:
            body["n"] = choose.randint(2, 3)
        if choose.random() < 0.25:
            body["stop"] = choose.sample(STOPS, choose.randint(1, 3))
        return body


class Folded:
    """What must never differ of a reply, from one object or from the events of a stream."""

    def __init__(self) -> None:
        self.choices: dict[str, dict[str, Any]] = {}
        self.usage: dict[str, int] | None = None
        self.fingerprint = ""

    def add(self, reply: dict[str, Any]) -> None:
        """Takes a whole reply or one event."""
        self.fingerprint = reply["system_fingerprint"]
        for told in reply["choices"]:
            blank: dict[str, Any] = {"text": "", "finish_reason": None, "logprobs": {}}
            choice = self.choices.setdefault(str(told["index"]), blank)
            content = told.get("message", told.get("delta", {})).get("content")
            choice["text"] += told.get("text", content) or ""
            choice["finish_reason"] = told["finish_reason"] or choice["finish_reason"]
            for name, values in (told["logprobs"] or {}).items():
                if values:
                    choice["logprobs"].setdefault(name, []).extend(values)
        if reply.get("usage"):
            names = ("prompt_tokens", "completion_tokens")
            self.usage = {name: reply["usage"][name] for name in names}

    def result(self) -> dict[str, Any]:
        """All of it, as it is compared."""
        return {"choices": self.choices, "usage": self.usage, "fingerprint": self.fingerprint}


def is_beginning(part: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Whether a reply that was broken off is the beginning of the whole one."""
    return all(
        whole["choices"][index]["text"].startswith(choice["text"])
        for index, choice in part["choices"].items()
    )
