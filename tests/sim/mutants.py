"""Mutants of the step function of moves: its source with one planted fault each,
which the simulator must find.

`mutants.py NAME OUT` writes the source file with the fault of that name; `mutants.py --file NAME`
says which file it is of. A fault whose text is no longer in the source, or is there twice, is an
error: then it must be planted anew.
"""
import pathlib
import sys

SOURCES = pathlib.Path(__file__).parents[2] / "src/core/migration"
# name: (what is wrong, file, text, what stands there instead)
MUTANTS = {
    "crc": (
        "a copy is switched to whatever its size and CRC",
        "steps.c",
        "else if (!right)\n",
        "else if (false)\n",
    ),
    "confirm": (
        "a copy is dropped without others that are confirmed",
        "steps.c",
        "else if (c.survivor && c.domains >= m->opts.domains)",
        "else if (true)",
    ),
    "grace": (
        "readers have no grace",
        "steps.c",
        "mv->grace_ms = time_after(m->now_ms, m->opts.grace_ms);",
        "mv->grace_ms = 0;",
    ),
    "domains": (
        "one other copy is enough, however many are wanted",
        "steps.c",
        "c.domains >= m->opts.domains",
        "c.domains >= 1",
    ),
    "itself": (
        "the copy that is to go counts among those that stay",
        "steps.c",
        "bool counts = !surplus && ",
        "bool counts = ",
    ),
    "device": (
        "a copy on a device counts as one that lasts",
        "steps.c",
        "bool counts = !surplus && copies[i].place.tier != HL_API_TIER_L1;",
        "bool counts = !surplus;",
    ),
    "damaged": (
        "a damaged copy counts as one that stays",
        "steps.c",
        "        if (!right)\n            continue;\n",
        "",
    ),
    "unsure": (
        "a switch that may have been committed is undone without the journal",
        "steps.c",
        "        else\n            move_revert(m, mv, st);",
        (
            "        else {\n"
            "            move_revert(m, mv, st);\n"
            "            move_clean(m, mv, HL_MOVE_PHASE_UNDOING);\n"
            "        }"
        ),
    ),
    "stop": (
        "the copy of a move that is cancelled goes on",
        "steps.c",
        (
            "    if (mv->rec.phase == HL_MOVE_PHASE_COPYING) {\n"
            "        migration_act(m, mv, HL_MOVE_STOP);\n"
        ),
        "    if (mv->rec.phase == HL_MOVE_PHASE_COPYING) {\n",
    ),
    "kept": (
        "an old copy that is needed after all stays hidden",
        "steps.c",
        "move_erase(m, mv, true);\n    else if (m->now_ms < mv->grace_ms)",
        "move_erase(m, mv, move_keeps_surplus(mv));\n    else if (m->now_ms < mv->grace_ms)",
    ),
    "needed": (
        "an old copy that is needed is dropped in the end",
        "steps.c",
        " || (cleaning && c.surplus && mv->kept))",
        ")",
    ),
    "answers": (
        "an answer is taken for that of another order",
        "migration.c",
        "mv->asked != 0 && mv->asked == order",
        "mv->asked != 0",
    ),
    "deadline": (
        "phases have no deadline",
        "steps.c",
        "if (m->now_ms >= mv->due_ms)",
        "if (false)",
    ),
    "erase": (
        "records stay in the journal",
        "steps.c",
        "    move_set(m, mv, HL_MOVE_PHASE_ENDING);\n    move_ask(m, mv, HL_MOVE_ERASE);",
        "    move_end(m, mv, mv->rec.status);",
    ),
    "early": (
        "a move goes on as if its switch was committed",
        "steps.c",
        "HL_ECORRUPT);\n    else\n        move_switch(m, mv);",
        "HL_ECORRUPT);\n    else\n        move_switched(m, mv);",
    ),
    "hidden": (
        "the target's copy is not offered after the switch",
        "migration.c",
        "!place_equal(place, move_surplus(mv))",
        "!place_equal(place, mv->rec.order.goal)",
    ),
}


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--file":
        print(MUTANTS[sys.argv[2]][1], end="")
        return 0
    if len(sys.argv) != 3 or sys.argv[1] not in MUTANTS:
        print(
            f"usage: mutants.py NAME OUT | --file NAME; names: {' '.join(MUTANTS)}", file=sys.stderr
        )
        return 2
    _, file, old, new = MUTANTS[sys.argv[1]]
    text = (SOURCES / file).read_text()
    if text.count(old) != 1:
        print(
            (
                f"mutants.py: the text of the fault '{sys.argv[1]}' is {text.count(old)} times in"
                f" {SOURCES / file}; plant it anew"
            ),
            file=sys.stderr,
        )
        return 1
    pathlib.Path(sys.argv[2]).write_text(text.replace(old, new))
    return 0


sys.exit(main())
