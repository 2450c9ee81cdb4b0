"""Compares figures with the bars that they have to meet."""
from __future__ import annotations


class Bars:
    """Prints a line for each figure; `met` is false once a bar is missed."""

    def __init__(self):
        self.met = True

    def judge(self, what, value, bar, unit="", lacks=""):
        """`value` may be at most `bar`. `lacks`: why the figure can't be judged."""
        is_met = value <= bar and not lacks
        self.met &= is_met
        verdict = f"NOT JUDGED, {lacks}" if lacks else "met" if is_met else "MISSED"
        print(f"{what}: {value:.2f}{unit}, bar {bar:.3g}{unit}: {verdict}", flush=True)

    def status(self):
        """The exit status of the process."""
        return 0 if self.met else 1
