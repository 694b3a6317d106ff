"""The figures as tables of at most 80 columns, as JSON, and as a dated page under docs/bench."""

import datetime
import os
import platform
import subprocess
from statistics import median

from . import undo as u

MIB, GIB = 1 << 20, 1 << 30
SEQUENTIAL = ("write", "read", "reread")
# Phase, least ratio to the kernel, name in the list of bars.
BARS = [("write", 1.8, "sequential write"), ("read", 2.5, "sequential read"), ("zipf", 1.0, "Zipf(0.99)")]
QUIET_BAR = 0.01
MEMORY_BAR = 0.1


class System:
    """One memory system and its runs; every figure is the median over them."""

    def __init__(self, name):
        self.name, self.runs = name, []

    def phase(self, name, figure):
        return self.over_runs(lambda run: run.phases[name][figure])

    def speed(self, name):
        """MB/s of a sequential phase, thousands of accesses a second of another."""
        return self.phase(name, "mb_per_s") if name in SEQUENTIAL else self.phase(name, "accesses_per_s") / 1000

    def cpu_s_per_gib(self, name):
        """CPU seconds of everything for each GiB of pages that the program accessed."""
        cpu_s = self.phase(name, "cpu_s")
        return None if cpu_s is None else cpu_s / (self.phase(name, "accesses") * 4096 / GIB)

    def over_runs(self, figure):
        values = [value for value in map(figure, self.runs) if value is not None]
        return median(values) if values else None

    def pool(self):
        """Peak of stored bytes, and the pool's bytes at that time; None where the system does not say.

        Pages of zeros are left out: zfolio counts them as stored, and the kernel (since 6.12) has a bit for each beside its swap
        and never gives them to zswap. They are the same part of what is out as of the workload's array.
        """
        def of(run):
            if run.summary is None:
                return run.watch.stored_peak_bytes, run.watch.pool_at_stored_peak_bytes
            stored = run.figure("stored_peak_bytes")
            return stored and stored * (1 - run.shares["zero"]), run.figure("pool_at_peak_bytes")
        pairs = [pair for pair in map(of, self.runs) if pair[0] and pair[1]]
        return [median(side) for side in zip(*pairs)] if pairs else None


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}".replace(",", " ")


def mib(value):
    return "-" if value is None else number(value / MIB) + " MiB"


def phases_of(systems):
    return list(next(system.runs[0].phases for system in systems if system.runs))


def speed_table(kernel, others):
    lines = ["speed           " + f"{kernel.name:>13}" + "".join(f"{o.name:>13} {'ratio':>6}" for o in others)]
    for phase in phases_of([kernel, *others]):
        line = f"{phase:8}" + f"{'MB/s' if phase in SEQUENTIAL else 'k/s':>8}"
        base = kernel.speed(phase) if kernel.runs else None
        digits = 0 if phase in SEQUENTIAL else 1
        line += f"{number(base, digits):>13}"
        for other in others:
            mine = other.speed(phase) if other.runs else None
            ratio = f"{mine / base:.2f}x" if mine and base else "-"
            line += f"{number(mine, digits):>13} {ratio:>6}"
        lines.append(line)
    return lines


def latency_table(systems):
    lines = ["latency, us" + "".join(f"{system.name:>23}" for system in systems),
             f"{'':11}" + f"{'p50':>7}{'p99':>7}{'max':>9}" * len(systems)]
    for phase in phases_of(systems):
        line = f"{phase:11}"
        for system in systems:
            for name, width in (("p50_ns", 7), ("p99_ns", 7), ("max_ns", 9)):
                us = system.phase(phase, name) / 1000 if system.runs else None
                line += f"{number(us, 1 if us is not None and us < 100 else 0):>{width}}"
        lines.append(line)
    return lines


def cost_table(systems):
    lines = ["CPU s per GiB accessed" + "".join(f"{system.name:>15}" for system in systems)]
    for phase in phases_of(systems):
        lines.append(f"{phase:22}" + "".join(
            f"{number(system.cpu_s_per_gib(phase) if system.runs else None, 2):>15}" for system in systems))
    return lines


