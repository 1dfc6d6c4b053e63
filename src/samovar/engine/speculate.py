"""Drafts from a sequence's own tokens: they change the speed, never the reply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from itertools import accumulate

GRAMS = (4, 2)  # lengths of the runs of tokens that are looked up, the best first
LONGEST_MATCH = 16  # beyond it a longer match tells no more
MOST_DRAFTS = 12  # in one step
INDEX_TOKENS = 1024  # that are indexed in one step: all of a long prompt would make others wait
MOST_REPLIES = 4  # with more replies in a step its matmuls are busy anyway

# How probably the next token is the one that followed a match of at least so many tokens before.
# Only a beginning: what a sequence shows itself soon outweighs it.
PRIORS = ((16, 0.95), (8, 0.85), (5, 0.7), (4, 0.6), (3, 0.45), (2, 0.3), (0, 0.0))
PRIOR_WEIGHT = 3.0
FORGET = 0.96  # weight of what was seen, for each time it is seen again

SMOOTHING = 0.15
ROW_COST = 0.15  # of a further row, as a share of a step without drafts; only a beginning, too
SLOWEST_SAMPLE = 1.5  # a step that lasts longer than expected by more was disturbed
REFRESH = 32  # after so many steps with drafts one without tells again how long it lasts
TRIALS = 0.005  # share of the time that goes into finding out whether what did not pay does now
TRIAL_WEIGHT = 0.5  # of what a trial tells; there are few


class Lookup:
    """Where the last tokens of one sequence occurred before, and what they are good for.

    A match that has begun is followed for as long as the sequence repeats it.  Every token tells
    whether a draft would have been right, so that it costs nothing to find out whether drafts pay.
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}  # behind the last occurrence of each run
        self._indexed: range | None = None  # the ends that are in it
        self._num_seen = 0
        self._source: int | None = None  # of the next token, if it goes on as before
        self._match = 0
        self._right = dict.fromkeys((length for length, _ in PRIORS), 0.0)
        self._tried = dict(self._right)

    def propose(self, tokens: Tokens[int], most: int) -> tuple[int, ...]:
        """What should follow `tokens`, which have only grown since the last call."""
        self._learn(tokens)
        self._index(tokens)
        if self._source is None:
            self._find(tokens)
        if self._source is None:
            return ()
        drafts: list[int] = []
        for i in range(self._source, self._source + most):  # it may run into the drafts themselves
            drafts.append(tokens[i] if i < len(tokens) else drafts[i - len(tokens)])
        return tuple(drafts)

    def chance(self, ahead: int) -> float:
        """How probably the draft with index `ahead` is right if those before it are."""
        length, prior = _prior(self._match + ahead)
        seen = self._tried[length] + PRIOR_WEIGHT
        return (self._right[length] + PRIOR_WEIGHT * prior) / seen

    def _learn(self, tokens: Tokens[int]) -> None:
        for i in range(self._num_seen, len(tokens)):
            if self._source is None:
                break
            length, _ = _prior(self._match)
            right = tokens[i] == tokens[self._source]
            self._tried[length] = self._tried[length] * FORGET + 1
            self._right[length] = self._right[length] * FORGET + right
            self._source = self._source + 1 if right else None
            self._match += 1
        self._num_seen = len(tokens)

    def _index(self, tokens: Tokens[int]) -> None:
        """Adds what is new, then what the first call has found, from its end to its beginning."""
        known = self._indexed or range(len(tokens), len(tokens))
        stop = min(len(tokens), known.stop + INDEX_TOKENS)
        start = max(0, known.start - (INDEX_TOKENS - (stop - known.stop)))
        for end in range(known.stop, stop):
            for gram in GRAMS:
                if end >= gram:
                    self._ends[tuple(tokens[end - gram : end])] = end
        for end in reversed(range(start, known.start)):
            for gram in GRAMS:
                if end >= gram:  # a later occurrence of the same run stays
                    self._ends.setdefault(tuple(tokens[end - gram : end]), end)
        self._indexed = range(start, stop)

    def _find(self, tokens: Tokens[int]) -> None:
        for gram in GRAMS:
            source = self._ends.get(tuple(tokens[-gram:]))
            if source is not None and len(tokens) >= gram:
                self._source, self._match = source, gram
                while (
                    self._match < min(source, LONGEST_MATCH)
                    and tokens[source - self._match - 1] == tokens[-self._match - 1]
                ):
                    self._match += 1
                return


def _prior(match: int) -> tuple[int, float]:
    """The length that a match counts as, and the chance that is assumed for it at first."""
    return next(each for each in PRIORS if match >= each[0])


