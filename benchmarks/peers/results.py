"""The raw figures of all measurements in one JSON file, and what follows from them.

    {"runs": {TIME: {machine, versions}}, "models": {NAME: {"file": ..., "rows": {ROW: entry}}}}

An entry has `run`, `busy` (the share of the machine that others used just before), `work` and
`pairs`: contender -> one list of samples for each pair, in the order in which they were measured;
null where a contender was left out of a pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rows import LOWER_IS_BETTER

SAMOVAR, OPENVINO, LLAMA_CPP = "samovar", "openvino", "llama.cpp"


class Results:
    """The file; measuring a row again replaces what is known of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.data: dict[str, Any] = (
            json.loads(path.read_text()) if path.exists() else {"runs": {}, "models": {}}
        )

    def add_run(self, time: str, facts: dict[str, Any]) -> None:
        """What holds for all measurements of a run."""
        self.data["runs"][time] = facts

    def add(self, model: str, facts: dict[str, Any], rows: dict[str, dict[str, Any]]) -> None:
        """Rows of a model, measured together; the file is written."""
        known = self.data["models"].setdefault(model, {"rows": {}})
        known.update(facts)
        known["rows"].update(rows)
        used = {
            row["run"] for each in self.data["models"].values() for row in each["rows"].values()
        }
        self.data["runs"] = {k: v for k, v in self.data["runs"].items() if k in used}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.data, indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Samovar and one peer in one row.

    ratios: of the medians of each pair; below 1 is better for times.
    """

    ours: float
    theirs: float
    ratios: list[float]
    setting: str

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    def reaches(self, row: str, target: float) -> bool:
        """Whether the median ratio is as good as the target."""
        return self.ratio <= target if row in LOWER_IS_BETTER else self.ratio >= target


def compare(row: str, entry: dict[str, Any], peer: str) -> Comparison | None:
    """Samovar beside the best setting of a peer, or None if that has no figures."""
    candidates = list(_comparisons(entry, peer))
    if not candidates:
        return None
    # A setting with fewer pairs was left out of them because it was the slower one.
    most = max(len(each.ratios) for each in candidates)
    complete = [each for each in candidates if len(each.ratios) == most]
    pick = min if row in LOWER_IS_BETTER else max
    return pick(complete, key=lambda each: each.theirs)


def typical(ours: list[list[float] | None], others: list[list[float] | None]) -> float:
    """The median of the ratios of pairs."""
    return median(median(a) / median(b) for a, b in zip(ours, others, strict=True) if a and b)


def _comparisons(entry: dict[str, Any], peer: str) -> Iterator[Comparison]:
    ours = entry["pairs"][SAMOVAR]
    for name, theirs in entry["pairs"].items():
        if not name.startswith(peer):
            continue
        both = [(median(a), median(b)) for a, b in zip(ours, theirs, strict=True) if a and b]
        if both:
            yield Comparison(
                ours=median(a for a, _ in both),
                theirs=median(b for _, b in both),
                ratios=[a / b for a, b in both],
                setting=name,
            )
