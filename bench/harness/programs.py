"""Real programs with their inputs, scaled: a command, and who talks to it while it runs."""

import os
import random
import shutil
import subprocess
import sys
import time

OUT = os.path.abspath("target/bench")
SOURCES = os.path.abspath("tests/programs")
DUCKDB = "duckdb==2.0.1"


class Missing(Exception):
    """Why a program cannot be run; the sentence is for the user."""


def installed(name):
    path = shutil.which(name) or (f"/usr/local/go/bin/{name}" if os.path.exists(f"/usr/local/go/bin/{name}") else None)
    if not path:
        raise Missing(f"{name} is not installed")
    return path


class Program:
    """A command, and who talks to it while it runs."""

    def __init__(self, *command, talk=None):
        self.command, self.talk = list(command), talk


def python3(scale):
    return Program(sys.executable, f"{SOURCES}/records.py", str(int(150_000 * scale)))


def sqlite3(scale):
    orders = int(400_000 * scale)
    sizes = {"customers": orders // 20, "orders": orders}
    parameters = [f".parameter set @{name} {value}" for name, value in sizes.items()]
    return Program(installed("sqlite3"), "-init", "/dev/null", ":memory:", *parameters, f".read {SOURCES}/database.sql")


def go(scale):
    program = f"{OUT}/heap-go"
    environment = {**os.environ, "CGO_ENABLED": "1", "GO111MODULE": "off", "GOFLAGS": "", "GOTOOLCHAIN": "local"}
    subprocess.run([installed("go"), "build", "-o", program, f"{SOURCES}/heap.go"], check=True, env=environment)
    return Program(program, str(int(250_000 * scale)))


def sort(scale):
    """Lines of words, in one buffer."""
    lines, path = int(900_000 * scale), f"{OUT}/lines-{scale}"
    if not os.path.exists(path):
        numbers, words = random.Random(7), open("README.md").read().split()
        with open(path + ".new", "w") as file:
            for _ in range(lines):
                said = " ".join(numbers.choices(words, k=numbers.randrange(10, 40)))
                file.write(f"{said} {numbers.randrange(10 ** 8):08}\n")
        os.rename(path + ".new", path)
    buffer = os.path.getsize(path) * 3 // 2
    return Program("/usr/bin/env", "LC_ALL=C", installed("sort"), "--parallel=2", "-S", f"{buffer >> 10}K", path)


def duckdb(scale):
    place = f"{OUT}/python"
    if not os.path.isdir(f"{place}/duckdb"):
        done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", place, DUCKDB])
        if done.returncode:
            raise Missing(f"pip cannot install {DUCKDB}")
    program = os.path.abspath("bench/workload/tables.py")
    return Program("/usr/bin/env", f"PYTHONPATH={place}", sys.executable, program, str(int(1_000_000 * scale)))


def redis(scale):
    """A server that is filled, read by redis-benchmark in random order, and digested."""
    server, client, load = installed("redis-server"), installed("redis-cli"), installed("redis-benchmark")
    socket, records = f"{OUT}/redis.socket", int(250_000 * scale)

    def ask(*words, **how):
        done = subprocess.run([client, "-s", socket, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)
        return done.stdout.decode()

    def fill():
        numbers, words, commands = random.Random(5), open("README.md").read().split(), []
        for i in range(records):
            value = " ".join(numbers.choices(words, k=numbers.randrange(10, 60))).encode()
            key = b"key:%012d" % i
            commands.append(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value))
        return b"".join(commands)

    def talk(process):
        while not os.path.exists(socket) and process.poll() is None:
            time.sleep(0.01)
        said = ask("--pipe", input=fill()).splitlines()[-1:]
        requests = ["-r", str(records), "-n", str(records // 2), "-t", "get", "-q"]
        subprocess.run([load, "-s", socket, *requests], stdout=subprocess.DEVNULL, check=process.poll() is None)
        said += [ask("DBSIZE"), ask("DEBUG", "DIGEST"), ask("SHUTDOWN", "NOSAVE")]
        return "\n".join(said)

    if os.path.exists(socket):
        os.unlink(socket)
    options = ["--port", "0", "--daemonize", "no", "--unixsocket", socket, "--logfile", "/dev/null", "--save", "",
               "--appendonly", "no", "--enable-debug-command", "local"]
    return Program(server, *options, talk=talk)


def node(scale):
    """Buffers outside the collector's heap, and a Map inside it."""
    entries, buffers = str(int(200_000 * scale)), str(int(60 * scale))
    return Program(installed("node"), "--max-old-space-size=1500", f"{SOURCES}/heap.js", entries, buffers)


def java(scale):
    """Maps, lists and strings under the G1 collector."""
    java, javac, classes = installed("java"), installed("javac"), f"{OUT}/classes"
    subprocess.run([javac, "-d", classes, f"{SOURCES}/Heap.java"], check=True)
    return Program(java, "-XX:+UseG1GC", f"-Xmx{int(160 * scale)}m", "-cp", classes, "Heap", str(int(150_000 * scale)))


def cc1(scale):
    """GCC's compiler proper, on one large file."""
    gcc, path = installed("gcc"), f"{OUT}/large-{scale}.c"
    if not os.path.exists(path):
        with open(path + ".new", "w") as file:
            for i in range(int(4000 * scale)):
                file.write(f"struct s{i} {{ int a[{i % 9 + 1}]; struct s{i} *next; long b; }};\n"
                           f"long f{i}(struct s{i} *s, int n) {{\n  long sum = 0;\n"
                           f"  for (int k = 0; k < n; k++) {{ sum += s->a[k % {i % 9 + 1}] * {i}; s->b ^= sum; }}\n"
                           f"  return s->next ? sum + f{i}(s->next, n - {i % 5 + 1}) : sum;\n}}\n")
        os.rename(path + ".new", path)
    compiler = subprocess.run([gcc, "-print-prog-name=cc1"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return Program(compiler, "-quiet", "-O1", path, "-o", "/dev/stdout")


def chromium(scale):
    """A headless browser that lays out one page of many rows, with a new profile."""
    profile = f"{OUT}/chromium"
    shutil.rmtree(profile, ignore_errors=True)
    without = ["gpu", "quic", "background-networking", "component-update", "sync"]
    return Program(installed("chromium"), "--headless", "--no-sandbox", "--no-first-run", f"--user-data-dir={profile}",
                   *(f"--disable-{part}" for part in without), "--dump-dom",
                   f"file://{SOURCES}/page.html#{int(10_000 * scale)}")


PROGRAMS = {"redis": redis, "sqlite3": sqlite3, "python3": python3, "go": go, "sort": sort, "duckdb": duckdb,
            "node": node, "java": java, "cc1": cc1, "chromium": chromium}