class Speculation:
    """Decides how many drafts each reply gets in a step.

    A step with drafts yields more tokens but lasts longer.  The drafts that are most probably right
    are added for as long as that raises the expected tokens per second.  mode: "auto"; "ngram",
    which drafts wherever there is a match; "off".

    A number of drafts that has cost more than it was worth is not made any more, so it would never
    be known if that was a disturbance.  So it is tried again whenever the time that would be lost
    by it, if nothing has changed, is a small share of the time since the last trial.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._plain_s: dict[int, float] = {}  # duration without drafts, by number of replies
        # Over that, by numbers of replies and drafts; what was not measured longest comes first.
        self._cost: dict[tuple[int, int], float] = {}
        self._num_drafting = 0  # steps with drafts since the last one without
        self._num_since_trial = 0  # steps
        self._tried: tuple[int, int] | None = None  # the numbers of a trial that was just begun

    def may_draft(self, num_replies: int) -> bool:
        """Whether a step with so many replies may hold drafts at all."""
        return self._mode != "off" and 0 < num_replies <= MOST_REPLIES

    def share(self, lookups: Mapping[int, tuple[Lookup, int]]) -> dict[int, int]:
        """How many drafts each of the replies of a step should get.

        lookups: by any key, each with the number of drafts that it has.
        """
        most = MOST_DRAFTS // len(lookups)
        if self._mode == "ngram":
            return {key: min(most, found) for key, (_, found) in lookups.items()}
        if len(lookups) not in self._plain_s or self._num_drafting >= REFRESH:
            return {}
        return self._best(len(lookups), self._by_chance(lookups, most))

    def note(self, num_replies: int, num_drafts: int, seconds: float) -> None:
        """Learns from a step of `num_replies` replies and nothing else."""
        self._num_since_trial += 1
        weight = TRIAL_WEIGHT if self._tried == (num_replies, num_drafts) else SMOOTHING
        self._tried = None
        if num_drafts == 0:
            self._num_drafting = 0
            plain_s = self._plain_s.setdefault(num_replies, seconds)
            sample = min(seconds, SLOWEST_SAMPLE * plain_s)
            self._plain_s[num_replies] += SMOOTHING * (sample - plain_s)
        elif num_replies in self._plain_s:
            self._num_drafting += 1
            cost = self._expected_cost(num_replies, num_drafts)
            sample = min(seconds / self._plain_s[num_replies], SLOWEST_SAMPLE * cost)
            self._cost.pop((num_replies, num_drafts), None)
            self._cost[num_replies, num_drafts] = cost + weight * (sample - cost)

    def _expected_cost(self, num_replies: int, num_drafts: int) -> float:
        return self._cost.get((num_replies, num_drafts), 1 + ROW_COST * num_drafts)

    def _by_chance(
        self, lookups: Mapping[int, tuple[Lookup, int]], most: int
    ) -> list[tuple[float, int]]:
        """What each possible draft adds to the tokens of a step, with its key; largest first."""
        gains: list[tuple[float, int]] = []
        for key, (lookup, found) in lookups.items():
            all_right = 1.0
            for ahead in range(min(most, found)):
                all_right *= lookup.chance(ahead)
                gains.append((all_right, key))
        return sorted(gains, key=lambda gain: -gain[0])  # stable: a draft never precedes its base

    def _best(self, num_replies: int, gains: list[tuple[float, int]]) -> dict[int, int]:
        tokens = list(accumulate((gain for gain, _ in gains), initial=float(num_replies)))
        costs = [self._expected_cost(num_replies, n) for n in range(len(tokens))]
        best = max(range(len(tokens)), key=lambda n: tokens[n] / costs[n])
        num_drafts = self._trial(num_replies, tokens, costs, best) or best
        return Counter(key for _, key in gains[:num_drafts])

    def _trial(
        self, num_replies: int, tokens: list[float], costs: list[float], best: int
    ) -> int | None:
        """A number of drafts to be tried although `best` promises more, if it is time for that.

        tokens, costs: what is expected of steps with 0, 1, ... drafts.
        """
        best_rate = tokens[best] / costs[best]
        row_cost = min(ROW_COST, (costs[best] - 1) / best) if best else ROW_COST
        for replies, num_drafts in self._cost:
            if replies != num_replies or num_drafts >= len(tokens):
                continue
            lost = costs[num_drafts] - tokens[num_drafts] / best_rate
            hoped = tokens[num_drafts] / (1 + row_cost * num_drafts)  # if it was disturbed
            if lost <= 0 or hoped <= best_rate:
                continue
            if lost > TRIALS * self._num_since_trial:
                return None
            self._num_since_trial, self._tried = 0, (replies, num_drafts)
            return num_drafts
        return None
