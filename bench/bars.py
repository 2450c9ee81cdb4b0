"""Figures beside the bars that they have to meet."""
from __future__ import annotations


class Bars:
    """What was measured, a line for each; `met` until one is not."""

    def __init__(self):
        self.met = True

    def judge(self, what, value, bar, unit="", lacks=""):
        """`value` may be `bar` at most. `lacks`: why it says nothing of the bar."""
        is_met = value <= bar and not lacks
        self.met &= is_met
        verdict = f"NOT JUDGED, {lacks}" if lacks else "met" if is_met else "MISSED"
        print(f"{what}: {value:.2f}{unit}, bar {bar:.3g}{unit}: {verdict}", flush=True)

    def status(self):
        """Of the process."""
        return 0 if self.met else 1
