"""The same item in several ways: which cases have another result, whose that is, and the table of it all."""

import collections
import dataclasses
import fnmatch

from .execution import CRASHES, END, SLOW, STOPS

REPEATS = 2

# Verdicts, from bad to harmless. A case is zfolio's where its result differs each time that it runs with zfolio and
# never alone.
OURS, SOMETIMES, EXPECTED, FLAKE, BETTER = "zfolio's", "sometimes", "expected", "flake", "only alone"


@dataclasses.dataclass
class Difference:
    """A case whose results differ: all results that were seen alone, and all with zfolio."""

    item: object
    way: str
    case: str
    alone: list
    zfolio: list
    verdict: str = OURS
    reason: str = ""

    def __str__(self):
        seen = lambda results: ", ".join(f"{result} {count} of {len(results)}" if len(set(results)) > 1 else f"{result} ({count})"
                                         for result, count in collections.Counter(results).items())
        return (f"{self.verdict}: {self.item.suite} {self.item.name}, {self.way}: {self.case}\n"
                f"    alone: {seen(self.alone)}; with zfolio: {seen(self.zfolio)}" + (f"; {self.reason}" if self.reason else ""))


def shortened(differences, most=10):
    """No more than some of each item in one way: where a disk was full for a moment they are hundreds. table.txt has all."""
    count, shown = collections.Counter(), []
    for difference in differences:
        key = difference.item.suite, difference.item.name, difference.way
        count[key] += 1
        if count[key] <= most:
            shown.append(difference)
    return shown + [f"and {number - most} more of {suite} {name}, {way}" for (suite, name, way), number in count.items() if number > most]


def differing(alone, zfolio):
    """The cases that differ between two executions, with the end where that says more than the cases."""
    cases = [case for case in {**alone.cases, **zfolio.cases} if alone.result(case) != zfolio.result(case)]
    if zfolio.crashed() and not alone.crashed():
        # What was not reached follows from the end.
        cases = [case for case in cases if zfolio.result(case) != "not reached"]
    if zfolio.stopped():
        cases.append(STOPS)
    if zfolio.end == SLOW:
        return cases
    if alone.end != zfolio.end and (not cases or alone.crashed() or zfolio.crashed()):
        cases.append(END)
    return cases


def judge(difference, expected):
    """Sets the verdict. Known differences have a reason that holds; a crash counts however seldom it is."""
    alone, zfolio = set(difference.alone), set(difference.zfolio)
    for pattern, reason in expected:
        if fnmatch.fnmatchcase(f"{difference.item.name} {difference.case}", pattern):
            difference.verdict, difference.reason = EXPECTED, reason
            return
    if zfolio & CRASHES - alone:
        difference.verdict = OURS
    elif zfolio == {"ok"}:
        difference.verdict = BETTER
    elif len(alone) > 1 or zfolio <= alone:
        difference.verdict = FLAKE
    elif alone & zfolio:
        difference.verdict = SOMETIMES
    else:
        difference.verdict = OURS


class Row:
    """The sums of one suite in one way. So large a `part` of its cases must be reached."""

    def __init__(self, suite, way, part):
        self.suite, self.way, self.part = suite, way, part
        self.cases = self.same = self.unreached = self.items = self.stops = 0
        self.alone_cpu_s = self.zfolio_cpu_s = self.out_bytes = 0
        self.verdicts = collections.Counter()
        self.differences, self.nothing_of = [], []

    def add(self, item, alone, zfolio, differences):
        self.items += 1
        total = len({**alone.cases, **zfolio.cases}) or 1
        different = len({difference.case for difference in differences} - {END, STOPS})
        unreached = sum(1 for case in alone.cases if zfolio.result(case) == "not reached")
        self.cases += total
        self.unreached += unreached
        if unreached and unreached == len(alone.cases):
            self.nothing_of.append(item.name)
        self.same += total - different - unreached
        self.alone_cpu_s += alone.cpu_s
        self.zfolio_cpu_s += zfolio.cpu_s
        self.out_bytes += zfolio.out_bytes()
        self.stops += zfolio.stopped()
        self.differences += differences
        self.verdicts.update(difference.verdict for difference in differences)

    def shortfall(self):
        """What is to be said where too few cases were reached."""
        reached = self.cases - self.unreached
        if reached < self.part * self.cases:
            return f"{self.suite}, {self.way}: only {reached} of {self.cases} cases were reached, less than {self.part:.0%}"
        return None


HEADS = ("suite", "way", "items", "cases", "same", "not reached", OURS, SOMETIMES, EXPECTED, FLAKE, "alone CPU s", "zfolio CPU s", "out MiB", "stops")


def table(rows):
    cells = [HEADS]
    for row in rows:
        others = row.verdicts[FLAKE] + row.verdicts[BETTER]
        cells.append((row.suite, row.way, row.items, row.cases, row.same, row.unreached, row.verdicts[OURS], row.verdicts[SOMETIMES], row.verdicts[EXPECTED],
                      others, f"{row.alone_cpu_s:.0f}", f"{row.zfolio_cpu_s:.0f}", row.out_bytes >> 20, row.stops))
    widths = [max(len(str(line[column])) for line in cells) for column in range(len(HEADS))]
    return [" | ".join(str(cell).ljust(width) if column < 2 else str(cell).rjust(width)
                       for column, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in cells]
