"""Prints what ./run demo measured: the answers and a table, from the reports in the folder argv[1].

Exits with 1 where an answer differs from the one computed without reuse.
"""
import json
import pathlib
import sys

# (row, report, the report of the same question without reuse)
RUNS = [
    ("1. first question", "first", "first-plain"),
    ("2. the same again", "again", "first-plain"),
    ("3. other question", "other", "other-plain"),
]


def main(folder):
    reports = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    for name, report, _ in RUNS:
        print(f"{name}: {' '.join(reports[report]['text'].split())}")

    line = "{:<20}{:>8}{:>9}{:>14}{:>14}{:>11}{:>14}"
    print()
    print(line.format("", "prompt", "tokens", "first token", "first token", "decode", "same answer"))
    print(line.format("", "tokens", "reused", "after ms", "no reuse ms", "tokens/s", "as no reuse"))
    all_same = True
    for name, report, plain in RUNS:
        ours, reference = reports[report], reports[plain]
        same = ours["text"] == reference["text"]
        all_same = all_same and same
        print(line.format(name, ours["n_prompt"], ours["n_cached"], f"{ours['ttft_ms']:,.0f}",
                          f"{reference['ttft_ms']:,.0f}", f"{ours['decode_tok_s']:.1f}",
                          "yes" if same else "NO"))
    if not all_same:
        sys.exit("error: reuse changed an answer; that is a bug, please report it with this table")


main(pathlib.Path(sys.argv[1]))
