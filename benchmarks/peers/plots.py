"""The plots of the report."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from results import LLAMA_CPP, OPENVINO, SAMOVAR, compare
from rows import LOWER_IS_BETTER, MANY, MODELS, ROWS, streams_row

# Text stays text and ids do not change, so a repeated run gives a small difference.
STYLE: Any = MappingProxyType({"svg.fonttype": "none", "svg.hashsalt": "samovar", "font.size": 8})
COLOURS = {SAMOVAR: "#c0392b", LLAMA_CPP: "#2c6e9b", OPENVINO: "#7a8b3a"}


def plot_ratios(data: dict[str, Any], path: Path) -> None:
    """Each pair's ratio to llama.cpp, the median and the goal, row by row; higher is better."""
    models = [model for model in MODELS if model.name in data["models"]]
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(models), figsize=(2 * len(models) + 1.6, 3.2), sharey=True, squeeze=False
        )
        for axis, model in zip(axes[0], models, strict=True):
            for place, row in enumerate(ROWS):
                entry = data["models"][model.name]["rows"].get(row)
                found = entry and compare(row, entry, LLAMA_CPP)
                if not found:
                    continue
                inverted = row in LOWER_IS_BETTER
                ratios = [1 / ratio if inverted else ratio for ratio in found.ratios]
                goal = 1 / model.targets[row] if inverted else model.targets[row]
                axis.barh(place, median(ratios), height=0.6, color=COLOURS[SAMOVAR], alpha=0.35)
                axis.plot(ratios, [place] * len(ratios), ".", color=COLOURS[SAMOVAR], ms=4)
                axis.plot([goal], [place], "|", color="black", ms=12, mew=1.5)
            axis.axvline(1, color="grey", lw=0.8)
            axis.set_title(model.title)
            axis.set_xlim(left=0)
            axis.grid(axis="x", lw=0.3)
        names = [row.replace("time to first token", "TTFT") for row in ROWS]
        axes[0][0].set_yticks(range(len(ROWS)), names)
        axes[0][0].invert_yaxis()
        figure.supxlabel("times llama.cpp; points: pairs, bar: median, line: goal", fontsize=8)
        _save(figure, path)


def plot_streams(data: dict[str, Any], path: Path) -> None:
    """Decoding, tokens a second of all streams together."""
    models = [model for model in MODELS if model.name in data["models"]]
    counts = (1, 8, MANY)
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(models), figsize=(2 * len(models) + 0.6, 2.6), squeeze=False
        )
        for axis, model in zip(axes[0], models, strict=True):
            rows = data["models"][model.name]["rows"]
            for peer in (SAMOVAR, LLAMA_CPP, OPENVINO):
                points = []
                for count in counts:
                    row = "decode" if count == 1 else streams_row(count)
                    against = LLAMA_CPP if peer == SAMOVAR else peer
                    found = row in rows and compare(row, rows[row], against)
                    if found:
                        points.append((count, found.ours if peer == SAMOVAR else found.theirs))
                if points:
                    axis.plot(
                        *zip(*points, strict=True), "o-", ms=3, color=COLOURS[peer], label=peer
                    )
            axis.set_title(model.title)
            axis.set_ylim(bottom=0)
            axis.set_xticks(counts)
            axis.grid(lw=0.3)
        axes[0][0].set_ylabel("tokens a second")
        axes[0][0].legend(frameon=False)
        figure.supxlabel("streams", fontsize=8)
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
