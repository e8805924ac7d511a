"""Runs a command as a service manager does: NAMES (with ':' between them) NUMBERS (with ',') COMMAND …

The descriptors with these numbers become 3, 4, … of the command, with LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES."""
import os
import sys

names, numbers, *command = sys.argv[1:]
wanted = [int(number) for number in numbers.split(",") if number]
high = [os.dup(number) for number in wanted]  # all of them out of the way first
while high and min(high) < 3 + len(high):
    high = [os.dup(number) for number in high]
for place, number in enumerate(high):
    os.dup2(number, 3 + place)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(wanted)), LISTEN_FDNAMES=names)
os.execv(command[0], command)
