"""Ends with 0 and leaves a grandchild with its pipes open: leaves_grandchild.py PIDFILE [own-session] [ignore]."""

import os
import signal
import sys
import time

if os.fork() == 0:
    if "own-session" in sys.argv:
        os.setsid()
    if os.fork() == 0:
        if "ignore" in sys.argv:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(sys.argv[1] + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("done", flush=True)
