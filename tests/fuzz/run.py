#!/usr/bin/python3
"""./run fuzz [SECONDS] [TARGET...]: libFuzzer on parsers of foreign bytes,
as many at a time as there are CPUs.

Ends with a table. What is found lies in build-fuzz/fuzz (`build-fuzz/fuzz/fuzz_TARGET FILE` shows
it again) and makes the exit status 1. Inputs that reach new code are kept in
build-fuzz/corpus/TARGET, beside those of tests/fuzz/corpus.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build-fuzz"
PROGRESS = re.compile(rb"^#(\d+)\t\S+ +cov: (\d+) .*?corp: (\d+)/", re.MULTILINE)
RATE = re.compile(rb"^stat::average_exec_per_sec: +(\d+)", re.MULTILINE)
RUNS = re.compile(rb"^stat::number_of_executed_units: +(\d+)", re.MULTILINE)
FOUND = re.compile(rb"Test unit written to (\S+)")
KIND = re.compile(rb"SUMMARY: (.*)|runtime error: (.*)|ERROR: libFuzzer: (.*)")


class Result(NamedTuple):
    target: str
    runs: str
    rate: str
    edges: str
    corpus: str
    found: str  # "" or the file with the input, and what it was

    @property
    def failed(self) -> bool:
        return self.found != ""


def targets() -> list[str]:
    sources = [*ROOT.glob("tests/fuzz/fuzz_*.c"), *ROOT.glob("tests/fuzz/fuzz_*.cpp")]
    return sorted(source.stem.removeprefix("fuzz_") for source in sources)


def last(pattern: re.Pattern[bytes], text: bytes, group: int = 1) -> str:
    matches = list(pattern.finditer(text))
    return matches[-1][group].decode() if matches else "-"


def fuzz(target: str, seconds: int) -> Result:
    corpus = BUILD / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    command = [
        BUILD / "fuzz" / f"fuzz_{target}",
        f"-max_total_time={seconds}",
        "-rss_limit_mb=2048",
        "-timeout=25",
        "-print_final_stats=1",
        f"-artifact_prefix={BUILD}/fuzz/{target}-",
        corpus,
    ]
    kept = ROOT / "tests" / "fuzz" / "corpus" / target
    if kept.is_dir():
        command.append(kept)
    log = BUILD / "fuzz" / f"{target}.log"
    with log.open("wb") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    text = log.read_bytes()
    found = ""
    if code != 0:
        kind = next(
            (
                part.decode(errors="replace")
                for match in KIND.finditer(text)
                for part in match.groups()
                if part
            ),
            f"exit {code}",
        )
        found = f"{last(FOUND, text)}: {kind}"
    return Result(
        target,
        last(RUNS, text),
        last(RATE, text),
        last(PROGRESS, text, 2),
        last(PROGRESS, text, 3),
        found,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./run fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seconds", nargs="?", default="60", help="for each target (60)")
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"all if none: {', '.join(targets())}"
    )
    args = parser.parse_args()
    if not args.seconds.isdecimal() or int(args.seconds) == 0:
        parser.error(f"SECONDS is a number, not '{args.seconds}'")
    unknown = set(args.targets) - set(targets())
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are: {', '.join(targets())}")
    results = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [
            pool.submit(fuzz, target, int(args.seconds)) for target in args.targets or targets()
        ]
        for job in concurrent.futures.as_completed(jobs):
            results.append(job.result())
            print(f"fuzz: {results[-1].target}: {results[-1].found or 'nothing found'}", flush=True)
    print(f"\n{'target':16}{'runs':>12}{'per second':>12}{'edges':>8}{'corpus':>8}  found")
    for r in sorted(results):
        print(f"{r.target:16}{r.runs:>12}{r.rate:>12}{r.edges:>8}{r.corpus:>8}  {r.found or '-'}")
    return 1 if any(r.failed for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