def memory_table(systems):
    rows = [
        ("allowed, with pool", lambda s: mib(s.over_runs(lambda r: r.total_bytes))),
        ("peak, with pool", lambda s: mib(s.over_runs(lambda r: r.peak_with_pool_bytes()))),
        ("stored at peak", lambda s: mib(s.pool() and s.pool()[0])),
        ("pool then", lambda s: mib(s.pool() and s.pool()[1])),
        ("pool's ratio", lambda s: number(s.pool() and s.pool()[0] / s.pool()[1], 2)),
        ("written to disk", lambda s: mib(s.over_runs(lambda r: r.watch.pages["pswpout"] * 4096))),
        ("CPUs busy with others", lambda s: number(s.over_runs(lambda r: r.others_cpus), 2)),
    ]
    lines = ["memory                " + f"".join(f"{system.name:>15}" for system in systems)]
    for name, cell in rows:
        lines.append(f"{name:22}" + "".join(f"{cell(system) if system.runs else '-':>15}" for system in systems))
    return lines


def bar_lines(kernel, others, quiet):
    """Each bar with its verdict: `met`, `missed`, or `not measured`."""
    lines, verdicts = ["bars"], []
    for phase, least, name in BARS:
        line = f"  {name:18} >= {least:.1f}x "
        for other in others:
            if kernel.runs and other.runs and phase in kernel.runs[0].phases:
                ratio = other.speed(phase) / kernel.speed(phase)
                verdict = "met" if ratio >= least else "missed"
                line += f"  {other.name[7:]} {ratio:.2f}x {verdict:6}"
                verdicts.append({"bar": name, "system": other.name, "ratio": ratio, "least": least, "met": ratio >= least})
            else:
                line += f"  {other.name[7:]} not measured"
        lines.append(line.rstrip())
    line = f"  {'memory over limit':18} <= {MEMORY_BAR:.0%} "
    for other in others:
        peaks = [run.peak_with_pool_bytes() / run.total_bytes for run in other.runs if run.peak_bytes]
        if peaks:
            more = max(peaks) - 1
            line += f"  {other.name[7:]} {more:+.0%} {'met' if more <= MEMORY_BAR else 'missed':6}"
            verdicts.append({"bar": "memory", "system": other.name, "ratio": more + 1, "met": more <= MEMORY_BAR})
        else:
            line += f"  {other.name[7:]} not measured"
    lines.append(line.rstrip())
    line = f"  {'no pressure':18} <= {QUIET_BAR:.0%}  "
    if quiet:
        plain, zfolio = ([run.seconds for run in system.runs] for system in quiet)
        more = median(zfolio) / median(plain) - 1
        line += (f"  {more:+.2%} {'met' if more <= QUIET_BAR else 'missed'} "
                 f"(plain {median(plain):.3f} s, of {min(plain):.3f} to {max(plain):.3f})")
        verdicts.append({"bar": "no pressure", "ratio": more + 1, "met": more <= QUIET_BAR})
    else:
        line += "  not measured"
    return lines + [line], verdicts


def raw(system):
    """Everything that was measured, run by run."""
    return {"name": system.name, "runs": [
        {"phases": run.phases, "hash": run.hash, "seconds": run.seconds, "cpu_s": run.cpu_s,
         "total_bytes": run.total_bytes, "peak_bytes": run.peak_bytes, "pages": run.watch.pages,
         "zswap_pool_peak_bytes": run.watch.pool_peak_bytes, "zswap_stored_peak_bytes": run.watch.stored_peak_bytes,
         "others_cpus": run.others_cpus, "summary": run.summary}
        for run in system.runs]}


def machine():
    """The machine in words: what a reader needs to judge the figures."""
    cpu = next((line.split(":")[1].strip() for line in u.read("/proc/cpuinfo").splitlines()
                if line.startswith("model name")), platform.machine())
    flags = u.read("/proc/cpuinfo")
    thp = u.read("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "virtual": " hypervisor" in flags,
        "huge_pages": thp[thp.index("[") + 1 : thp.index("]")],
        "load_average": os.getloadavg()[0],
    }


def commit():
    try:
        said = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
        return said.stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def page(folder, command, about, lines):
    """Adds a section to today's page of results; returns its path."""
    now = datetime.datetime.now()
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/{now:%Y-%m-%d}.md"
    box = about["machine"]
    new = not os.path.exists(path)
    with open(path, "a") as file:
        if new:
            file.write(f"# Benchmark results of {now:%Y-%m-%d}\n")
        file.write(f"\n## {now:%H:%M}, commit {about['commit']}\n\n")
        file.write(f"Machine: {box['cpus']} CPUs ({box['cpu']}{', virtual' if box['virtual'] else ''}), "
                   f"{box['memory_bytes'] / GIB:.0f} GiB, Linux {box['kernel']}, "
                   f"huge pages: {box['huge_pages']}, load average at the start {box['load_average']:.1f}.\n\n")
        file.write(f"Command: `{command}`\n\n```text\n" + "\n".join(lines) + "\n```\n")
    return path
