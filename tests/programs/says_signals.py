"""Prints a line for each signal; ends with CODE after COUNT signals: says_signals.py [COUNT] [CODE]."""

import signal
import sys
import time

left = int(sys.argv[1]) if len(sys.argv) > 1 else 1
code = int(sys.argv[2]) if len(sys.argv) > 2 else 0


def print_signal(number, frame):
    global left
    left -= 1
    print(f"got {signal.Signals(number).name}", flush=True)
    if left == 0:
        sys.exit(code)


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, print_signal)
print("ready", flush=True)
while True:
    time.sleep(0.05)  # Python does not see a signal that comes just before a long sleep until the sleep ends.
