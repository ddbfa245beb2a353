"""Ignores SIGTERM and SIGINT, as does its child; prints "ready" and runs on."""

import os
import signal

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork():
    print("ready", flush=True)
while True:
    signal.pause()
