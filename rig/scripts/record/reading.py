#!/usr/bin/env python3
"""Reads a running program: its CPU time and memory, then its count of messages at the moment when that changes, because some programs
refresh their counters once a second.

Arguments: PID, URL of the counters, regular expression whose group is the count (matches are added). Prints a line before it asks for the
count, because answers cost the program CPU time, and one after it: nanoseconds of the monotonic clock, CPU nanoseconds of all threads,
resident kilobytes, and in the second line the messages. `--now` does not wait for a change; otherwise the wait is two seconds.
"""
import re
import sys
import time
import urllib.request

now = "--now" in sys.argv
pid, url, pattern = [argument for argument in sys.argv[1:] if argument != "--now"]
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def messages():
    for turn in range(3):
        try:
            with direct.open(url, timeout=10) as answer:
                return int(sum(float(count) for count in re.findall(pattern, answer.read().decode(), re.M)))
        except OSError:
            # A pause of the machine ends every wait at once.
            if turn == 2:
                raise


def show(*more):
    # The clock that the kernel keeps for a process (CPUCLOCK_SCHED), as clock_getcpuclockid() of the C library names it.
    cpu, at = time.clock_gettime_ns(~int(pid) << 3 | 2), time.monotonic_ns()
    resident = re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1]
    print(at, cpu, resident, *more)


show()
before = count = messages()
end = time.monotonic() + 2
while not now and count == before and time.monotonic() < end:
    time.sleep(0.005)
    count = messages()
show(count)
