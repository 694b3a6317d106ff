"""A pre-forking server and its clients: the parent makes a table, workers answer from it and keep a cache of their own."""

import hashlib
import os
import random
import signal
import socket
import sys
import threading

WORKERS = 4
CLIENTS = 4


def table_of(count):
    chance = random.Random(9)
    words = ["".join(chance.choices("abcdefghijklmnopqrst", k=chance.randint(3, 9))) for _ in range(500)]
    return [" ".join(chance.choices(words, k=50)) for _ in range(count)]


def serve(listener, table):
    cache = {}
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            for line in stream:
                number = int(line)
                if number not in cache:
                    row = table[number] + table[-number]
                    cache[number] = hashlib.sha256(row.encode()).hexdigest() * 4
                    table[number] = table[number][::-1][::-1]
                stream.write(cache[number].encode() + b"\n")
                stream.flush()


def ask(path, seed, requests, rows, answers):
    chance, seen = random.Random(seed), hashlib.sha256()
    for _ in range(requests // 100):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            with connection.makefile("rwb") as stream:
                for _ in range(100):
                    stream.write(b"%d\n" % chance.randrange(rows))
                    stream.flush()
                    seen.update(stream.readline())
    answers[seed] = seen.hexdigest()


def main():
    rows, requests = int(sys.argv[1]), int(sys.argv[2])
    path = "socket-%d" % os.getpid()
    table = table_of(rows)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        workers = []
        for _ in range(WORKERS):
            pid = os.fork()
            if pid == 0:
                serve(listener, table)
            workers.append(pid)
    answers = {}
    clients = [threading.Thread(target=ask, args=(path, n, requests, rows, answers)) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
        print("worker ended by signal", os.waitpid(pid, 0)[1])
    os.unlink(path)
    for seed in sorted(answers):
        print(answers[seed])
    print(hashlib.sha256("".join(table).encode()).hexdigest())


main()
